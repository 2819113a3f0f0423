"""Triplet losses over online batches: a row is an anchor, the columns are all texts of the batch.

Scores are similarities, for instance minus distances (:func:`ltr.similarity.euclidean`); the labels are 1 for the texts of the
anchor's own group and 0 for the others; the mask leaves the anchor itself out. A triplet is a pair of a row, so these losses run
on any list.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import Reduction, check_choice
from ltr.losses._pairs import mean_over_pairs, pair_sums
from ltr.losses.pairwise import hinge, margin_ranking_loss

Average = Literal["active", "all", "row"]


def batch_all_triplet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float | Tensor = 1.0,
    average: Average = "active",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Hinge over every triplet (anchor, positive, negative) of a batch, averaged over the active ones.

    .. math::
        \ell = \frac{1}{|T^+|} \sum_{(a, p, n) \in T} \max\bigl(0,\; m - (s_{ap} - s_{an})\bigr), \qquad
        T^+ = \{(a, p, n) \in T : s_{ap} - s_{an} < m\}

    ``all`` divides by :math:`|T|` instead. ``row`` takes the mean of each anchor over its triplets, then over anchors: it is
    :func:`ltr.losses.margin_ranking_loss`.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one anchor.
        labels: ``[B, N]`` float; a positive is any text with a higher label than the negative.
        mask: ``[B, N]`` bool, False for the anchor itself and for padding; None means none.
        margin: in units of score: a number, ``[B, 1]``, ``[B, N]`` (per negative) or ``[B, N, N]`` (per pair).
        average: over the ``active`` triplets of the whole batch (as published), over ``all`` of them, or by ``row``.
        reduction: over rows. With ``active`` and ``all`` the mean is over the batch, and a row's value is its share of it:
            ``none`` sums up to it, and ``mean`` and ``sum`` are the same.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a triplet gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, that of the margin fits none of the four, or for an unknown
            option.

    Use:
        The start of a metric-learning run: every triplet teaches, and the mean over active ones keeps its force as they get few.

    Cost:
        O(B·N log N) time, O(B·N) memory: exact, by sorting; never a ``[B, B, B]`` tensor.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification (batch all, L≠0).

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.0, -1.0, -1.5, -9.0]])  # the anchor, a positive, two negatives: hinges 0.5 and 0
        >>> labels, mask = torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[False, True, True, True]])
        >>> batch_all_triplet_loss(scores, labels, mask), batch_all_triplet_loss(scores, labels, mask, average="all")
        (tensor(0.5000), tensor(0.2500))
    """
    check_choice("average", average, ("active", "all", "row"))
    if average == "row":
        return margin_ranking_loss(scores, labels, mask, margin=margin, reduction=reduction)
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    sum_b, active_b, n_triplets_b = pair_sums(scores, labels, mask, margin, hinge, exact="hinge")
    n_triplets = (active_b if average == "active" else n_triplets_b).sum()
    share_b = sum_b / n_triplets.clamp(min=1)
    return share_b if reduction == "none" else share_b.sum()


