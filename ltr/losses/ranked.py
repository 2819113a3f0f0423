"""Lists in the order of their current scores, and what a swap of two ranks does to a metric.

Letters of shapes: b row (one query), r rank, i a rank and j a lower one (further down) of a pair.
``x_r`` is ``[R]`` or ``[B, R]``. A block of pairs has the ranks i of a span, and the ranks j from
the first i of that span to the last rank: ``x_ij`` is ``[B, I, J]``.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import InputError
from ltr.gains import exp_gain
from ltr.pairs.list_tensors import as_margin, clean_margin

SwapMetric = Literal["ndcg", "err", "mrr", "ap", "precision"]

# delta(span of i) -> |ΔZ| of swapping ranks i and j, [B, I, J]: right where rank j is below rank i,
# anything elsewhere.
Delta = Callable[[slice], Tensor]


class Ranked(NamedTuple):
    """Lists by rank, best first."""

    scores: Tensor  # [B, R] with their gradient
    labels: Tensor  # [B, R]; 0 at the padding
    real: Tensor  # [B, R] bool, False at the padding, which comes last
    margin: Tensor | None = None  # [B, R] (of the less relevant document) or [B, R, R] (per pair)

    def block_inputs(self, k: int | None) -> tuple[list[Tensor], list[Tensor]]:
        """The ``cut`` and ``whole`` of :func:`ltr.pairs.blocks.sum_in_blocks` for the pairs with a
        document among the first k ranks: the scores, and behind them what :func:`block_margins`
        reads.
        """
        cut = [self.scores[:, :k]]
        whole = [self.scores]
        margin = self.margin
        if margin is None:
            return cut, whole
        if margin.ndim == 3:
            # Both are cut along i: the margins of i over j, and those of j over i.
            cut += [margin[:, :k], margin.transpose(1, 2)[:, :k]]
        else:
            cut.append(margin[:, :k])
            whole.append(margin)
        return cut, whole


def rank_lists(
    scores: Tensor, labels: Tensor, mask: Tensor, margin: float | Tensor | None = None
) -> Ranked:
    """Sort by the current scores: highest first, stable, anew at every call.

    A margin that is one number is the same at all ranks and is left out.
    """
    keys = scores.detach().masked_fill(~mask, -torch.inf)
    order = keys.argsort(dim=1, descending=True, stable=True)
    if isinstance(margin, Tensor):
        margin = _rank_margin(clean_margin(as_margin(margin, scores), labels, mask), order)
    else:
        margin = None
    return Ranked(scores.gather(1, order), labels.gather(1, order), mask.gather(1, order), margin)


def _rank_margin(margin: Tensor, order: Tensor) -> Tensor:
    """The margin by rank, for the columns ``order`` ``[B, R]`` of the ranks."""
    if margin.ndim == 3:
        margin = margin.gather(1, order.unsqueeze(2).expand_as(margin))
        return margin.gather(2, order.unsqueeze(1).expand_as(margin))
    return margin.expand_as(order).gather(1, order)


def block_margins(
    cut: Sequence[Tensor], whole: Sequence[Tensor], span: slice
) -> tuple[Tensor, Tensor]:
    """The margins of a block: those of the pairs in which i is the more relevant document, then
    those in which j is.

    Args:
        cut, whole: what :meth:`Ranked.block_inputs` has behind the scores.
        span: the ranks i.
    """
    if whole:  # one margin per document: it is that of the less relevant one
        (m_i,) = cut
        (m_j,) = whole
        return row_j(m_j, span), m_i.unsqueeze(2)
    m_ij, m_ji = cut
    return m_ij[:, :, span.start :], m_ji[:, :, span.start :]


def discount(like: Tensor, k: int | None = None) -> Tensor:
    """``[R]``: 1 / log2(1 + rank), and 0 beyond rank k; type and R are those of ``like`` ``[B, R]``."""
    ranks_r = torch.arange(1, like.shape[1] + 1, device=like.device, dtype=like.dtype)
    discount_r = torch.log2(1 + ranks_r).reciprocal()
    if k is None:
        return discount_r
    return discount_r * _counted(like, k)


def best_dcg(gains: Tensor, k: int | None = None) -> Tensor:
    """``[B]``: the discounted gain of the best order, to divide by: 1 where it is 0."""
    sorted_gains = gains.sort(dim=1, descending=True).values
    best_b = (sorted_gains * discount(gains, k)).sum(dim=1)
    return best_b.where(best_b > 0, 1.0)


def swap_weights(ranked: Ranked, metric: SwapMetric, k: int | None, max_grade: float) -> Delta:
    """The function that answers |ΔZ| for a span of ranks, from what is computed here once for all
    of them, without gradient.
    """
    with torch.no_grad():
        if metric == "ndcg":
            return _ndcg(ranked, k)
        if metric == "err":
            return _err(ranked, k, max_grade)
        if metric == "mrr":
            return _mrr(ranked, k)
        if metric == "ap":
            return _ap(ranked, k)
        return _precision(ranked, k)


def _counted(like: Tensor, k: int | None) -> Tensor:
    """``[R]``: 1 for the ranks that a metric counts, 0 beyond k."""
    n_ranks = like.shape[1]
    n_counted = n_ranks if k is None else k
    return (torch.arange(n_ranks, device=like.device) < n_counted).to(like.dtype)


def _reciprocal_ranks(like: Tensor, k: int | None) -> Tensor:
    """``[R]``: 1 / rank, and 0 beyond rank k."""
    return _counted(like, k) / torch.arange(1, like.shape[1] + 1, device=like.device)


def column_i(x: Tensor, span: slice) -> Tensor:
    """``[…, R]`` at the ranks of a span, as ``[…, I, 1]``."""
    return x[..., span].unsqueeze(-1)


def row_j(x: Tensor, span: slice) -> Tensor:
    """``[…, R]`` from the first rank of a span on, as ``[…, 1, J]``."""
    return x[..., span.start :].unsqueeze(-2)


def _ndcg(ranked: Ranked, k: int | None) -> Delta:
    gain_r = exp_gain(ranked.labels)
    discount_r = discount(ranked.scores, k)
    gain_r = gain_r / best_dcg(gain_r, k).unsqueeze(1)

    def delta(span: slice) -> Tensor:
        gain_gap = (column_i(gain_r, span) - row_j(gain_r, span)).abs()
        discount_gap = (column_i(discount_r, span) - row_j(discount_r, span)).abs()
        return gain_gap * discount_gap

    return delta


def _precision(ranked: Ranked, k: int | None) -> Delta:
    assert k is not None, "the precision of all ranks is that of any order"
    relevant_r = (ranked.labels > 0).to(ranked.scores.dtype)
    counted_r = _counted(ranked.scores, k)

    def delta(span: slice) -> Tensor:
        one_is_relevant = (column_i(relevant_r, span) - row_j(relevant_r, span)).abs()
        one_is_counted = (column_i(counted_r, span) - row_j(counted_r, span)).abs()
        return one_is_relevant * one_is_counted / k

    return delta


def _mrr(ranked: Ranked, k: int | None) -> Delta:
    """A swap counts if it moves the first relevant rank down, or another one above it."""
    relevant_r = ranked.labels > 0
    n_ranks = relevant_r.shape[1]
    # The index n_ranks stands for no document: its reciprocal rank is 0.
    reciprocal_r = F.pad(_reciprocal_ranks(ranked.scores, k), (0, 1))
    rank_r = torch.arange(n_ranks, device=relevant_r.device)  # from 0
    n_relevant_r = relevant_r.cumsum(dim=1)

    def rank_of_relevant(nth: int) -> Tensor:
        """``[B, 1, 1]``: the index of the nth relevant rank, n_ranks if there is none."""
        is_nth_r = relevant_r & (n_relevant_r == nth)
        return rank_r.masked_fill(~is_nth_r, n_ranks).amin(dim=1).view(-1, 1, 1)

    first_b = rank_of_relevant(1)
    second_b = rank_of_relevant(2)

    def delta(span: slice) -> Tensor:
        rank_i = column_i(rank_r, span)
        rank_j = row_j(rank_r, span)
        # Down: the first relevant document goes from i to j, and is the first there, or the second
        # one is. Up: another relevant document comes to i, above the first one.
        down = column_i(relevant_r, span) & ~row_j(relevant_r, span) & (rank_i == first_b)
        up = ~column_i(relevant_r, span) & row_j(relevant_r, span) & (rank_i < first_b)
        first_after = torch.where(down, torch.minimum(second_b, rank_j), rank_i)
        change = (reciprocal_r[first_after] - reciprocal_r[first_b]).abs()
        return change.masked_fill(~(down | up), 0.0)

    return delta


def _ap(ranked: Ranked, k: int | None) -> Delta:
    """Moving a relevant document changes its own precision, and that of the relevant ones between
    the two ranks by one hit.
    """
    relevant_r = (ranked.labels > 0).to(ranked.scores.dtype)
    n_relevant_b = relevant_r.sum(dim=1).clamp(min=1).view(-1, 1, 1)
    reciprocal_r = _reciprocal_ranks(ranked.scores, k)
    hits_r = relevant_r.cumsum(dim=1)
    precision_r = hits_r * reciprocal_r
    precision_with_one_more_r = (hits_r + 1) * reciprocal_r
    # Sums of 1 / rank over the relevant documents, with the rank itself and without it.
    up_to_r = (relevant_r * reciprocal_r).cumsum(dim=1)
    before_r = up_to_r - relevant_r * reciprocal_r

    def delta(span: slice) -> Tensor:
        # What one hit more or less changes of the relevant documents between i and j.
        between = row_j(before_r, span) - column_i(up_to_r, span)
        # Down from i to j: the hits at j stay as many. Up from j to i: i has one hit more.
        down = row_j(precision_r, span) - column_i(precision_r, span) - between
        up = column_i(precision_with_one_more_r, span) - row_j(precision_r, span) + between
        change = torch.where(column_i(relevant_r, span) > 0, down, up).abs() / n_relevant_b
        one_is_relevant = (column_i(relevant_r, span) - row_j(relevant_r, span)).abs()
        return change * one_is_relevant

    return delta


def _err(ranked: Ranked, k: int | None, max_grade: float) -> Delta:
    r"""With :math:`T_r = \prod_{q < r} (1 - R_q)`, and :math:`T_{r \setminus i}` that product without
    its factor of i, the swap of i and j changes ERR by :math:`(R_i - R_j) \bigl(\sum_{i < r < j} R_r
    T_{r \setminus i} / r + T_{j \setminus i} / j - T_i / i\bigr)`: ranks above i and below j keep
    theirs.
    """
    if ranked.labels.numel() and ranked.labels.max() > max_grade:
        raise InputError(
            f"ERR needs grades up to max_grade={max_grade:.9g}, got {ranked.labels.max():.9g}; raise it",
            option="max_grade",
        )
    satisfied_r = exp_gain(ranked.labels, max_grade)
    # T: the product over the ranks above, so the running product moves down by one rank.
    reaches_r = F.pad(torch.cumprod(1 - satisfied_r, dim=1), (1, 0), value=1.0)[:, :-1]
    reciprocal_r = _reciprocal_ranks(ranked.scores, k)
    ranks_r = torch.arange(satisfied_r.shape[1], device=satisfied_r.device)

    def delta(span: slice) -> Tensor:
        is_below_i = row_j(ranks_r, span) > column_i(ranks_r, span)
        # T without i: T_i times the product over the ranks between. Not T_j / (1 - R_i): R_i is 1
        # for a large grade, rounded.
        continues_ij = torch.where(is_below_i, 1 - row_j(satisfied_r, span), 1.0)
        between_ij = F.pad(continues_ij.cumprod(dim=2), (1, 0), value=1.0)[..., :-1]
        weight_ij = column_i(reaches_r, span) * between_ij * row_j(reciprocal_r, span)
        gained_ij = (row_j(satisfied_r, span) * weight_ij).masked_fill(~is_below_i, 0.0)
        # The sum over the ranks between: up to j, less that of j.
        sum_between_ij = gained_ij.cumsum(dim=2) - gained_ij
        satisfied_gap = column_i(satisfied_r, span) - row_j(satisfied_r, span)
        before_i = column_i(reaches_r * reciprocal_r, span)
        return (satisfied_gap * (sum_between_ij + weight_ij - before_i)).abs()

    return delta
