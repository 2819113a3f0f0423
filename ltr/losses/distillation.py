"""Distillation: the labels are the scores of a teacher."""

from torch import Tensor

from ltr.losses.lists import check_lists, masked_log_softmax, two_labels
from ltr.losses.loss import Loss, Reduction, positive
from ltr.losses.pairs import mean_over_pairs


class MarginMSELoss(Loss):
    r"""Squared difference between the score gaps of student and teacher, over every pair that the teacher tells apart.

    .. math::
        \ell(s, t) = \frac{1}{|P|} \sum_{(i, j) \in P} \bigl((s_i - s_j) - (t_i - t_j)\bigr)^2,
        \qquad P = \{(i, j) : t_i > t_j\}

    Use: A teacher's scores in the units of the student's (a cross-encoder teaching a dual encoder).
    Cost: O(P·N) time, O(N · block) memory.
    References: Hofstätter et al. (2020), Improving efficient neural ranking models with cross-architecture knowledge
        distillation.

    Example:
        >>> import torch
        >>> MarginMSELoss()(torch.tensor([[3.0, 1.0]]), torch.tensor([[5.0, 4.0]]))  # gaps 2 and 1
        tensor(1.)
    """

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        def cost(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor) -> Tensor:
            return ((s_i - y_i) - (s_j - y_j)).square()

        return self.reduce(*mean_over_pairs(scores, labels, mask, cost))


class KLDivergenceLoss(Loss):
    r"""Kullback–Leibler divergence of the student's distribution over the list from the teacher's.

    .. math::
        \ell(s, t) = \tau^2 \sum_i p_i \log \frac{p_i}{q_i}, \qquad
        p = \mathrm{softmax}(t / \tau),\; q = \mathrm{softmax}(s / \tau)

    The factor :math:`\tau^2` keeps the size of the gradient when the temperature changes. A list needs two documents that the
    teacher tells apart.

    Use: A teacher whose scores have another scale, or where only the share of each document in its list counts.
    Cost: O(N) time and memory.
    References: Hinton, Vinyals & Dean (2015), Distilling the knowledge in a neural network.

    Args:
        temperature: in units of score, for both.

    Example:
        >>> import torch
        >>> KLDivergenceLoss()(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 2.0]]))  # equal gaps
        tensor(0.)
    """

    def __init__(self, temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = positive("temperature", temperature)

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        scores, labels, mask = check_lists(scores, labels, mask)
        has_signal_b = two_labels(labels, mask)
        log_p = masked_log_softmax(labels / self.temperature, mask)
        log_q = masked_log_softmax(scores / self.temperature, mask)
        cost = (log_p.exp() * (log_p - log_q)).masked_fill(~(mask & has_signal_b.unsqueeze(1)), 0.0)
        return self.reduce(self.temperature**2 * cost.sum(dim=1), has_signal_b)
