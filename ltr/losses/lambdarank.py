"""Pairwise logistic losses weighted by what a swap of two documents does to a ranking metric.

The weights come from the ranking by the current scores: a fresh stable sort of the detached scores, highest first. No gradient
passes through them. Letters of shapes: b row (one query), r rank, i upper rank (above) and j lower rank of a pair, n_r a vector
over ranks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.errors import InputError
from ltr.losses._blocks import sum_in_blocks
from ltr.losses._lists import Reduction, check_choice, check_lists, reduce_lists, relevant_and_not, two_labels
from ltr.losses._ranked import METRICS, Ranked, SwapMetric, best_dcg, discount, exp_gain, of_i, of_j, rank_lists, swap_weights

Scheme = Literal["ndcg1", "ndcg2", "ndcg2++"]
SCHEMES = ("ndcg1", "ndcg2", "ndcg2++")

# weights(span of i) -> the weight of a pair in all, and the part of it by which j should come above i: [B, I, J] each, where j
# runs from the first i of the span to the last rank; right where j is below i, any number elsewhere.
Weights = Callable[[slice], tuple[Tensor, Tensor]]


def lambdarank_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    metric: SwapMetric = "ndcg",
    k: int | None = None,
    sigma: float = 1.0,
    normalize: bool = False,
    max_grade: float = 4.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Logistic pair loss, each pair weighted by how much its swap changes a metric.

    .. math::
        \ell(s, y) = \sum_{y_i > y_j} |\Delta Z_{ij}| \, \frac{1}{\sigma} \log\bigl(1 + e^{-\sigma (s_i - s_j)}\bigr), \qquad
        -\frac{\partial \ell}{\partial s_i} = \sum_j \lambda_{ij} - \sum_j \lambda_{ji}, \quad
        \lambda_{ij} = \frac{|\Delta Z_{ij}|}{1 + e^{\sigma (s_i - s_j)}}

    :math:`\Delta Z_{ij}` is the metric after swapping i and j in the present ranking, minus the metric before: nDCG with gain
    :math:`2^y - 1`; ERR with :math:`R = (2^y - 1) / 2^{y_{max}}`; reciprocal rank, average precision and precision with relevance
    :math:`y > 0`.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        metric: ``ndcg``, ``err``, ``mrr``, ``ap`` or ``precision``.
        k: ranks that the metric counts; None counts all. ``precision`` needs one.
        sigma: steepness, in 1 / units of score.
        normalize: divide a row's sum by the sum of its weights, so that every row weighs the same.
        max_grade: the largest grade of the scale; only ``err`` uses it.
        reduction: ``mean`` is over the rows in which the metric can change.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row in which no swap changes the metric gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, for an unknown option, for ``precision`` without k, or a
            grade above ``max_grade`` with ``err``.

    Use:
        To train for one metric, the top of the list above all. Start from a trained ranker, or take it from the start with graded
        lists.

    Cost:
        O(N log N + k·N) time, O(N · block) memory: only pairs with a document in the top k are touched.

    References:
        Burges, Ragno & Le (2006), Learning to rank with nonsmooth cost functions; Burges (2010), From RankNet to LambdaRank to
        LambdaMART: an overview.

    Example:
        >>> import torch
        >>> scores, labels = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> lambdarank_loss(scores, labels)  # (1 - 1 / log2(3)) * log 2
        tensor(0.2558)
    """
    check_choice("metric", metric, METRICS)
    _check_cut(metric, k)
    scores, labels, mask = check_lists(scores, labels, mask)
    ranked = rank_lists(scores, labels, mask)
    delta = swap_weights(ranked, metric, k, max_grade)

    def weights(span: slice) -> tuple[Tensor, Tensor]:
        gap_ij = of_i(ranked.labels, span) - of_j(ranked.labels, span)
        delta_ij = delta(span)
        sign_ij = gap_ij.sign_()
        return delta_ij * sign_ij.abs(), delta_ij * sign_ij.clamp_(max=0).neg_()

    sum_b, weight_b = _weighted_sums(ranked, weights, k, sigma)
    if normalize:
        sum_b = sum_b / weight_b.where(weight_b > 0, 1.0)
    if metric in ("ndcg", "err"):
        has_signal_b = two_labels(exp_gain(labels), mask)
    else:
        has_signal_b = relevant_and_not(labels, mask)[2]
        if metric == "precision":
            has_signal_b &= mask.sum(dim=1) > k
    return reduce_lists(sum_b / sigma, has_signal_b, reduction)


