"""The pairs of documents of one label, for a loss that asks that none of the two comes first."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ltr.pairs.blocks import by_rows, sum_in_blocks
from ltr.pairs.list_tensors import prepare_lists

# cost(s_i, s_j) of a tie: elementwise, and the same for (s_j, s_i).
TieCost = Callable[[Tensor, Tensor], Tensor]


def tie_sums(
    scores: Tensor, labels: Tensor, mask: Tensor | None, cost: TieCost
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the summed cost of the pairs of documents of one label of each list, each pair
    once, and their number.

    A list that fits into a block has all its pairs computed at once; longer ones go in blocks.
    """
    scores, labels, mask = prepare_lists(scores, labels, mask)
    return by_rows(partial(_sums_of_rows, cost=cost), scores, labels, mask)


def _sums_of_rows(
    scores: Tensor, labels: Tensor, mask: Tensor, cost: TieCost
) -> tuple[Tensor, Tensor]:
    """:func:`tie_sums` of some rows, prepared."""
    labels = labels.masked_fill(~mask, torch.nan)  # padding equals nothing

    def block(span: slice, cut: Sequence[Tensor], whole: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        (s_i,) = cut
        s_j = whole[0][:, span.start :]
        is_tie_ij = labels[:, span].unsqueeze(2) == labels[:, span.start :].unsqueeze(1)
        is_tie_ij = is_tie_ij.triu(1)  # each pair once, with i before j
        cost_ij = cost(s_i.unsqueeze(2), s_j.unsqueeze(1)) * is_tie_ij
        return cost_ij.sum(dim=(1, 2)), is_tie_ij.sum(dim=(1, 2))

    return sum_in_blocks(block, [scores], [scores])
