"""Hinges, and their exact sums over all pairs of a list by sorting: O(N log N) time and O(N) memory
per row and grade.

A pair (i, j) with y_i > y_j costs something when ``u_j > s_i``, where ``u_j = s_j + m_j``. The
scores of one level of more relevant documents are sorted; one ``searchsorted`` tells for each less
relevant document how many of them it violates, a histogram of the answers tells the same from the
other side, and these counts are the gradient of the hinge. Several grades go level by level.
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
    """max(0, m - (s_i - s_j)), in the order in which sorting compares: both forms then agree at the
    kink to the last bit.
    """
    return F.relu((s_j + m_ij) - s_i)


def squared_hinge(
    s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor
) -> Tensor:
    """The square of :func:`hinge`."""
    return hinge(s_i, s_j, y_i, y_j, m_ij).square()


class Level(NamedTuple):
    """The more relevant documents of one label, and the documents below them."""

    columns: Tensor  # [B, W] int64
    packed: Tensor  # [B, W] int64, their packed positions
    real: Tensor  # [B, W] bool
    lower: Tensor  # [B, N] bool


def levels_of(
    labels: Tensor, mask: Tensor, uppers: Uppers, adjacent: bool = False
) -> Iterator[Level]:
    """The levels of each row from the least relevant to the most; rows with fewer levels get empty
    ones.
    """
    n_packed = uppers.columns.shape[1]
    starts_p = (uppers.first == torch.arange(n_packed, device=mask.device)) & uppers.real
    level_p = starts_p.cumsum(dim=1).masked_fill(~uppers.real, 0)
    below_p = uppers.label_below() if adjacent else uppers.labels
    begin_b = torch.zeros(len(mask), 1, dtype=torch.int64, device=mask.device)
    for level in range(1, uppers.levels + 1):
        count_b = (level_p == level).sum(dim=1, keepdim=True)
        position_w = torch.arange(int(count_b.max()), device=mask.device)
        real = position_w < count_b
        packed = (begin_b + position_w).clamp(max=n_packed - 1)
        head = begin_b.clamp(max=n_packed - 1)
        lower = (torch.eq if adjacent else torch.lt)(labels, below_p.gather(1, head))
        yield Level(
            uppers.columns.gather(1, packed).masked_fill(~real, 0),
            packed,
            real,
            lower & mask & (count_b > 0),
        )
        begin_b = begin_b + count_b


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
        of_margin = torch.zeros_like(scores) if ctx.needs_input_grad[1] else None
        sum_b = torch.zeros_like(scores[:, 0])
        active_b = torch.zeros_like(mask[:, 0], dtype=torch.int64)
        # Centred, so that large scores with small gaps lose no digits in the sums; which pairs are
        # active is decided before.
        centre = scores.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        shifted = scores + margin
        for level in levels_of(labels, mask, uppers, adjacent):
            value_b, n_active_b, of_lower, of_upper = _cross(
                scores.gather(1, level.columns), shifted, centre, level, squared
            )
            sum_b += value_b
            active_b += n_active_b
            gradient += of_lower
            gradient.scatter_add_(1, level.columns, of_upper)
            if of_margin is not None:
                of_margin += of_lower
        ctx.save_for_backward(gradient, of_margin)
        ctx.margin_shape = margin.shape
        ctx.mark_non_differentiable(active_b)
        return sum_b, active_b

    @staticmethod
    def backward(ctx: Any, gradient_b: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        gradient, of_margin = ctx.saved_tensors
        if of_margin is not None:
            of_margin = (of_margin * gradient_b.unsqueeze(1)).sum_to_size(ctx.margin_shape)
        return gradient * gradient_b.unsqueeze(1), of_margin, None, None, None, None, None


def _cross(
    upper: Tensor, shifted: Tensor, centre: Tensor, level: Level, squared: bool
) -> tuple[Tensor, ...]:
    """The pairs of one level with the documents below: their summed hinge ``[B]``, how many are
    active ``[B]``, and the gradients of the sum to ``shifted`` ``[B, N]`` and ``upper`` ``[B, W]``.

    ``upper`` are the s_i, ``shifted`` the u_j = s_j + m_j.
    """
    upper_w, order = upper.masked_fill(~level.real, torch.inf).sort(dim=1)
    real_w = level.real.gather(1, order)
    n_active_per_j = torch.searchsorted(
        upper_w, shifted.masked_fill(~level.lower, -torch.inf)
    )  # s_i < u_j, strictly
    buckets = torch.zeros(len(upper), upper.shape[1] + 1, dtype=torch.int64, device=upper.device)
    # buckets[c] counts the j that violate exactly the c lowest-scored uppers, so the upper at place
    # w is violated by every j in the buckets w + 1 and above.
    n_active_per_i = _after(buckets.scatter_add(1, n_active_per_j, torch.ones_like(n_active_per_j)))
    s_i = (upper_w - centre).masked_fill(~real_w, 0.0)
    u_j = (shifted - centre).masked_fill(~level.lower, 0.0)
    if squared:
        sum_s_per_j = F.pad(s_i.cumsum(dim=1), (1, 0)).gather(1, n_active_per_j)
        sum_u_per_i = _after(buckets.to(u_j.dtype).scatter_add(1, n_active_per_j, u_j))
        of_lower = 2 * (n_active_per_j * u_j - sum_s_per_j)
        of_sorted = 2 * (n_active_per_i * s_i - sum_u_per_i)
    else:
        of_lower = n_active_per_j.to(u_j.dtype)
        of_sorted = -n_active_per_i.to(s_i.dtype)
    # Euler: a function of degree 1 (2, if squared) is (half of) the product of its arguments and
    # its gradient.
    value_b = ((of_lower * u_j).sum(dim=1) + (of_sorted * s_i).sum(dim=1)) / (2 if squared else 1)
    of_upper = torch.zeros_like(of_sorted).scatter(1, order, of_sorted.masked_fill(~real_w, 0.0))
    return value_b, n_active_per_j.sum(dim=1), of_lower, of_upper


def _after(buckets: Tensor) -> Tensor:
    """For each place w the sum over the buckets w + 1, w + 2, …"""
    return buckets[:, 1:].flip(1).cumsum(dim=1).flip(1)


@torch.no_grad()
def semi_hard_by_sorting(scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers) -> Tensor:
    """:func:`ltr.pairs.choose.semi_hard_columns` by sorting the documents below each level."""
    found = torch.zeros_like(uppers.columns)
    for level in levels_of(labels, mask, uppers):
        lower_scores, order = scores.masked_fill(~level.lower, torch.inf).sort(dim=1)
        n_below_score = torch.searchsorted(lower_scores, scores.gather(1, level.columns))
        chosen = order.gather(1, (n_below_score - 1).clamp(min=0))
        found = found.scatter_add(1, level.packed, chosen.masked_fill(~level.real, 0))
    return found
