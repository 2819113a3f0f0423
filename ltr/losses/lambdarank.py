"""Pairwise losses weighted by what a swap of two documents does to a ranking metric.

The weights come from the ranking by the current scores, sorted anew at every call; they carry no
gradient. Letters of shapes: b row (one query), r rank, i the better rank of a pair and j the worse
one, whichever document is the more relevant one; blocks of pairs are those of ``ranked.py``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import InputError, not_negative, one_of, positive
from ltr.gains import exp_gain
from ltr.losses.loss import Loss, Reduction
from ltr.losses.ranked import (
    Ranked,
    SwapMetric,
    best_dcg,
    block_margins,
    column_i,
    discount,
    rank_lists,
    row_j,
    swap_weights,
)
from ltr.pairs.blocks import sum_in_blocks
from ltr.pairs.choices import PairChoice, check_pairs
from ltr.pairs.choose import find_partners
from ltr.pairs.list_tensors import prepare_lists, relevant_and_not, two_labels

Scheme = Literal["ndcg1", "ndcg2", "ndcg2++"]
PairCost = Literal["logistic", "hinge", "squared hinge"]
# No "mean" here: it has no pairs of documents to swap.
SwapPairsName = Literal["all", "hardest", "semi-hard", "adjacent"]
SwapPairs = SwapPairsName | PairChoice

# chosen(span of i) -> (if_i_relevant, if_j_relevant), [B, I, J] bool each: whether ranks i and j are
# a chosen pair, if the document at i is the more relevant one and if that at j is.
ChosenInSpan = Callable[[slice], tuple[Tensor, Tensor]]


class LambdaRankLoss(Loss):
    r"""Pair loss, each pair weighted by how much its swap changes a metric.

    .. math::
        \ell(s, y) = \sum_{(i, j) \in P} |\Delta Z_{ij}| \; \phi(s_i - s_j - m_{ij}), \qquad
        \phi(x) = \frac{1}{\sigma} \log\bigl(1 + e^{-\sigma x}\bigr), \quad P \subseteq \{(i, j) : y_i > y_j\}

    :math:`\Delta Z_{ij}` is the metric after swapping i and j in the present ranking, minus the
    metric before: nDCG with gain :math:`2^y - 1`; ERR with :math:`R = (2^y - 1) / 2^{y_{max}}`;
    reciprocal rank, average precision and precision with relevance :math:`y > 0`. As published the
    cost :math:`\phi` is ``logistic``, without a margin, over all pairs; ``hinge`` is :math:`\max(0,
    -x)`, ``squared hinge`` its square. A row in which no swap changes the metric gives 0.

    A swap of two documents of one grade changes no metric. Burges' weights are 0 there too, so
    RankNet's ``ties: half`` has no counterpart here: such pairs would add 0.

    Use: To train for one metric, the top of the list above all. Start from a trained ranker, or
    take it from the start with graded lists.
    Cost: O(N log N + k·N) time, O(N · block) memory: only pairs with a document in the top k are
    touched.
    References: Burges, Ragno & Le (2006), Learning to rank with nonsmooth cost functions; Burges
    (2010), From RankNet to LambdaRank to LambdaMART: an overview.

    Args:
        metric: ``ndcg``, ``err``, ``mrr``, ``ap`` or ``precision``.
        k: ranks that the metric counts; None counts all. ``precision`` needs one.
        sigma: steepness of the logistic cost, in 1 / units of score.
        normalize: divide a row's sum by the sum of its weights, so that every row weighs the same.
        max_grade: the largest grade of the scale; only ``err`` uses it.
        cost: ``logistic``, ``hinge`` or ``squared hinge``.
        margin: in units of score; used where the batch brings none.
        pairs: ``all``, ``hardest``, ``semi-hard`` or ``adjacent``, as in
            :class:`ltr.losses.MarginRankingLoss`.

    Example:
        >>> scores, labels = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> LambdaRankLoss()(scores, labels)  # (1 - 1 / log2(3)) * log 2
        tensor(0.2558)
    """

    takes_margin = True

    def __init__(
        self,
        metric: SwapMetric = "ndcg",
        k: int | None = None,
        sigma: float = 1.0,
        normalize: bool = False,
        max_grade: float = 4.0,
        cost: PairCost = "logistic",
        margin: float = 0.0,
        pairs: SwapPairs = "all",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        one_of(get_args(SwapMetric), metric=metric)
        one_of(get_args(PairCost), cost=cost)
        check_pairs(pairs, get_args(SwapPairsName))
        self.metric = metric
        self.distinguishes_grades = metric in ("ndcg", "err")
        self.k = checked_cut(k)
        self.sigma = positive("sigma", sigma)
        self.normalize = normalize
        self.max_grade = positive("max_grade", max_grade)
        self.margin = not_negative("margin", margin)
        self.cost = cost
        self.pairs = pairs
        if metric == "precision" and k is None:
            raise InputError(
                "metric='precision' needs k, the ranks that it counts; got None", option="k"
            )

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        asked_margin = self.asked_margin(margin)
        ranked = rank_lists(scores, labels, mask, asked_margin)
        delta = swap_weights(ranked, self.metric, self.k, self.max_grade)
        real_r = ranked.real.to(scores.dtype)
        chosen = _chosen_in_spans(self.pairs, ranked)

        def block(
            span: slice, cut: Sequence[Tensor], whole: Sequence[Tensor]
        ) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                sign_ij = _signs(ranked.labels, real_r, chosen, span)
                weight_ij = delta(span) * sign_ij.abs()
            # The score of the more relevant document less that of the other one.
            gap_ij = sign_ij * (cut[0].unsqueeze(2) - row_j(whole[0], span))
            if isinstance(asked_margin, Tensor):
                if_i_relevant, if_j_relevant = block_margins(cut[1:], whole[1:], span)
                m_ij = torch.where(sign_ij > 0, if_i_relevant, if_j_relevant)
                # Anything may stand where there is no pair, NaN included.
                gap_ij = gap_ij - m_ij.masked_fill(sign_ij == 0, 0.0)
            elif asked_margin:
                gap_ij = gap_ij - asked_margin
            cost_ij = weight_ij * self._phi(gap_ij)
            return cost_ij.sum(dim=(1, 2)), weight_ij.sum(dim=(1, 2))

        cut, whole = ranked.block_inputs(self.k)
        sum_b, weight_b = sum_in_blocks(block, cut, whole)
        if self.normalize:
            sum_b = sum_b / weight_b.where(weight_b > 0, 1.0)
        return self.reduce(sum_b, self._can_change(labels, mask))

    def asked_margin(self, margin: Tensor | None) -> float | Tensor:
        return self.margin if margin is None else margin

    def _phi(self, x: Tensor) -> Tensor:
        """The cost of a pair whose gap exceeds its margin by x."""
        if self.cost == "logistic":
            return F.logsigmoid(self.sigma * x) / -self.sigma
        if self.cost == "hinge":
            return F.relu(-x)
        return F.relu(-x).square()

    def _can_change(self, labels: Tensor, mask: Tensor) -> Tensor:
        """``[B]`` bool: whether some order of the list has another value of the metric."""
        if self.metric in ("ndcg", "err"):
            return two_labels(labels.clamp(min=0), mask)
        _, _, has_both_b = relevant_and_not(labels, mask)
        if self.metric == "precision" and self.k:
            # A list of k documents or fewer counts whole, in any order.
            return has_both_b & (mask.sum(dim=1) > self.k)
        return has_both_b


class LambdaLoss(Loss):
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

    where :math:`D_{|i-j|}` is the discount at the distance of the two ranks. :math:`\rho_{ij} |G_i
    - G_j|` is LambdaRank's :math:`|\Delta \mathrm{nDCG}|`.

    Use: Graded lists judged by nDCG: LambdaRank's idea with a bound behind it; ndcg2++ is the one
    to try first.
    Cost: O(N log N + k·N) time, O(N · block) memory.
    References: Wang et al. (2018), The LambdaLoss framework for ranking metric optimization.

    Args:
        scheme: ``ndcg1``, ``ndcg2`` or ``ndcg2++``.
        mu: weight of ndcg2 inside ndcg2++.
        k: only pairs with a document among the first k ranks count, and max DCG is that of k ranks;
            None counts all.
        sigma: steepness, in 1 / units of score.

    Example:
        >>> loss = LambdaLoss(scheme="ndcg2")
        >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))  # (1 - 1 / log2(3)) * 1
        tensor(0.3691)
    """

    def __init__(
        self,
        scheme: Scheme = "ndcg2++",
        mu: float = 10.0,
        k: int | None = None,
        sigma: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        one_of(get_args(Scheme), scheme=scheme)
        self.scheme = scheme
        self.mu = not_negative("mu", mu)
        self.k = checked_cut(k)
        self.sigma = positive("sigma", sigma)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        ranked = rank_lists(self.sigma * scores, labels, mask)
        weights = self._weights(ranked)
        real_r = ranked.real.to(scores.dtype)

        def block(
            span: slice, cut: Sequence[Tensor], whole: Sequence[Tensor]
        ) -> tuple[Tensor, Tensor]:
            x_ij = cut[0].unsqueeze(2) - row_j(whole[0], span)
            with torch.no_grad():
                # Each pair once, with i above j; padding comes last, so a real j is enough. As
                # numbers, to multiply with: on a CPU an operation on bools takes several times as
                # long as one on floats.
                pair_ij = x_ij.new_ones(x_ij.shape[1:]).triu_(1) * row_j(real_r, span)
                total_ij, j_first_ij = weights(span)
                total_ij.mul_(pair_ij)
                j_first_ij.mul_(pair_ij)
            # log(1 + e^x) = log(1 + e^-x) + x: one logarithm for both directions.
            value_ij = j_first_ij * x_ij - total_ij * F.logsigmoid(x_ij)
            value_b = value_ij.sum(dim=(1, 2))
            return value_b, torch.zeros_like(value_b)

        cut, whole = ranked.block_inputs(self.k)
        sum_b, _ = sum_in_blocks(block, cut, whole)
        value_b = sum_b / math.log(2)
        has_signal_b = two_labels(labels.clamp(min=0), mask)
        return self.reduce(value_b.masked_fill(~has_signal_b, 0.0), has_signal_b)

    def _weights(self, ranked: Ranked) -> Callable[[slice], tuple[Tensor, Tensor]]:
        """The function that answers, for the pairs of ranks of a span, w_ij + w_ji, and w_ji: the
        part by which j should come first. Both are new tensors, for the caller to change in place.
        """
        gain_r = exp_gain(ranked.labels)
        gain_r = gain_r / best_dcg(gain_r, self.k).unsqueeze(1)
        discount_r = discount(gain_r)  # 1 / D
        # The delta of the formula at each distance |i - j| from 1 on; no pair has the distance 0.
        delta_by_distance = torch.cat(
            [torch.zeros_like(discount_r[:1]), (discount_r[:-1] - discount_r[1:]).abs()]
        )
        ranks = torch.arange(len(discount_r), device=gain_r.device)

        def weights(span: slice) -> tuple[Tensor, Tensor]:
            gain_i = column_i(gain_r, span)
            gain_j = row_j(gain_r, span)
            if self.scheme == "ndcg1":
                i_first = gain_i * column_i(discount_r, span)
                j_first = gain_j * row_j(discount_r, span)
                total_ij = i_first + j_first
                return total_ij, j_first.expand_as(total_ij).clone()
            weight_ij = delta_by_distance[(row_j(ranks, span) - column_i(ranks, span)).abs()]
            if self.scheme == "ndcg2++":
                rho_ij = (column_i(discount_r, span) - row_j(discount_r, span)).abs()
                weight_ij = rho_ij + self.mu * weight_ij
            # Above 0 where i has the larger gain, below 0 where j has.
            signed_ij = (gain_i - gain_j).mul_(weight_ij)
            total_ij = signed_ij.abs()
            j_first_ij = signed_ij.neg_().clamp_(min=0)
            return total_ij, j_first_ij

        return weights


def checked_cut(k: int | None) -> int | None:
    """The cut, refused below rank 1."""
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1, or None for all ranks, got {k}", option="k")
    return k


def _signs(labels_r: Tensor, real_r: Tensor, chosen: ChosenInSpan | None, span: slice) -> Tensor:
    """``[B, I, J]``: of chosen pairs 1 if rank i is more relevant, -1 if rank j is; else 0."""
    label_gap_ij = column_i(labels_r, span) - row_j(labels_r, span)
    # Each pair once, with i above j; padding comes last, so a real j is enough.
    sign_ij = label_gap_ij.sign_().triu_(1) * row_j(real_r, span)
    if chosen is not None:
        if_i_relevant, if_j_relevant = chosen(span)
        sign_ij *= torch.where(sign_ij > 0, if_i_relevant, if_j_relevant)
    return sign_ij


def _chosen_in_spans(pairs: SwapPairs, ranked: Ranked) -> ChosenInSpan | None:
    """The function that answers which pairs of a span are chosen; None for all pairs."""
    if pairs == "all":
        return None
    if isinstance(pairs, PairChoice):
        mask = pairs.pairs(ranked.scores.detach(), ranked.labels, ranked.real)

        def by_mask(span: slice) -> tuple[Tensor, Tensor]:
            return mask[:, span, span.start :], mask[:, span.start :, span].transpose(1, 2)

        return by_mask
    partner_r, key_r = find_partners(ranked.scores, ranked.labels, ranked.real, pairs)

    def by_partner(span: slice) -> tuple[Tensor, Tensor]:
        if_i_relevant = column_i(partner_r, span) == row_j(key_r, span)
        if_j_relevant = row_j(partner_r, span) == column_i(key_r, span)
        return if_i_relevant, if_j_relevant

    return by_partner
