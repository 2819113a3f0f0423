"""Distillation: the labels are the scores of a teacher."""

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from ltr.errors import one_of, positive
from ltr.losses.loss import Loss, Reduction
from ltr.losses.pairwise import MeanOrSum
from ltr.pairs import PairsReduction, reduce_over_pairs
from ltr.pairs.blocks import sum_in_blocks
from ltr.pairs.list_tensors import masked_log_softmax, prepare_lists, two_labels


class MarginMSELoss(Loss):
    r"""Squared difference between the score gaps of student and teacher, over every pair that the
    teacher tells apart.

    .. math::
        \ell(s, t) = \frac{1}{|P|} \sum_{(i, j) \in P} \bigl((s_i - s_j) - (t_i - t_j)\bigr)^2,
        \qquad P = \{(i, j) : t_i > t_j\}

    Use: A teacher's scores in the units of the student's (a cross-encoder teaching a dual encoder).
    Cost: O(P·N) time, O(N · block) memory.
    References: Hofstätter et al. (2020), Improving efficient neural ranking models with
    cross-architecture knowledge distillation.

    Args:
        pairs_reduction: ``mean`` or ``sum``, as in :class:`ltr.losses.RankNetLoss`.

    Example:
        >>> import torch
        >>> MarginMSELoss()(torch.tensor([[3.0, 1.0]]), torch.tensor([[5.0, 4.0]]))  # gaps 2 and 1
        tensor(1.)
    """

    takes_teacher_scores = True

    def __init__(self, pairs_reduction: MeanOrSum = "mean", reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        one_of(get_args(PairsReduction), pairs_reduction=pairs_reduction)
        self.pairs_reduction = pairs_reduction

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        def cost(
            s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor
        ) -> Tensor:
            return ((s_i - y_i) - (s_j - y_j)).square()

        value_b, n_pairs_b = reduce_over_pairs(
            scores, labels, mask, cost, reduction=self.pairs_reduction
        )
        return self.reduce(value_b, n_pairs_b)


class KLDivergenceLoss(Loss):
    r"""Kullback–Leibler divergence of the student's distribution over the list from the teacher's.

    .. math::
        \ell(s, t) = \tau^2 \sum_i p_i \log \frac{p_i}{q_i}, \qquad
        p = \mathrm{softmax}(t / \tau),\; q = \mathrm{softmax}(s / \tau)

    The factor :math:`\tau^2` keeps the size of the gradient when the temperature changes. A list
    needs two documents that the teacher tells apart.

    Use: A teacher whose scores have another scale, or where only the share of each document in its
    list counts.
    Cost: O(N) time and memory.
    References: Hinton, Vinyals & Dean (2015), Distilling the knowledge in a neural network.

    Args:
        temperature: in units of score, for both.

    Example:
        >>> import torch
        >>> KLDivergenceLoss()(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 2.0]]))  # equal gaps
        tensor(0.)
    """

    takes_teacher_scores = True

    def __init__(self, temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        has_signal_b = two_labels(labels, mask)
        log_p = masked_log_softmax(labels / self.temperature, mask)
        log_q = masked_log_softmax(scores / self.temperature, mask)
        cost = log_p.exp() * (log_p - log_q)
        counted = mask & has_signal_b.unsqueeze(1)
        sum_b = cost.masked_fill(~counted, 0.0).sum(dim=1)
        return self.reduce(self.temperature**2 * sum_b, has_signal_b)


class ADRMSELoss(Loss):
    r"""Squared difference of the teacher's ranks and smooth ranks of the student, those of the
    first documents weighing most.

    .. math::
        \ell(s, t) = \frac{1}{N} \sum_i \frac{(\pi_i - \hat\pi_i)^2}{\log_2(1 + \pi_i)}, \qquad
        \hat\pi_i = 1 + \sum_{j \ne i} \frac{1}{1 + e^{(s_i - s_j) / \tau}}

    :math:`\pi_i` is the rank that the teacher gives, 1 for its best document; documents of equal
    scores share the mean of their ranks. A list needs two documents that the teacher tells apart.

    Use: A teacher that ranks but whose scores mean nothing, such as a large language model that
    sorts lists.
    Cost: O(N²) time, O(N · block) memory.
    References: Schlatt et al. (2025), Rank-DistiLLM: closing the effectiveness gap between
    cross-encoders and LLMs for passage re-ranking (ADR-MSE).

    Args:
        temperature: of the smooth ranks, in units of score.

    Example:
        >>> import torch
        >>> ADRMSELoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # both at 1.5: (1/4 / 1 + 1/4 / log2 3) / 2
        tensor(0.2039)
    """

    takes_teacher_scores = True

    def __init__(self, temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        has_signal_b = two_labels(labels, mask)
        real = mask.to(scores.dtype)

        def block(
            span: slice, docs: Sequence[Tensor], lists: Sequence[Tensor]
        ) -> tuple[Tensor, Tensor]:
            s_i, t_i = (x.unsqueeze(2) for x in docs)
            s_j, t_j = (x.unsqueeze(1) for x in lists)
            real_i = real[:, span]
            real_j = real.unsqueeze(1)
            # A document counts itself as one half, and those of an equal score too.
            above_ij = ((t_j > t_i) + 0.5 * (t_j == t_i)) * real_j
            smooth_ij = torch.sigmoid((s_j - s_i) / self.temperature) * real_j
            rank_i = 0.5 + above_ij.sum(dim=2)
            smooth_i = 0.5 + smooth_ij.sum(dim=2)
            discount_i = torch.log2(1 + rank_i.clamp(min=1))
            cost_i = (rank_i - smooth_i).square() / discount_i * real_i
            sum_b = cost_i.sum(dim=1)
            return sum_b, torch.zeros_like(sum_b)

        sum_b, _ = sum_in_blocks(block, [scores, labels], [scores, labels])
        value_b = sum_b / mask.sum(dim=1).clamp(min=1)
        return self.reduce(value_b.masked_fill(~has_signal_b, 0.0), has_signal_b)
