"""Triplet losses over online batches: a row is an anchor, the columns are all texts of the batch.

Scores are similarities, for instance minus distances (:func:`ltr.similarity.euclidean`); the labels
are 1 for the texts of the anchor's own group and 0 for the others; the mask leaves the anchor
itself out. A triplet is a pair of a row, so these losses run on any list.
"""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import one_of
from ltr.losses.loss import Reduction
from ltr.losses.pairwise import MarginRankingLoss
from ltr.pairs import PairsReduction, hinge, pair_sums, reduce_over_pairs

Average = Literal["active", "all", "row"]


class BatchAllTripletLoss(MarginRankingLoss):
    r"""Hinge over every triplet (anchor, positive, negative) of a batch, averaged over the active
    ones.

    .. math::
        \ell = \frac{1}{|T^+|} \sum_{(a, p, n) \in T} \max\bigl(0,\; m - (s_{ap} - s_{an})\bigr), \qquad
        T^+ = \{(a, p, n) \in T : s_{ap} - s_{an} < m\}

    ``all`` divides by :math:`|T|` instead. ``row`` takes the mean of each anchor over its triplets,
    then over anchors: it is :class:`ltr.losses.MarginRankingLoss`, whose ``pairs_reduction: active``
    takes the mean of each anchor over its active ones. With ``active`` and ``all`` the
    mean is over the batch, and a row's value is its share of it: the reductions ``mean`` and
    ``sum`` are the same.

    Use: The start of a metric-learning run: every triplet teaches, and the mean over active ones
    keeps its force as they get few.
    Cost: O(B·N log N) time, O(B·N) memory: exact, by sorting; never a ``[B, B, B]`` tensor.
    References: Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person
    re-identification (batch all, L≠0).

    Args:
        margin: in units of score; used where the batch brings none.
        average: over the ``active`` triplets of the whole batch (as published), over ``all`` of
            them, or by ``row``.

    Example:
        >>> scores = torch.tensor([[0.0, -1.0, -1.5, -9.0]])  # the anchor, a positive, two negatives: hinges 0.5 and 0
        >>> labels, mask = torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[False, True, True, True]])
        >>> BatchAllTripletLoss()(scores, labels, mask), BatchAllTripletLoss(average="all")(scores, labels, mask)
        (tensor(0.5000), tensor(0.2500))
    """

    def __init__(
        self, margin: float = 1.0, average: Average = "active", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(margin, reduction=reduction)
        one_of(get_args(Average), average=average)
        self.average = average

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        if self.average == "row":
            return super().forward(scores, labels, mask, margin)
        active = self.average == "active"
        m_ij = self.asked_margin(margin)
        sum_b, n_triplets_b = pair_sums(scores, labels, mask, hinge, m_ij, active=active)
        share_b = sum_b / n_triplets_b.sum().clamp(min=1)
        # The shares sum up to the mean over the batch, so a mean divides them by 1.
        return self.reduce(share_b, torch.ones_like(share_b[:1]))


class BatchHardTripletLoss(MarginRankingLoss):
    r"""The hardest positive of each anchor against its hardest negative.

    .. math::
        \ell_a = \max\Bigl(0,\; m - \bigl(\min_{p} s_{ap} - \max_{n} s_{an}\bigr)\Bigr)

    ``soft`` replaces :math:`\max(0, m + x)`, where :math:`x = s_{an} - s_{ap}`, by :math:`\log(1 +
    e^{m + x})`; its m is 0 where the batch brings none. Several grades: the pair with the least gap.

    Use: After a warm-up with another loss, on clean labels: one wrong label is the hardest text of
    many anchors.
    Cost: O(B·N) time and memory, and a sort of the positives of each anchor.
    References: Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person
    re-identification (batch hard, soft margin).

    Args:
        margin: in units of score; used where the batch brings none, but not with ``soft``.
        soft: whether the hinge is smooth.

    Example:
        >>> scores, labels = torch.tensor([[-1.0, -2.0, -1.5, -9.0]]), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
        >>> BatchHardTripletLoss()(scores, labels)  # 1 - (-2 + 1.5)
        tensor(1.5000)
    """

    def __init__(
        self, margin: float = 1.0, soft: bool = False, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(margin, "hardest", reduction=reduction)
        self.soft = soft

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        if not self.soft:
            return super().forward(scores, labels, mask, margin)

        def cost(
            s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor
        ) -> Tensor:
            return -F.logsigmoid(s_i - (s_j + m_ij))

        m_ij = 0.0 if margin is None else margin
        value_b, n_pairs_b = reduce_over_pairs(scores, labels, mask, cost, m_ij, self.pairs)
        return self.reduce(value_b, n_pairs_b)

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:  # type: ignore[override]  # wider than the parent's: it may be None
        if self.soft:  # it has no margin of its own
            return margin
        return super().asked_margin(margin)


class BatchSemiHardTripletLoss(MarginRankingLoss):
    r"""Each positive of an anchor against the hardest negative that is still worse than it.

    .. math::
        \ell_a = \frac{1}{|P_a|} \sum_{p \in P_a} \max\bigl(0,\; m - (s_{ap} - s_{a\,n(p)})\bigr), \qquad
        n(p) = \arg\max_{n : s_{an} < s_{ap}} s_{an}

    Where no negative is worse than the positive, the easiest one is taken. Each anchor counts once,
    however many positives it has.

    Use: Large batches with noisy labels: it looks past the very hardest negatives, which are often
    mislabelled.
    Cost: O(B·N log N) time, O(B·N) memory; few positives: O(P·B·N).
    References: Schroff, Kalenichenko & Philbin (2015), FaceNet: a unified embedding for face
    recognition and clustering.

    Args:
        margin: in units of score; used where the batch brings none.
        pairs_reduction: ``mean``, ``sum`` or ``active``, as in
            :class:`ltr.losses.MarginRankingLoss`.

    Example:
        >>> scores, labels = torch.tensor([[-1.0, -0.5, -1.2, -9.0]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
        >>> BatchSemiHardTripletLoss()(scores, labels)  # 1 - (-1 + 1.2)
        tensor(0.8000)
    """

    def __init__(
        self,
        margin: float = 1.0,
        pairs_reduction: PairsReduction = "mean",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(margin, "semi-hard", pairs_reduction=pairs_reduction, reduction=reduction)
