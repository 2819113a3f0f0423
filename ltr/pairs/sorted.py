"""Hinges, and their exact sums over all pairs of a list by sorting: O(N log N) time and O(N) memory
per row and grade.

A pair (i, j) with y_i > y_j costs something when ``u_j > s_i``, where ``u_j = s_j + m_j``: j
violates i. The scores of one level of more relevant documents are sorted. For each less relevant
document j one ``searchsorted`` gives the number c of those that it violates, the c lowest. So the
one at sorted place w (from 0) is violated by the j with c > w, and a histogram of the c gives their
number. These counts are the gradient of the hinge. Several grades go level by level.

Letters of shapes: b row (one query), p packed upper document
(:class:`ltr.pairs.uppers.Uppers`), w upper document of one level.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.pairs.blocks import refuse_second_derivative
from ltr.pairs.uppers import Uppers


def hinge(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor) -> Tensor:
    """max(0, m - (s_i - s_j))."""
    # In the order in which sorting compares, s_j + m against s_i: so both forms agree to the last
    # bit on which pairs cost something.
    return F.relu((s_j + m_ij) - s_i)


def squared_hinge(
    s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor
) -> Tensor:
    """The square of :func:`hinge`."""
    return hinge(s_i, s_j, y_i, y_j, m_ij).square()


class Level(NamedTuple):
    """The more relevant documents of one label, and the documents below them."""

    columns: Tensor  # [B, W] int64, their columns in the list; 0 at the padding
    packed: Tensor  # [B, W] int64, their packed positions; any position at the padding
    real: Tensor  # [B, W] bool, False at the padding
    lower: Tensor  # [B, N] bool, the documents below


def levels_of(
    labels: Tensor, mask: Tensor, uppers: Uppers, adjacent: bool = False
) -> Iterator[Level]:
    """The levels of each row from the least relevant to the most; rows with fewer levels get empty
    ones. Documents below are all of a lower label or, if ``adjacent``, those of the next lower one.
    """
    n_packed = uppers.columns.shape[1]
    position_p = torch.arange(n_packed, device=mask.device)
    starts_level_p = (uppers.first == position_p) & uppers.real
    level_p = starts_level_p.cumsum(dim=1).masked_fill(~uppers.real, 0)  # 1, 2, …; 0 at the padding
    if adjacent:
        compare = torch.eq
        bound_p = uppers.label_below()
    else:
        compare = torch.lt
        bound_p = uppers.labels
    # [B, 1]: the packed position at which the level begins; behind the last one in a row that has
    # no such level.
    begin = torch.zeros(len(mask), 1, dtype=torch.int64, device=mask.device)
    for level in range(1, uppers.levels + 1):
        count = (level_p == level).sum(dim=1, keepdim=True)
        position_w = torch.arange(int(count.max()), device=mask.device)
        real = position_w < count
        # Wrong where clamped, in a row that has no such level: there `real` and `lower` are False.
        packed = (begin + position_w).clamp(max=n_packed - 1)
        bound = bound_p.gather(1, begin.clamp(max=n_packed - 1))
        lower = compare(labels, bound) & mask & (count > 0)
        columns = uppers.columns.gather(1, packed).masked_fill(~real, 0)
        yield Level(columns, packed, real, lower)
        begin = begin + count


def hinge_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    uppers: Uppers,
    margin: Tensor,
    squared: bool,
    adjacent: bool,
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the sum of ``max(0, s_j + m_j - s_i)``, or of its square, over the pairs of a
    row, and how many are above 0.

    The margin is ``[B, 1]`` or ``[B, N]``; it gets a gradient, as the scores do.
    """
    return _HingeSums.apply(scores, margin, labels, mask, uppers, squared, adjacent)


