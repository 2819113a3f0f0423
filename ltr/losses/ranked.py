"""Lists in the order of their current scores, and what a swap of two ranks does to a metric.

Letters of shapes: b row (one query), r rank, i a rank and j a lower one (further down) of a pair.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.gains import exp_gain
from ltr.pairs.lists import check_margin, clean_margin

SwapMetric = Literal["ndcg", "err", "mrr", "ap", "precision"]

# delta(span of i) -> |ΔZ| of swapping ranks i and j, [B, I, J], where j runs from the first i of
# the span to the last rank; right where j is below i, anything elsewhere.
Delta = Callable[[slice], Tensor]


class Ranked(NamedTuple):
    """Lists by rank, best first."""

    scores: Tensor  # [B, R] with their gradient
    labels: Tensor  # [B, R]; 0 at the padding
    real: Tensor  # [B, R] bool, False at the padding, which comes last
    margin: Tensor | None = None  # [B, R] (of the less relevant document) or [B, R, R] (per pair)

    def cut(self, k: int | None) -> tuple[list[Tensor], list[Tensor]]:
        """What :func:`ltr.pairs.blocks.sum_in_blocks` takes for the pairs with a document
        among the first k ranks.
        """
        docs = [self.scores[:, :k]]
        lists = [self.scores]
        m = self.margin
        if m is not None and m.ndim == 3:
            docs += [m[:, :k], m.transpose(1, 2)[:, :k]]
        elif m is not None:
            docs.append(m[:, :k])
            lists.append(m)
        return docs, lists


def rank_lists(
    scores: Tensor, labels: Tensor, mask: Tensor, margin: float | Tensor | None = None
) -> Ranked:
    """Sort by the current scores: highest first, stable, anew at every call."""
    order = (
        scores.detach().masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    )
    if not isinstance(margin, Tensor):
        margin = None
    elif (margin := clean_margin(check_margin(margin, scores), labels, mask)).ndim == 3:
        margin = margin.gather(1, order.unsqueeze(2).expand_as(margin))
        margin = margin.gather(2, order.unsqueeze(1).expand_as(margin))
    else:
        margin = margin.expand_as(scores).gather(1, order)
    return Ranked(scores.gather(1, order), labels.gather(1, order), mask.gather(1, order), margin)


def ranked_margins(
    docs: Sequence[Tensor], lists: Sequence[Tensor], span: slice
) -> tuple[Tensor, Tensor]:
    """The margins of a block, where the upper document of a pair is the more relevant one, and
    where the lower one is.
    """
    if lists:  # of the less relevant document
        return of_j(lists[0], span), docs[0].unsqueeze(2)
    return docs[0][:, :, span.start :], docs[1][:, :, span.start :]


def discount(like: Tensor, k: int | None = None) -> Tensor:
    """``[R]``: 1 / log2(1 + rank), and 0 beyond rank k, for ``like`` [B, R]."""
    ranks_r = torch.arange(1, like.shape[1] + 1, device=like.device, dtype=like.dtype)
    discount_r = torch.log2(1 + ranks_r).reciprocal()
    return discount_r if k is None else discount_r * _counted(like, k)


def best_dcg(gains: Tensor, k: int | None = None) -> Tensor:
    """``[B]``: the discounted gain of the best order, to divide by: 1 where it is 0."""
    best_b = (gains.sort(dim=1, descending=True).values * discount(gains, k)).sum(dim=1)
    return best_b.where(best_b > 0, 1.0)


def swap_weights(ranked: Ranked, metric: SwapMetric, k: int | None, max_grade: float) -> Delta:
    """The function that answers |ΔZ| for the pairs of a span of ranks with all ranks; everything
    without gradient.
    """
    with torch.no_grad():
        if metric == "err":
            return _err(ranked, k, max_grade)
        return {"ndcg": _ndcg, "mrr": _mrr, "ap": _ap, "precision": _precision}[metric](ranked, k)


def _counted(like: Tensor, k: int | None) -> Tensor:
    """``[R]``: 1 for the ranks that a metric counts, 0 beyond k."""
    n_ranks = like.shape[1]
    return (torch.arange(n_ranks, device=like.device) < (n_ranks if k is None else k)).to(
        like.dtype
    )


def _reciprocal_ranks(like: Tensor, k: int | None) -> Tensor:
    """``[R]``: 1 / rank, and 0 beyond rank k."""
    return _counted(like, k) / torch.arange(1, like.shape[1] + 1, device=like.device)


def of_i(x: Tensor, span: slice) -> Tensor:
    """``[…, R]`` at the ranks of a span, as ``[…, I, 1]``."""
    return x[..., span].unsqueeze(-1)


def of_j(x: Tensor, span: slice) -> Tensor:
    """``[…, R]`` from the first rank of a span on, as ``[…, 1, J]``."""
    return x[..., span.start :].unsqueeze(-2)


def _ndcg(ranked: Ranked, k: int | None) -> Delta:
    gain_r = exp_gain(ranked.labels)
    discount_r = discount(ranked.scores, k)
    gain_r = gain_r / best_dcg(gain_r, k).unsqueeze(1)
    return lambda span: (
        (of_i(gain_r, span) - of_j(gain_r, span)).abs()
        * (of_i(discount_r, span) - of_j(discount_r, span)).abs()
    )


def _precision(ranked: Ranked, k: int | None) -> Delta:
    assert k is not None, "the precision of all ranks is that of any order"
    relevant_r = (ranked.labels > 0).to(ranked.scores.dtype)
    counted_r = _counted(ranked.scores, k)
    return lambda span: (
        (of_i(relevant_r, span) - of_j(relevant_r, span)).abs()
        * (of_i(counted_r, span) - of_j(counted_r, span)).abs()
        / k
    )


def _mrr(ranked: Ranked, k: int | None) -> Delta:
    """Only the first relevant rank counts: a swap changes it if it moves that document down, or
    another one above it.
    """
    relevant_r = ranked.labels > 0
    n_ranks = relevant_r.shape[1]
    at = F.pad(
        _reciprocal_ranks(ranked.scores, k), (0, 1)
    )  # one rank more, where nothing stands, counts 0
    rank_r = torch.arange(n_ranks, device=relevant_r.device)
    nth_r = relevant_r.cumsum(dim=1)
    first_b, second_b = (
        rank_r.masked_fill(~(relevant_r & (nth_r == nth)), n_ranks)
        .amin(dim=1, keepdim=True)
        .unsqueeze(2)
        for nth in (1, 2)
    )

    def delta(span: slice) -> Tensor:
        rank_i = of_i(rank_r, span)
        rank_j = of_j(rank_r, span)
        down = of_i(relevant_r, span) & ~of_j(relevant_r, span) & (rank_i == first_b)
        up = ~of_i(relevant_r, span) & of_j(relevant_r, span) & (rank_i < first_b)
        after = torch.where(down, at[torch.minimum(second_b, rank_j)], at[:-1][rank_i])
        return (after - at[first_b]).abs().masked_fill(~(down | up), 0.0)

    return delta


def _ap(ranked: Ranked, k: int | None) -> Delta:
    """Moving a relevant document changes its own precision, and that of the relevant ones between
    by one hit.
    """
    relevant_r = (ranked.labels > 0).to(ranked.scores.dtype)
    n_relevant_b = relevant_r.sum(dim=1).clamp(min=1).view(-1, 1, 1)
    reciprocal_r = _reciprocal_ranks(ranked.scores, k)
    hits_r = relevant_r.cumsum(dim=1)
    precision_r = hits_r * reciprocal_r
    with_one_more_r = (hits_r + 1) * reciprocal_r
    up_to_r = (relevant_r * reciprocal_r).cumsum(dim=1)
    before_r = up_to_r - relevant_r * reciprocal_r

    def delta(span: slice) -> Tensor:
        between = of_j(before_r, span) - of_i(up_to_r, span)
        down = of_j(precision_r, span) - of_i(precision_r, span) - between
        up = of_i(with_one_more_r, span) - of_j(precision_r, span) + between
        change = torch.where(of_i(relevant_r, span) > 0, down, up).abs() / n_relevant_b
        return change * (of_i(relevant_r, span) - of_j(relevant_r, span)).abs()

    return delta


def _err(ranked: Ranked, k: int | None, max_grade: float) -> Delta:
    r"""With :math:`T_r = \prod_{q < r} (1 - R_q)`, the swap of i and j changes ERR by
    :math:`(R_i - R_j) \bigl((\sum_{i < r < j} R_r T_r / r + T_j / j) / (1 - R_i) - T_i / i\bigr)`:
    ranks above i and below j keep theirs.
    """
    if ranked.labels.numel() and ranked.labels.max() > max_grade:
        raise ValueError(
            f"ERR needs grades up to max_grade={max_grade:g}, got {ranked.labels.max():g}; raise it"
        )
    satisfied_r = exp_gain(ranked.labels) / 2.0**max_grade
    reading_r = F.pad(torch.cumprod(1 - satisfied_r, dim=1), (1, 0), value=1.0)[:, :-1]
    weight_r = reading_r * _reciprocal_ranks(ranked.scores, k)
    up_to_r = (satisfied_r * weight_r).cumsum(dim=1)
    before_r = up_to_r - satisfied_r * weight_r

    def delta(span: slice) -> Tensor:
        lower = (of_j(before_r, span) - of_i(up_to_r, span) + of_j(weight_r, span)) / (
            1 - of_i(satisfied_r, span)
        )
        return (
            (of_i(satisfied_r, span) - of_j(satisfied_r, span)) * (lower - of_i(weight_r, span))
        ).abs()

    return delta
