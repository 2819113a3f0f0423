"""Pairwise ranking losses: a more relevant document should outscore a less relevant one."""

from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import Reduction, check_lists, mean_over_pairs, pairs, per_pair


def margin_ranking_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float | Tensor = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Hinge on the score gap of every pair of a list whose labels differ.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \max\bigl(0,\; m_{ij} - (s_i - s_j)\bigr),
        \qquad P = \{(i, j) : y_i > y_j\}

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades; only their order within a row matters.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        margin: in units of score: a number, ``[B, N]`` (one per less relevant document) or ``[B, N, N]`` (one per pair).
        reduction: ``mean`` is over the rows that have at least one pair.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a pair gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or that of the margin fits none of the three.

    References:
        Herbrich, Graepel & Obermayer (2000), Large margin rank boundaries for ordinal regression.

    Example:
        >>> import torch
        >>> margin_ranking_loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]]), margin=1.0)
        tensor(3.)
    """
    scores, mask = check_lists(scores, labels, mask)
    s_gap_bij, pair_bij = pairs(scores, labels, mask)
    return mean_over_pairs(F.relu(per_pair(margin, like=scores) - s_gap_bij), pair_bij, reduction)


def ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    sigma: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Logistic loss on the score gap of every pair of a list whose labels differ.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \log\bigl(1 + e^{-\sigma (s_i - s_j)}\bigr),
        \qquad P = \{(i, j) : y_i > y_j\}

    It is the cross entropy of the modelled probability :math:`P_{ij} = 1 / (1 + e^{-\sigma(s_i - s_j)})` that i comes before j,
    where the target is 1.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades; only their order within a row matters.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        sigma: steepness, in 1 / units of score.
        reduction: ``mean`` is over the rows that have at least one pair.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a pair gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    References:
        Burges et al. (2005), Learning to rank using gradient descent.

    Example:
        >>> import torch
        >>> ranknet_loss(torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 0.0]]))  # log 2
        tensor(0.6931)
    """
    scores, mask = check_lists(scores, labels, mask)
    s_gap_bij, pair_bij = pairs(scores, labels, mask)
    return mean_over_pairs(-F.logsigmoid(sigma * s_gap_bij), pair_bij, reduction)


class MarginRankingLoss(nn.Module):
    """:func:`margin_ranking_loss` with its default margin held.

    Args:
        margin: in units of score; used where the batch brings none.
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return margin_ranking_loss(scores, labels, mask, margin=self.margin if margin is None else margin)


class AdaptiveMarginRankingLoss(nn.Module):
    r""":func:`margin_ranking_loss` whose margin is ``k`` times the one that the batch brings: :math:`\max(0, s^- - s^+ + k m)`.

    Args:
        k: factor on the margins of the batch, for instance distances in the index that mined the negatives.
        margin: used, times ``k``, where the batch brings none.
    """

    def __init__(self, k: float = 1.0, margin: float = 1.0) -> None:
        super().__init__()
        self.k, self.margin = k, margin

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return margin_ranking_loss(scores, labels, mask, margin=self.k * (self.margin if margin is None else margin))


class RankNetLoss(nn.Module):
    """:func:`ranknet_loss` with its steepness held.

    Args:
        sigma: steepness, in 1 / units of score.
    """

    takes_margin = False

    def __init__(self, sigma: float = 1.0) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return ranknet_loss(scores, labels, mask, sigma=self.sigma)
