"""Sums over the pairs (i, j) of a list with ``y_i > y_j``. Read ``dense.py`` first: it is the
definition.

Here the form is chosen, by the size of the lists: short lists take all N² pairs, hinges over many
relevant documents are sorted (``sorted.py``), and everything else takes the pairs of the more
relevant documents in blocks (``blocks.py``). Documents of one label, where a loss takes these too,
are in ``ties.py``. ``choose.py`` has the costs of losses that take some
of the pairs only, ``choices.py`` says by their definition which these are. Letters of shapes: b row,
p packed upper document (``uppers.py``), q chosen pair, i and j the documents of a pair.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ltr.errors import one_of
from ltr.pairs.blocks import by_rows, sum_in_blocks
from ltr.pairs.choices import PairChoice, check_pairs
from ltr.pairs.choose import chosen_costs
from ltr.pairs.dense import Cost, dense_sums
from ltr.pairs.list_tensors import (
    as_margin,
    clean_margin,
    fill_padding,
    nan_of_labels_into_scores,
    prepare_types,
)
from ltr.pairs.sorted import hinge, hinge_sums, squared_hinge
from ltr.pairs.ties import TieCost, tie_sums
from ltr.pairs.uppers import Uppers, find_uppers

PairsName = Literal["all", "hardest", "semi-hard", "adjacent", "mean"]
Pairs = PairsName | PairChoice
PairsReduction = Literal["mean", "sum", "active"]

# If B·N² is at most this, all N² pairs are quicker than picking out the more relevant documents.
SHORT = 1 << 15
# With more upper documents (the more relevant ones of a pair) per grade than this, sorting is faster
# than the blocks [B, P, N].
UPPERS_PER_LEVEL_TO_SORT = 24


def sorting_pays(uppers: Uppers) -> bool:
    """Whether to sort: blocks take a pass over the list per upper document, sorting some 24 passes
    per grade.
    """
    return uppers.columns.shape[1] > UPPERS_PER_LEVEL_TO_SORT * uppers.levels


def reduce_over_pairs(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    cost: Cost,
    margin: float | Tensor = 0.0,
    pairs: Pairs = "all",
    reduction: PairsReduction = "mean",
    tie_cost: TieCost | None = None,
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the costs of the chosen pairs of each list as one number, and how many these
    pairs are; other arguments as in :func:`pair_sums`.

    Args:
        reduction: the ``sum``, or the ``mean`` over the chosen pairs, or over those of them that
            cost something (``active``).
        tie_cost: of two documents of one label; None: only different labels make a pair.
    """
    one_of(get_args(PairsReduction), pairs_reduction=reduction)
    sum_b, n_pairs_b = pair_sums(scores, labels, mask, cost, margin, pairs)
    n_counted_b = n_pairs_b
    if reduction == "active":
        with torch.no_grad():
            _, n_counted_b = pair_sums(scores, labels, mask, cost, margin, pairs, active=True)
    if tie_cost is not None:  # a tie always costs something
        tie_sum_b, n_ties_b = tie_sums(scores, labels, mask, tie_cost)
        sum_b = sum_b + tie_sum_b
        n_pairs_b = n_pairs_b + n_ties_b
        n_counted_b = n_counted_b + n_ties_b
    if reduction != "sum":
        sum_b = sum_b / n_counted_b.clamp(min=1)
    return sum_b, n_pairs_b


