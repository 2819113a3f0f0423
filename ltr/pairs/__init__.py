"""Sums over the pairs (i, j) of a list with ``y_i > y_j``. Read ``dense.py`` first: it is the
definition.

Here the form is chosen, by the size of the lists: short lists take all N² pairs, hinges over many
relevant documents are sorted (``sorted.py``), and everything else takes the pairs of the more
relevant documents in blocks (``blocks.py``). ``choose.py`` has the losses that take some of the
pairs only, ``choices.py`` what they mean. Letters of shapes: b row, p packed upper document (``uppers.py``), j any document.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ltr.pairs.blocks import by_rows, sum_in_blocks
from ltr.pairs.choices import PairChoice, check_pairs
from ltr.pairs.choose import chosen_costs
from ltr.pairs.dense import Cost, dense_sums
from ltr.pairs.lists import check_margin, check_shapes, clean_margin, fill_padding, let_nan_out
from ltr.pairs.sorted import hinge, hinge_sums, squared_hinge
from ltr.pairs.uppers import Uppers, find_uppers

Name = Literal["all", "hardest", "semi-hard", "adjacent", "mean"]
Pairs = Name | PairChoice

# If B·N² is at most this, all N² pairs are quicker than picking out the more relevant documents.
SHORT = 1 << 15
# Upper documents per grade above which sorting is faster than the blocks [B, P, N].
DENSE_UPPERS = 24


def sorting_pays(uppers: Uppers) -> bool:
    """Whether to sort: blocks take a pass over the list per upper document, sorting some 24 passes
    per grade.
    """
    return uppers.columns.shape[1] > DENSE_UPPERS * uppers.levels


def mean_over_pairs(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    cost: Cost,
    margin: float | Tensor = 0.0,
    pairs: Pairs = "all",
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the mean cost of the chosen pairs of each list, and how many it has; arguments
    as in :func:`pair_sums`.
    """
    sum_b, n_pairs_b = pair_sums(scores, labels, mask, cost, margin, pairs)
    return sum_b / n_pairs_b.clamp(min=1), n_pairs_b


def pair_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    cost: Cost,
    margin: float | Tensor = 0.0,
    pairs: Pairs = "all",
    active: bool = False,
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the summed cost of the chosen pairs of a list, and how many there are (that
    cost something, if ``active``).

    The arguments are those of :meth:`ltr.losses.Loss.forward`, the margin may be a number;
    ``pairs`` are those of :class:`ltr.losses.MarginRankingLoss`, where ``mean`` also takes the mean
    of ``y_j``.
    """
    check_pairs(pairs, get_args(Name))
    scores, labels, mask = check_shapes(scores, labels, mask)
    if pairs == "all" and scores.numel() * scores.shape[1] <= SHORT:
        margin = margin if isinstance(margin, int | float) else check_margin(margin, scores)
        scores, labels = fill_padding(scores, labels, mask)
        return dense_sums(let_nan_out(scores, labels), labels, mask, margin, cost, active)

    def rows(scores: Tensor, labels: Tensor, mask: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
        scores, labels = fill_padding(scores, labels, mask)
        margin = clean_margin(margin, labels, mask)
        if isinstance(pairs, PairChoice):
            chosen = pairs.pairs(scores.detach(), labels, mask)
            scores = let_nan_out(scores, labels)
            return dense_sums(scores, labels, mask, margin, cost, active, chosen)
        uppers = find_uppers(labels, mask)
        adjacent = pairs == "adjacent"
        if pairs not in ("all", "adjacent"):
            cost_p, chosen_p = chosen_costs(
                scores, labels, mask, uppers, margin, cost, pairs, sorting_pays(uppers)
            )
            sum_b = cost_p.sum(dim=1)
            n_pairs_b = chosen_p.sum(dim=1)
            active_b = (cost_p > 0).sum(dim=1)
        else:
            n_pairs_b = uppers.n_pairs(adjacent)
            if cost in (hinge, squared_hinge) and margin.ndim < 3 and sorting_pays(uppers):
                sum_b, active_b = hinge_sums(
                    scores, labels, mask, uppers, margin, cost is squared_hinge, adjacent
                )
            else:
                sum_b, active_b = _block_sums(
                    scores, labels, mask, uppers, margin, cost, adjacent, active
                )
        # A NaN that comes in goes out, also from a document that no chosen pair has.
        nan_b = 0.0 * let_nan_out(scores, labels).sum(dim=1)
        counted_b = active_b if active else n_pairs_b
        return sum_b + nan_b, counted_b

    mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    return by_rows(rows, scores, labels, mask, check_margin(margin, scores))


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
    """The pairs of the upper documents with those whose label is below theirs (or the next lower
    one), in blocks.
    """
    labels_j = labels.masked_fill(~mask, torch.inf).unsqueeze(1)  # padding is below nothing
    below_p = (
        uppers.label_below() if adjacent else uppers.labels.masked_fill(~uppers.real, -torch.inf)
    )
    labels_p = uppers.take(labels)
    compare = torch.eq if adjacent else torch.lt
    per_pair = margin.ndim == 3

    def block(
        span: slice, docs: Sequence[Tensor], lists: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        # Pairs as numbers, to multiply with: on a CPU an operation on bools takes several times as
        # long as one on floats.
        pair_ij = compare(labels_j, below_p[:, span].unsqueeze(2), out=scores.new_empty(0))
        # A margin per pair may be anything, NaN included, where there is no pair.
        m_ij = docs[1].masked_fill(pair_ij == 0, 0.0) if per_pair else lists[1].unsqueeze(1)
        s_i = docs[0].unsqueeze(2)
        s_j = lists[0].unsqueeze(1)
        y_i = labels_p[:, span].unsqueeze(2)
        y_j = labels.unsqueeze(1)
        cost_ij = cost(s_i, s_j, y_i, y_j, m_ij) * pair_ij
        sum_b = cost_ij.sum(dim=(1, 2))
        return sum_b, (cost_ij > 0).sum(dim=(1, 2)) if active else torch.zeros_like(sum_b)

    docs = [uppers.take(scores), uppers.take(margin)] if per_pair else [uppers.take(scores)]
    return sum_in_blocks(block, docs, [scores] if per_pair else [scores, margin])