class _HingeSums(torch.autograd.Function):
    """See :func:`hinge_sums`. The gradient is computed with the value."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        margin: Tensor,
        labels: Tensor,
        mask: Tensor,
        uppers: Uppers,
        squared: bool,
        adjacent: bool,
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.zeros_like(scores)
        needs_margin_gradient = ctx.needs_input_grad[1]
        margin_gradient = torch.zeros_like(scores) if needs_margin_gradient else None
        sum_b = torch.zeros_like(scores[:, 0])
        active_b = torch.zeros_like(mask[:, 0], dtype=torch.int64)
        # Centred, so that large scores with small gaps lose no digits in the sums; which pairs are
        # active is decided before.
        centre = scores.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        shifted = scores + margin
        for level in levels_of(labels, mask, uppers, adjacent):
            upper = scores.gather(1, level.columns)
            sums = _sum_level(upper, shifted, centre, level, squared)
            sum_b += sums.value_b
            active_b += sums.n_active_b
            # A score counts as that of a less relevant document (in `shifted`), and as that of a
            # more relevant one; the margin counts in `shifted` only.
            gradient += sums.gradient_shifted
            gradient.scatter_add_(1, level.columns, sums.gradient_upper)
            if margin_gradient is not None:
                margin_gradient += sums.gradient_shifted
        ctx.save_for_backward(gradient, margin_gradient)
        ctx.margin_shape = margin.shape
        ctx.mark_non_differentiable(active_b)
        return sum_b, active_b

    @staticmethod
    def backward(ctx: Any, gradient_b: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        gradient, margin_gradient = ctx.saved_tensors
        gradient_b = gradient_b.unsqueeze(1)
        if margin_gradient is not None:
            # A margin of a row is that of all its documents: its gradients add up.
            margin_gradient = (margin_gradient * gradient_b).sum_to_size(ctx.margin_shape)
        return gradient * gradient_b, margin_gradient, None, None, None, None, None


class _LevelSums(NamedTuple):
    """The pairs of one level with the documents below it."""

    value_b: Tensor  # [B], their summed hinge, or its square
    n_active_b: Tensor  # [B] int64, how many cost something
    gradient_shifted: Tensor  # [B, N], of the value to the u_j
    gradient_upper: Tensor  # [B, W], of the value to the s_i


def _sum_level(
    upper: Tensor, shifted: Tensor, centre: Tensor, level: Level, squared: bool
) -> _LevelSums:
    """``upper`` ``[B, W]`` are the s_i of the level, ``shifted`` ``[B, N]`` the u_j = s_j + m_j."""
    upper_w, order = upper.masked_fill(~level.real, torch.inf).sort(dim=1)
    real_w = level.real.gather(1, order)
    # How many have s_i < u_j, strictly; none where j is not below the level.
    n_active_per_j = torch.searchsorted(upper_w, shifted.masked_fill(~level.lower, -torch.inf))
    # histogram[c] counts the j that violate exactly the c lowest-scored uppers. The upper at sorted
    # place w is violated by every j that violates more than w, so by those of the bins above w.
    zeros = torch.zeros(len(upper), upper.shape[1] + 1, dtype=torch.int64, device=upper.device)
    histogram = zeros.scatter_add(1, n_active_per_j, torch.ones_like(n_active_per_j))
    n_active_per_i = sum_after(histogram)
    s_i = (upper_w - centre).masked_fill(~real_w, 0.0)
    u_j = (shifted - centre).masked_fill(~level.lower, 0.0)
    if squared:
        # Of each j the sum of the c lowest s_i that it violates; of each i the sum of the u_j that
        # violate it, by a histogram that counts u_j instead of 1.
        sum_s_per_j = F.pad(s_i.cumsum(dim=1), (1, 0)).gather(1, n_active_per_j)
        sum_u_per_i = sum_after(zeros.to(u_j.dtype).scatter_add(1, n_active_per_j, u_j))
        gradient_shifted = 2 * (n_active_per_j * u_j - sum_s_per_j)
        gradient_w = 2 * (n_active_per_i * s_i - sum_u_per_i)
        degree = 2
    else:
        gradient_shifted = n_active_per_j.to(u_j.dtype)
        gradient_w = -n_active_per_i.to(s_i.dtype)
        degree = 1
    # Euler, with the arguments s_i and u_j: a homogeneous function of degree 1 is the product of its
    # arguments and its gradient, one of degree 2 is half of that.
    value_b = ((gradient_shifted * u_j).sum(dim=1) + (gradient_w * s_i).sum(dim=1)) / degree
    # Back from the order of the sort.
    gradient_w = gradient_w.masked_fill(~real_w, 0.0)
    gradient_upper = torch.zeros_like(gradient_w).scatter(1, order, gradient_w)
    return _LevelSums(value_b, n_active_per_j.sum(dim=1), gradient_shifted, gradient_upper)


def sum_after(histogram: Tensor) -> Tensor:
    """For each place w the sum over the bins w + 1, w + 2, …"""
    return histogram[:, 1:].flip(1).cumsum(dim=1).flip(1)


@torch.no_grad()
def semi_hard_by_sorting(scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers) -> Tensor:
    """:func:`ltr.pairs.choose.semi_hard_columns` by sorting the documents below each level."""
    columns = torch.zeros_like(uppers.columns)
    for level in levels_of(labels, mask, uppers):
        lower_scores, order = scores.masked_fill(~level.lower, torch.inf).sort(dim=1)
        n_below_score = torch.searchsorted(lower_scores, scores.gather(1, level.columns))
        # The last of those strictly below, or the first of all where there is none.
        chosen = order.gather(1, (n_below_score - 1).clamp(min=0))
        # Each position belongs to one level; padding adds 0 to whatever position it has.
        columns = columns.scatter_add(1, level.packed, chosen.masked_fill(~level.real, 0))
    return columns