def pair_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    cost: Cost,
    margin: float | Tensor = 0.0,
    pairs: Pairs = "all",
    active: bool = False,
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the summed cost of the chosen pairs of each list, and their number.

    Args:
        scores, labels, mask: as in :meth:`ltr.losses.Loss.forward`.
        cost: of a pair.
        margin: as in :meth:`ltr.losses.Loss.forward`, or one number for all pairs.
        pairs: as in :class:`ltr.losses.MarginRankingLoss`. With ``mean`` each i meets one document
            that has the means of ``s_j``, ``y_j`` and ``m_ij`` over its less relevant documents.
        active: whether only pairs that cost something are counted.
    """
    check_pairs(pairs, get_args(PairsName))
    scores, labels, mask = prepare_types(scores, labels, mask)
    if pairs == "all" and scores.numel() * scores.shape[1] <= SHORT:
        if isinstance(margin, Tensor):
            margin = as_margin(margin, scores)
        scores, labels = fill_padding(scores, labels, mask)
        scores = nan_of_labels_into_scores(scores, labels)
        return dense_sums(scores, labels, mask, margin, cost, active)
    if mask is None:
        mask = torch.ones_like(labels, dtype=torch.bool)
    sums_of_rows = partial(_sums_of_rows, cost=cost, pairs=pairs, active=active)
    return by_rows(sums_of_rows, scores, labels, mask, as_margin(margin, scores))


def _sums_of_rows(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    margin: Tensor,
    cost: Cost,
    pairs: Pairs,
    active: bool,
) -> tuple[Tensor, Tensor]:
    """:func:`pair_sums` of checked rows, for everything but all pairs of short lists."""
    scores, labels = fill_padding(scores, labels, mask)
    margin = clean_margin(margin, labels, mask)
    if isinstance(pairs, PairChoice):
        chosen = pairs.pairs(scores.detach(), labels, mask)
        scores = nan_of_labels_into_scores(scores, labels)
        return dense_sums(scores, labels, mask, margin, cost, active, chosen)
    uppers = find_uppers(labels, mask)
    by_sorting = sorting_pays(uppers)
    if pairs in ("all", "adjacent"):
        adjacent = pairs == "adjacent"
        n_pairs_b = uppers.n_pairs(adjacent)
        if by_sorting and cost in (hinge, squared_hinge) and margin.ndim == 2:
            squared = cost is squared_hinge
            sum_b, active_b = hinge_sums(scores, labels, mask, uppers, margin, squared, adjacent)
        else:
            sum_b, active_b = _block_sums(
                scores, labels, mask, uppers, margin, cost, adjacent, active
            )
    else:
        cost_q, real_q = chosen_costs(scores, labels, mask, uppers, margin, cost, pairs, by_sorting)
        sum_b = cost_q.sum(dim=1)
        n_pairs_b = real_q.sum(dim=1)
        active_b = (cost_q > 0).sum(dim=1)
    # A NaN that comes in goes out, also from a document that no chosen pair has.
    nan_b = 0.0 * nan_of_labels_into_scores(scores, labels).sum(dim=1)
    counted_b = active_b if active else n_pairs_b
    return sum_b + nan_b, counted_b


def _block_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    uppers: Uppers,
    margin: Tensor,
    cost: Cost,
    adjacent: bool,
    active: bool,
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the summed cost of the pairs of each upper document with the documents below it
    (if ``adjacent``, with those of the next lower label), and how many cost something: 0 unless
    ``active``.
    """
    # (i, j) is a pair where y_j compares with the bound of i. A padded j has the label +inf, which
    # is neither below nor equal to any bound. A padded i has a bound that no label meets: -inf for
    # lt, NaN for eq.
    labels_j = labels.masked_fill(~mask, torch.inf).unsqueeze(1)
    if adjacent:
        compare = torch.eq
        bound_p = uppers.label_below()
    else:
        compare = torch.lt
        bound_p = uppers.labels.masked_fill(~uppers.real, -torch.inf)
    labels_p = uppers.take(labels)

    # A margin per pair is cut into blocks as the upper documents are; any other is one of document
    # j, whole in each block.
    cut = [uppers.take(scores)]
    whole = [scores]
    margin_per_pair = margin.ndim == 3
    if margin_per_pair:
        cut.append(uppers.take(margin))
    else:
        whole.append(margin)

    def block(span: slice, cut: Sequence[Tensor], whole: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        # `out` makes the comparison write 1.0 and 0.0, to multiply with: on a CPU an operation on
        # bools takes several times as long as one on floats.
        pair_ij = compare(labels_j, bound_p[:, span].unsqueeze(2), out=scores.new_empty(0))
        if margin_per_pair:
            s_p, m_pj = cut
            (s_n,) = whole
            # It may be anything, NaN included, where there is no pair.
            m_ij = m_pj.masked_fill(pair_ij == 0, 0.0)
        else:
            (s_p,) = cut
            s_n, m_n = whole
            m_ij = m_n.unsqueeze(1)
        s_i = s_p.unsqueeze(2)
        s_j = s_n.unsqueeze(1)
        y_i = labels_p[:, span].unsqueeze(2)
        y_j = labels.unsqueeze(1)
        cost_ij = cost(s_i, s_j, y_i, y_j, m_ij) * pair_ij
        sum_b = cost_ij.sum(dim=(1, 2))
        active_b = (cost_ij > 0).sum(dim=(1, 2)) if active else torch.zeros_like(sum_b)
        return sum_b, active_b

    return sum_in_blocks(block, cut, whole)
