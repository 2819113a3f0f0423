"""The pairwise family: the mean of a cost over chosen pairs (i, j) with y_i > y_j inside a list.

Letters of shapes: b row (one query), p packed upper document (:class:`ltr.losses._uppers.Uppers`), n any document of the list.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ltr.losses import _sorted
from ltr.losses._blocks import by_rows, is_short, sorting_pays, spans, sum_in_blocks
from ltr.losses._lists import Reduction, check_choice, check_margin, check_shapes, fill_padding, reduce_lists
from ltr.losses._uppers import Uppers, find_uppers, sum_below

# cost(s_i, s_j, y_i, y_j, m_ij): elementwise, over whatever shapes broadcast.
Cost = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Exact = Literal["hinge", "squared hinge"]

Pairs = Literal["all", "hardest", "semi-hard", "adjacent", "mean"]
PAIRS = ("all", "hardest", "semi-hard", "adjacent", "mean")


def mean_over_pairs(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    margin: float | Tensor,
    pairs: Pairs,
    reduction: Reduction,
    cost: Cost,
    exact: Exact | None = None,
) -> Tensor:
    """Mean of a cost over the chosen pairs of each row, then over the rows that have one.

    Args:
        scores, labels, mask: as the losses take them.
        margin: as :func:`ltr.losses._lists.check_margin` takes it.
        pairs: which pairs of a row count.
        reduction: over rows.
        cost: of a pair.
        exact: names a cost whose sum over pairs can be had by sorting.
    """
    check_choice("pairs", pairs, PAIRS)
    sum_b, _, n_pairs_b = pair_sums(scores, labels, mask, margin, cost, exact, pairs)
    return reduce_lists(sum_b / n_pairs_b.clamp(min=1), n_pairs_b > 0, reduction)


def pair_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    margin: float | Tensor,
    cost: Cost,
    exact: Exact | None = None,
    pairs: Pairs = "all",
) -> tuple[Tensor, Tensor, Tensor]:
    """``[B]`` each: the sum of a cost over the chosen pairs of each row, how many of them cost something, and how many there are.

    Here is the switch by size: short lists take all N² pairs, hinges over many more relevant documents are sorted, and everything
    else takes the pairs of the more relevant documents, in blocks.
    """
    padded = mask is not None
    scores, labels, mask = check_shapes(scores, labels, mask)

    def rows(scores: Tensor, labels: Tensor, mask: Tensor, margin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if padded:
            scores, labels = fill_padding(scores, labels, mask)
        if margin.shape == scores.shape:
            # A policy may leave anything, NaN included, where no document stands that is less relevant than another.
            high = labels.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
            margin = margin.masked_fill(~mask | (labels == high), 0.0)
        if pairs == "all" and is_short(scores):
            bound = labels.masked_fill(~mask, -torch.inf)
            return _block_sums(scores, labels, mask, margin, cost, scores, labels, bound, margin)
        uppers = find_uppers(labels, mask)
        if pairs not in ("all", "adjacent"):
            cost_p, chosen_p = _chosen_costs(scores, labels, mask, uppers, margin, cost, pairs)
            cost_p = cost_p.masked_fill(~chosen_p, 0.0)
            return cost_p.sum(dim=1), (cost_p > 0).sum(dim=1), chosen_p.sum(dim=1)
        adjacent = pairs == "adjacent"
        if exact and margin.ndim < 3 and sorting_pays(uppers.columns.shape[1], uppers.levels):
            squared = exact == "squared hinge"
            return *_sorted.hinge_sums(scores, labels, mask, uppers, margin, squared, adjacent), uppers.n_pairs(adjacent)
        bound = uppers.label_below() if adjacent else uppers.labels.masked_fill(~uppers.real, -torch.inf)
        margin_i = uppers.take(margin) if margin.ndim == 3 else margin
        return _block_sums(
            scores, labels, mask, margin, cost, uppers.take(scores), uppers.take(labels), bound, margin_i, adjacent
        )

    def rows_or_nan(scores: Tensor, labels: Tensor, mask: Tensor, margin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sum_b, *counts = rows(scores, labels, mask, margin)
        # A NaN that comes in goes out, also from a document that no chosen pair has.
        return sum_b + 0.0 * (scores + labels).masked_fill(~mask, 0.0).sum(dim=1), *counts

    return by_rows(rows_or_nan, scores, labels, mask, check_margin(margin, scores))


def _block_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    margin: Tensor,
    cost: Cost,
    scores_i: Tensor,
    labels_i: Tensor,
    bound_i: Tensor,
    margin_i: Tensor,
    adjacent: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`pair_sums`, for the pairs of documents i ``[B, P]`` with those of the list whose label is below (or is) their
    bound.
    """
    labels_j = labels.masked_fill(~mask, torch.inf).unsqueeze(1)  # padding is below nothing
    compare = torch.eq if adjacent else torch.lt

    def block(span: slice, docs: Sequence[Tensor], lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        s_i, s_j, y_i, y_j = docs[0].unsqueeze(2), lists[0].unsqueeze(1), labels_i[:, span].unsqueeze(2), labels.unsqueeze(1)
        # Pairs as numbers, to multiply with: on a CPU an operation on bools takes several times as long as one on floats.
        pair_ij = compare(labels_j, bound_i[:, span].unsqueeze(2), out=scores.new_empty(0))
        # A margin per pair may be anything, NaN included, where there is no pair.
        m_ij = docs[1].masked_fill(pair_ij == 0, 0.0) if margin.ndim == 3 else lists[1].unsqueeze(1)
        cost_ij = cost(s_i, s_j, y_i, y_j, m_ij) * pair_ij
        counts = [cost_ij.detach().sign().sum(dim=(1, 2)), pair_ij.sum(dim=(1, 2))]
        return cost_ij.sum(dim=(1, 2)), torch.stack(counts, dim=1).long()

    per_pair = margin.ndim == 3
    docs, lists = ([scores_i, margin_i], [scores]) if per_pair else ([scores_i], [scores, margin.expand_as(scores)])
    sum_b, counts = sum_in_blocks(block, docs, lists)
    return sum_b, counts[:, 0], counts[:, 1]


def _chosen_costs(
    scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers, margin: Tensor, cost: Cost, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """The cost of one chosen pair per upper document, or per row: ``[B, Q]``, and which of them are real."""
    s_i, y_i = uppers.take(scores), uppers.take(labels)
    per_pair = margin.ndim == 3
    margin = uppers.take(margin) if per_pair else margin.expand_as(scores)
    if pairs == "mean":
        n_p = uppers.n_below().clamp(min=1)
        if per_pair:
            below = labels.masked_fill(~mask, torch.inf).unsqueeze(1) < y_i.unsqueeze(2)
            m_ij = margin.masked_fill(~below, 0.0).sum(dim=2) / n_p
        else:
            m_ij = sum_below(margin, uppers) / n_p
        return cost(s_i, sum_below(scores, uppers) / n_p, y_i, sum_below(labels, uppers) / n_p, m_ij), uppers.real
    real = uppers.real
    if not real.shape[1]:
        return s_i, real
    if pairs == "hardest":
        i, j = hardest_pairs(scores, uppers)
        s_i, y_i, real = s_i.gather(1, i), y_i.gather(1, i), real.any(dim=1, keepdim=True)
        margin = margin.gather(1, i.unsqueeze(2).expand(-1, -1, margin.shape[2])) if per_pair else margin
    else:
        j = semi_hard_columns(scores, labels, mask, uppers)
    m_ij = margin.gather(2, j.unsqueeze(2)).squeeze(2) if per_pair else margin.gather(1, j)
    return cost(s_i, scores.gather(1, j), y_i, labels.gather(1, j), m_ij.masked_fill(~real, 0.0)), real


@torch.no_grad()
def hardest_pairs(scores: Tensor, uppers: Uppers) -> tuple[Tensor, Tensor]:
    """The pair of each row with the least ``s_i − s_j``: packed position of i, column of j, ``[B, 1]`` each.

    For two labels: the relevant document with the lowest score, the irrelevant one with the highest. Packed position 0 is
    padding in a row without a pair.
    """
    best, column = scores.masked_fill(~uppers.lowest, -torch.inf).max(dim=1, keepdim=True)
    upper_scores = uppers.take(scores)
    running, position = upper_scores.masked_fill(~uppers.real, -torch.inf).cummax(dim=1)
    before = (uppers.first - 1).clamp(min=0)
    use_running = (uppers.first > 0) & (running.gather(1, before) > best)
    best_below = torch.where(use_running, running.gather(1, before), best)
    column_below = torch.where(use_running, uppers.columns.gather(1, position.gather(1, before)), column)
    i = (best_below - upper_scores).masked_fill(~uppers.real, -torch.inf).argmax(dim=1, keepdim=True)
    return i, column_below.gather(1, i)


@torch.no_grad()
def semi_hard_columns(scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers) -> Tensor:
    """For each upper document the less relevant one with the highest score strictly below its own, or, where there is none, the
    one with the lowest score of all: ``[B, P]`` columns.
    """
    if sorting_pays(uppers.columns.shape[1], uppers.levels):
        return _sorted.semi_hard_columns(scores, labels, mask, uppers)
    upper_scores, found = uppers.take(scores), []
    labels_n = labels.masked_fill(~mask, torch.inf)
    for span in spans(uppers.columns.shape[1], scores.numel(), scores.device):
        lower_bpn = labels_n.unsqueeze(1) < uppers.labels[:, span].unsqueeze(2)
        semi_hard_bpn = lower_bpn & (scores.unsqueeze(1) < upper_scores[:, span].unsqueeze(2))
        best, column = torch.where(semi_hard_bpn, scores.unsqueeze(1), -torch.inf).max(dim=2)
        easiest = torch.where(lower_bpn, scores.unsqueeze(1), torch.inf).argmin(dim=2)
        found.append(torch.where(best > -torch.inf, column, easiest))
    return torch.cat(found, dim=1)


@torch.no_grad()
def count_swapped(scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[B]`` int64 each: the pairs with y_i > y_j, how many of them have s_j > s_i, and how many are tied in score."""
    labels = labels.to(scores.dtype)
    uppers = find_uppers(labels, mask)
    if sorting_pays(uppers.columns.shape[1], uppers.levels):
        return uppers.n_pairs(), *_sorted.swapped_counts(scores, labels, mask, uppers)
    swapped_b = tied_b = torch.zeros(len(mask), dtype=torch.int64, device=mask.device)
    labels_n, upper_scores = labels.masked_fill(~mask, torch.inf).unsqueeze(1), uppers.take(scores)
    for span in spans(uppers.columns.shape[1], scores.numel(), scores.device):
        pair_bpn = (labels_n < uppers.labels[:, span].unsqueeze(2)) & uppers.real[:, span].unsqueeze(2)
        upper_bpn, other_bpn = upper_scores[:, span].unsqueeze(2), scores.unsqueeze(1)
        swapped_b = swapped_b + ((other_bpn > upper_bpn) & pair_bpn).sum(dim=(1, 2))
        tied_b = tied_b + ((other_bpn == upper_bpn) & pair_bpn).sum(dim=(1, 2))
    return uppers.n_pairs(), swapped_b, tied_b