def batch_hard_triplet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float | Tensor | None = None,
    soft: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The hardest positive of each anchor against its hardest negative.

    .. math::
        \ell_a = \max\Bigl(0,\; m - \bigl(\min_{p} s_{ap} - \max_{n} s_{an}\bigr)\Bigr)

    ``soft`` replaces the hinge by :math:`\log(1 + e^{x})` and needs no margin. Several grades: the pair with the least gap.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one anchor.
        labels: ``[B, N]`` float; a positive is any text with a higher label than the negative.
        mask: ``[B, N]`` bool, False for the anchor itself and for padding; None means none.
        margin: in units of score: a number, ``[B, 1]``, ``[B, N]`` (per negative) or ``[B, N, N]`` (per pair); None is 1, and 0
            with ``soft``.
        soft: whether the hinge is smooth.
        reduction: ``mean`` is over the anchors that have a positive and a negative.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a triplet gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or that of the margin fits none of the four.

    Use:
        After a warm-up with another loss, on clean labels: one wrong label is the hardest text of many anchors.

    Cost:
        O(B·N) time and memory, and a sort of the positives of each anchor.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification (batch hard, soft margin).

    Example:
        >>> import torch
        >>> scores, labels = torch.tensor([[-1.0, -2.0, -1.5, -9.0]]), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
        >>> batch_hard_triplet_loss(scores, labels)  # 1 - (-2 + 1.5)
        tensor(1.5000)
    """
    margin = (0.0 if soft else 1.0) if margin is None else margin
    if not soft:
        return margin_ranking_loss(scores, labels, mask, margin=margin, pairs="hardest", reduction=reduction)

    def cost(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
        return -F.logsigmoid(s_i - (s_j + m_ij))

    return mean_over_pairs(scores, labels, mask, margin, "hardest", reduction, cost)


def batch_semi_hard_triplet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float | Tensor = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Each positive of an anchor against the hardest negative that is still worse than it.

    .. math::
        \ell_a = \frac{1}{|P_a|} \sum_{p \in P_a} \max\bigl(0,\; m - (s_{ap} - s_{a\,n(p)})\bigr), \qquad
        n(p) = \arg\max_{n : s_{an} < s_{ap}} s_{an}

    Where no negative is worse than the positive, the easiest one is taken.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one anchor.
        labels: ``[B, N]`` float; a positive is any text with a higher label than the negative.
        mask: ``[B, N]`` bool, False for the anchor itself and for padding; None means none.
        margin: in units of score: a number, ``[B, 1]``, ``[B, N]`` (per negative) or ``[B, N, N]`` (per pair).
        reduction: ``mean`` is over the anchors that have a positive and a negative: each counts once, however many positives it
            has.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a triplet gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or that of the margin fits none of the four.

    Use:
        Large batches with noisy labels: it looks past the very hardest negatives, which are often mislabelled.

    Cost:
        O(B·N log N) time, O(B·N) memory; few positives: O(P·B·N).

    References:
        Schroff, Kalenichenko & Philbin (2015), FaceNet: a unified embedding for face recognition and clustering.

    Example:
        >>> import torch
        >>> scores, labels = torch.tensor([[-1.0, -0.5, -1.2, -9.0]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
        >>> batch_semi_hard_triplet_loss(scores, labels)  # 1 - (-1 + 1.2)
        tensor(0.8000)
    """
    return margin_ranking_loss(scores, labels, mask, margin=margin, pairs="semi-hard", reduction=reduction)


class BatchAllTripletLoss(nn.Module):
    """:func:`batch_all_triplet_loss` with its options held.

    Args:
        margin: in units of score; used where the batch brings none.
        average: ``active``, ``all`` or ``row``.
        reduction: over rows.
    """

    def __init__(self, margin: float = 1.0, average: Average = "active", reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("average", average, ("active", "all", "row"))
        self.margin, self.average, self.reduction = margin, average, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        margin = self.margin if margin is None else margin
        return batch_all_triplet_loss(scores, labels, mask, margin=margin, average=self.average, reduction=self.reduction)


class BatchHardTripletLoss(nn.Module):
    """:func:`batch_hard_triplet_loss` with its options held.

    Args:
        margin: in units of score; used where the batch brings none. Not used with ``soft``.
        soft: whether the hinge is smooth.
        reduction: over rows.
    """

    def __init__(self, margin: float = 1.0, soft: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.margin, self.soft, self.reduction = margin, soft, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        if margin is None and not self.soft:
            margin = self.margin
        return batch_hard_triplet_loss(scores, labels, mask, margin=margin, soft=self.soft, reduction=self.reduction)


class BatchSemiHardTripletLoss(nn.Module):
    """:func:`batch_semi_hard_triplet_loss` with its margin held.

    Args:
        margin: in units of score; used where the batch brings none.
        reduction: over rows.
    """

    def __init__(self, margin: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.margin, self.reduction = margin, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        margin = self.margin if margin is None else margin
        return batch_semi_hard_triplet_loss(scores, labels, mask, margin=margin, reduction=self.reduction)