def lambda_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    scheme: Scheme = "ndcg2++",
    mu: float = 10.0,
    k: int | None = None,
    sigma: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Bounds of nDCG as weighted logistic pair losses.

    .. math::
        \ell(s, y) = \sum_{i, j} w_{ij} \log_2\bigl(1 + e^{-\sigma (s_i - s_j)}\bigr), \qquad
        G_i = \frac{2^{y_i} - 1}{\max \mathrm{DCG}},\; D_i = \log_2(1 + \mathrm{rank}_i)

    .. math::
        w_{ij} = \begin{cases}
            G_i / D_i & \text{ndcg1, all pairs} \\
            \delta_{ij}\, |G_i - G_j| & \text{ndcg2, pairs with } y_i > y_j \\
            (\rho_{ij} + \mu\, \delta_{ij})\, |G_i - G_j| & \text{ndcg2++, pairs with } y_i > y_j
        \end{cases}
        \qquad
        \delta_{ij} = \left|\frac{1}{D_{|i-j|}} - \frac{1}{D_{|i-j|+1}}\right|,\;
        \rho_{ij} = \left|\frac{1}{D_i} - \frac{1}{D_j}\right|

    where :math:`D_{|i-j|}` is the discount at the distance of the two ranks. :math:`\rho_{ij} |G_i - G_j|` is LambdaRank's
    :math:`|\Delta \mathrm{nDCG}|`.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        scheme: ``ndcg1``, ``ndcg2`` or ``ndcg2++``.
        mu: weight of ndcg2 inside ndcg2++.
        k: only pairs with a document among the first k ranks count, and max DCG is that of k ranks; None counts all.
        sigma: steepness, in 1 / units of score.
        reduction: ``mean`` is over the rows that have two different labels.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row whose labels are all equal gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or for an unknown option.

    Use:
        Graded lists judged by nDCG: LambdaRank's idea with a bound behind it; ndcg2++ is the one to try first.

    Cost:
        O(N log N + k·N) time, O(N · block) memory.

    References:
        Wang et al. (2018), The LambdaLoss framework for ranking metric optimization.

    Example:
        >>> import torch
        >>> lambda_loss(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]), scheme="ndcg2")  # (1 - 1 / log2(3)) * 1
        tensor(0.3691)
    """
    check_choice("scheme", scheme, SCHEMES)
    _check_cut(scheme, k)
    scores, labels, real = check_lists(scores, labels, mask)
    ranked = rank_lists(scores, labels, real)
    gain_r = exp_gain(ranked.labels)
    gain_r = gain_r / best_dcg(gain_r, k).unsqueeze(1)
    inverse_d = discount(scores)
    # 1 / D at each distance of ranks, 0 excluded: no pair has it.
    by_distance = torch.cat([torch.zeros_like(inverse_d[:1]), (inverse_d[:-1] - inverse_d[1:]).abs()])
    ranks = torch.arange(len(inverse_d), device=scores.device)

    def weights(span: slice) -> tuple[Tensor, Tensor]:
        gain_i, gain_j = of_i(gain_r, span), of_j(gain_r, span)
        if scheme == "ndcg1":
            above_ij, below_ij = gain_i * of_i(inverse_d, span), gain_j * of_j(inverse_d, span)
            return above_ij + below_ij, below_ij + torch.zeros_like(above_ij)
        weight_ij = by_distance[(of_j(ranks, span) - of_i(ranks, span)).abs()]
        if scheme == "ndcg2++":
            weight_ij = (of_i(inverse_d, span) - of_j(inverse_d, span)).abs() + mu * weight_ij
        signed_ij = (gain_i - gain_j).mul_(weight_ij)
        return signed_ij.abs(), signed_ij.neg_().clamp_(min=0)

    sum_b, _ = _weighted_sums(ranked, weights, k, sigma)
    has_signal_b = two_labels(exp_gain(labels), mask if mask is None else real)
    return reduce_lists((sum_b / math.log(2)).masked_fill(~has_signal_b, 0.0), has_signal_b, reduction)


def _check_cut(what: str, k: int | None) -> None:
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1, or None for all ranks, got {k}")
    if what == "precision" and k is None:
        raise InputError("metric='precision' needs k, the ranks that it counts; got None")


def _weighted_sums(ranked: Ranked, weights: Weights, k: int | None, sigma: float) -> tuple[Tensor, Tensor]:
    """``[B]`` each: Σ w · log(1 + e^(−σ (s_winner − s_loser))) over the pairs of ranks i < j with i in the top k, and Σ w."""
    scores, real = sigma * ranked.scores, ranked.real.to(ranked.scores.dtype)

    def block(span: slice, docs: Sequence[Tensor], lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x_ij = docs[0].unsqueeze(2) - of_j(lists[0], span)
        with torch.no_grad():
            # As numbers, to multiply with: on a CPU an operation on bools takes several times as long. Padding comes last, so a
            # real j is enough.
            pair_ij = x_ij.new_ones(x_ij.shape[1:]).triu_(1) * of_j(real, span)
            both_ij, below_ij = (w.mul_(pair_ij) for w in weights(span))
        # log(1 + e^x) = log(1 + e^−x) + x: one logarithm for both directions.
        value_ij = below_ij * x_ij - both_ij * F.logsigmoid(x_ij)
        return value_ij.sum(dim=(1, 2)), both_ij.sum(dim=(1, 2))

    top = scores.shape[1] if k is None else min(k, scores.shape[1])
    return sum_in_blocks(block, [scores[:, :top]], [scores])


class LambdaRankLoss(nn.Module):
    """:func:`lambdarank_loss` with its options held.

    Args:
        metric: ``ndcg``, ``err``, ``mrr``, ``ap`` or ``precision``.
        k: ranks that the metric counts; None counts all.
        sigma: steepness, in 1 / units of score.
        normalize: whether every row weighs the same.
        max_grade: the largest grade of the scale; only ``err`` uses it.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(
        self,
        metric: SwapMetric = "ndcg",
        k: int | None = None,
        sigma: float = 1.0,
        normalize: bool = False,
        max_grade: float = 4.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_choice("metric", metric, METRICS)
        _check_cut(metric, k)
        self.metric, self.k, self.sigma, self.normalize = metric, k, sigma, normalize
        self.max_grade, self.reduction = max_grade, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        options = {"metric": self.metric, "k": self.k, "sigma": self.sigma, "normalize": self.normalize}
        return lambdarank_loss(scores, labels, mask, max_grade=self.max_grade, reduction=self.reduction, **options)


class LambdaLoss(nn.Module):
    """:func:`lambda_loss` with its options held.

    Args:
        scheme: ``ndcg1``, ``ndcg2`` or ``ndcg2++``.
        mu: weight of ndcg2 inside ndcg2++.
        k: only pairs with a document among the first k ranks count; None counts all.
        sigma: steepness, in 1 / units of score.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(
        self,
        scheme: Scheme = "ndcg2++",
        mu: float = 10.0,
        k: int | None = None,
        sigma: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_choice("scheme", scheme, SCHEMES)
        _check_cut(scheme, k)
        self.scheme, self.mu, self.k, self.sigma, self.reduction = scheme, mu, k, sigma, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        options = {"scheme": self.scheme, "mu": self.mu, "k": self.k, "sigma": self.sigma}
        return lambda_loss(scores, labels, mask, reduction=self.reduction, **options)
