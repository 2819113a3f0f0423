"""Pairwise ranking losses: a more relevant document should outscore a less relevant one.

All are one formula, the mean of a cost of (s_i, s_j, margin) over chosen pairs with y_i > y_j. Letters of shapes: b row (one
query), i more and j less relevant document.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import Reduction, check_choice
from ltr.losses._pairs import PAIRS, Cost, Pairs, mean_over_pairs


def hinge(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
    """max(0, m − (s_i − s_j)), in the order in which the sorted form compares: both then agree at the kink to the last bit."""
    return F.relu((s_j + m_ij) - s_i)


def squared_hinge(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
    """The square of :func:`hinge`."""
    return hinge(s_i, s_j, y_i, y_j, m_ij).square()


def margin_ranking_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float | Tensor = 1.0,
    pairs: Pairs = "all",
    squared: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Hinge on the score gap of pairs of a list whose labels differ.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \max\bigl(0,\; m_{ij} - (s_i - s_j)\bigr)^q,
        \qquad P \subseteq \{(i, j) : y_i > y_j\},\; q \in \{1, 2\}

    The pairs of a row: ``all``; ``hardest``: the one with the least :math:`s_i - s_j`; ``semi-hard``: for each i the j with the
    highest :math:`s_j < s_i`, or the lowest :math:`s_j` where there is none; ``adjacent``: neighbours in the order of the labels
    only; ``mean``: each i against the mean of :math:`s_j + m_{ij}` over its less relevant documents.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades; only their order within a row matters.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        margin: in units of score: a number, ``[B, 1]`` (per row), ``[B, N]`` (per less relevant document) or ``[B, N, N]`` (per
            pair, more relevant document first).
        pairs: which pairs of a row count.
        squared: whether the hinge is squared.
        reduction: ``mean`` is over the rows that have at least one pair.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a pair gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, that of the margin fits none of the four, or for an unknown
            option.

    Use:
        When a fixed or given gap is enough: pairs beyond their margin teach nothing more. The margin has the scores' unit.

    Cost:
        O(N log N) time and O(N) memory per row and grade (exact, by sorting); as many grades as documents, or a margin per pair:
        O(P·N) time in blocks.

    References:
        Herbrich, Graepel & Obermayer (2000), Large margin rank boundaries for ordinal regression.

    Example:
        >>> import torch
        >>> margin_ranking_loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]]), margin=1.0)
        tensor(3.)
    """
    if squared:
        return mean_over_pairs(scores, labels, mask, margin, pairs, reduction, squared_hinge, exact="squared hinge")
    return mean_over_pairs(scores, labels, mask, margin, pairs, reduction, hinge, exact="hinge")


def ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    sigma: float = 1.0,
    pairs: Pairs = "all",
    targets: Literal["hard", "soft"] = "hard",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy of the modelled probability that the more relevant document of a pair comes first.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} -\bar P_{ij} \log P_{ij} - (1 - \bar P_{ij}) \log (1 - P_{ij}), \qquad
        P_{ij} = \frac{1}{1 + e^{-\sigma (s_i - s_j)}}, \quad P \subseteq \{(i, j) : y_i > y_j\}

    The targets :math:`\bar P_{ij}` are 1 (``hard``: the cost is :math:`\log(1 + e^{-\sigma(s_i - s_j)})`) or
    :math:`1 / (1 + e^{-\sigma (y_i - y_j)})` (``soft``: labels are grades or a teacher's scores in the units of the student's,
    and the gap of the labels is the gap to reach).

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades, or a teacher's scores.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        sigma: steepness, in 1 / units of score.
        pairs: which pairs of a row count, as in :func:`margin_ranking_loss`.
        targets: ``hard`` or ``soft``.
        reduction: ``mean`` is over the rows that have at least one pair.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a pair gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or for an unknown option.

    Use:
        The first choice among pairwise losses: no margin to set, and badly ordered pairs pull with a bounded force.

    Cost:
        O(P·N) time, O(N · block) memory; the gradient is one factor per document (Burges' factorised form).

    References:
        Burges et al. (2005), Learning to rank using gradient descent.

    Example:
        >>> import torch
        >>> ranknet_loss(torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 0.0]]))  # log 2
        tensor(0.6931)
    """
    return mean_over_pairs(scores, labels, mask, 0.0, pairs, reduction, _cross_entropy(sigma, targets))


def adaptive_ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float | Tensor = 1.0,
    sigma: float = 1.0,
    k: float = 1.0,
    mode: Literal["shift", "scale"] = "shift",
    pairs: Pairs = "all",
    targets: Literal["hard", "soft"] = "hard",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""RankNet that asks more of the pairs with a larger margin.

    .. math::
        P_{ij} = \frac{1}{1 + e^{-x_{ij}}}, \qquad
        x_{ij} = \sigma (s_i - s_j - k\,m_{ij}) \;\text{(shift)} \quad\text{or}\quad
        \sigma (1 + k\,m_{ij}) (s_i - s_j) \;\text{(scale)}

    in :func:`ranknet_loss`: ``shift`` asks for :math:`s_i - s_j > k\,m_{ij}`; ``scale`` makes the logistic steeper.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades, or a teacher's scores.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        margin: a number, ``[B, 1]``, ``[B, N]`` (per less relevant document) or ``[B, N, N]`` (per pair); times ``k`` in units of
            score (``shift``) or without unit (``scale``).
        sigma: steepness, in 1 / units of score.
        k: factor on the margins.
        mode: ``shift`` or ``scale``.
        pairs: which pairs of a row count, as in :func:`margin_ranking_loss`.
        targets: ``hard`` or ``soft``, as in :func:`ranknet_loss`.
        reduction: ``mean`` is over the rows that have at least one pair.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a pair gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, that of the margin fits none of the four, or for an unknown
            option.

    Use:
        With mined negatives whose distances tell how far apart they should stay (:class:`ltr.margins.FromDistance`).

    Cost:
        O(P·N) time, O(N · block) memory.

    References:
        Burges et al. (2005), Learning to rank using gradient descent, with the margin of :func:`margin_ranking_loss` inside.

    Example:
        >>> import torch
        >>> adaptive_ranknet_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), margin=2.0)  # meets it: log 2
        tensor(0.6931)
    """
    check_choice("mode", mode, ("shift", "scale"))
    cross_entropy = _cross_entropy(sigma, targets)

    def scaled(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
        return cross_entropy((1 + k * m_ij) * (s_i - s_j), torch.zeros_like(s_j), y_i, y_j, torch.zeros_like(s_j))

    def shifted(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
        return cross_entropy(s_i, s_j, y_i, y_j, k * m_ij)

    return mean_over_pairs(scores, labels, mask, margin, pairs, reduction, shifted if mode == "shift" else scaled)


def chain_probability(p_ik: Tensor, p_kj: Tensor) -> Tensor:
    r"""The probability that i comes before j, from those of i before k and k before j under RankNet's model.

    .. math:: P_{ij} = \frac{P_{ik} P_{kj}}{1 + 2 P_{ik} P_{kj} - P_{ik} - P_{kj}}

    The logits add up: :math:`\sigma(s_i - s_j) = \sigma(s_i - s_k) + \sigma(s_k - s_j)`. So neighbours in the order of the labels
    determine all pairs (``pairs="adjacent"``).

    Args:
        p_ik: probabilities in (0, 1), any shape.
        p_kj: the same shape.

    Returns:
        The same shape.

    References:
        Burges et al. (2005), Learning to rank using gradient descent, section 4.

    Example:
        >>> import torch
        >>> chain_probability(torch.tensor(0.75), torch.tensor(0.75))  # odds 3 times 3: 9 to 1
        tensor(0.9000)
    """
    both = p_ik * p_kj
    return both / (1 + 2 * both - p_ik - p_kj)


def _cross_entropy(sigma: float, targets: Literal["hard", "soft"]) -> Cost:
    check_choice("targets", targets, ("hard", "soft"))

    def cost(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
        # Multiplied before the two meet in a pair matrix, and logsigmoid: its gradient takes no second exponential.
        x = sigma * s_i - sigma * (s_j + m_ij)
        if targets == "hard":
            return -F.logsigmoid(x)
        return torch.sigmoid(sigma * y_j - sigma * y_i) * x - F.logsigmoid(x)

    return cost


class MarginRankingLoss(nn.Module):
    """:func:`margin_ranking_loss` with its options held.

    Args:
        margin: in units of score; used where the batch brings none.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``.
        squared: whether the hinge is squared.
        reduction: over rows.
    """

    def __init__(self, margin: float = 1.0, pairs: Pairs = "all", squared: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("pairs", pairs, PAIRS)
        self.margin, self.pairs, self.squared, self.reduction = margin, pairs, squared, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        margin = self.margin if margin is None else margin
        options = {"pairs": self.pairs, "squared": self.squared, "reduction": self.reduction}
        return margin_ranking_loss(scores, labels, mask, margin=margin, **options)


class AdaptiveMarginRankingLoss(nn.Module):
    r""":func:`margin_ranking_loss` whose margin is ``k`` times the one that the batch brings: :math:`\max(0, s^- - s^+ + k m)`.

    Args:
        k: factor on the margins of the batch, for instance distances in the index that mined the negatives.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``.
        margin: used, times ``k``, where the batch brings none.
        reduction: over rows.

    Use:
        With mined negatives whose distances tell how far apart they should stay; pairs beyond their margin teach nothing more.
    """

    def __init__(self, k: float = 1.0, pairs: Pairs = "all", margin: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("pairs", pairs, PAIRS)
        self.k, self.pairs, self.margin, self.reduction = k, pairs, margin, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        margin = self.k * (self.margin if margin is None else margin)
        return margin_ranking_loss(scores, labels, mask, margin=margin, pairs=self.pairs, reduction=self.reduction)


class RankNetLoss(nn.Module):
    """:func:`ranknet_loss` with its options held.

    Args:
        sigma: steepness, in 1 / units of score.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``.
        targets: ``hard`` or ``soft``.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(
        self,
        sigma: float = 1.0,
        pairs: Pairs = "all",
        targets: Literal["hard", "soft"] = "hard",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_choice("pairs", pairs, PAIRS)
        check_choice("targets", targets, ("hard", "soft"))
        self.sigma, self.pairs, self.targets, self.reduction = sigma, pairs, targets, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        options = {"sigma": self.sigma, "pairs": self.pairs, "targets": self.targets, "reduction": self.reduction}
        return ranknet_loss(scores, labels, mask, **options)


class AdaptiveRankNetLoss(nn.Module):
    """:func:`adaptive_ranknet_loss` with its options held.

    Args:
        sigma: steepness, in 1 / units of score.
        k: factor on the margins.
        mode: ``shift`` or ``scale``.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``.
        targets: ``hard`` or ``soft``.
        margin: used, times ``k``, where the batch brings none.
        reduction: over rows.
    """

    def __init__(
        self,
        sigma: float = 1.0,
        k: float = 1.0,
        mode: Literal["shift", "scale"] = "shift",
        pairs: Pairs = "all",
        targets: Literal["hard", "soft"] = "hard",
        margin: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_choice("mode", mode, ("shift", "scale"))
        check_choice("pairs", pairs, PAIRS)
        check_choice("targets", targets, ("hard", "soft"))
        self.sigma, self.k, self.mode, self.pairs, self.targets = sigma, k, mode, pairs, targets
        self.margin, self.reduction = margin, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        options = {"sigma": self.sigma, "k": self.k, "mode": self.mode, "pairs": self.pairs, "targets": self.targets}
        margin = self.margin if margin is None else margin
        return adaptive_ranknet_loss(scores, labels, mask, margin=margin, reduction=self.reduction, **options)
