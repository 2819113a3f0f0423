"""The documents of a list that outrank another one: the i of the pairs (i, j) with y_i > y_j.

These, the *uppers*, are often few (the relevant documents of a list), so they are packed to the
left, and a pair matrix is ``[B, P, N]`` instead of ``[B, N, N]``. Letters of shapes: b row (one
query), p packed upper document, n any document of the list.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# On a GPU lists of up to so many pairs, B·N², are packed into all their columns: the host would wait
# for the number of chosen ones, which takes longer than reading 4 MB once more.
UNREAD_PAIRS = 1 << 20


class Uppers(NamedTuple):
    """The documents of each list that have a less relevant one, packed, in ascending order of their
    labels.
    """

    columns: Tensor  # [B, P] int64, their columns in the list; 0 at the padding
    real: Tensor  # [B, P] bool, False at the padding, which comes last
    labels: Tensor  # [B, P]; +inf at the padding
    first: Tensor  # [B, P] int64, packed position of the first document with the same label
    lowest: Tensor  # [B, N] bool, the documents of the list with its lowest label
    lowest_label: Tensor  # [B, 1], that label
    # the largest number of different labels in a row, the lowest not counted; P where it is not read
    levels: int

    def take(self, x: Tensor) -> Tensor:
        """The values of ``[B, N]`` or rows of ``[B, N, N]`` at the packed documents: ``[B, P]`` or
        ``[B, P, N]``.
        """
        if x.ndim == 3:
            return x.gather(1, self.columns.unsqueeze(2).expand(-1, -1, x.shape[2]))
        return x.expand(len(self.columns), -1).gather(1, self.columns)

    def n_below(self) -> Tensor:
        """``[B, P]`` int64: how many documents of the list are less relevant; 0 at the padding."""
        return (self.lowest.sum(dim=1, keepdim=True) + self.first).masked_fill(~self.real, 0)

    def label_below(self) -> Tensor:
        """``[B, P]``: the next lower label of the list; NaN, which equals nothing, at the padding."""
        # The document packed just before a level has the next lower label; before the first level
        # stands none, and the lowest label of the list is below.
        label_before = self.labels.gather(1, (self.first - 1).clamp(min=0))
        below = torch.where(self.first > 0, label_before, self.lowest_label)
        return below.masked_fill(~self.real, torch.nan)

    def n_pairs(self, adjacent: bool = False) -> Tensor:
        """``[B]`` int64: how many pairs each row has; if ``adjacent``, of neighbours in the order of
        the labels only.
        """
        n_below_p = self.n_below()
        if adjacent:
            # Only the documents of the next lower label count. They fill the positions from their own
            # `first` up to the `first` of this label. If theirs is the lowest label, they are not
            # packed, and n_below counts them.
            first_of_lower_p = self.first.gather(1, (self.first - 1).clamp(min=0))
            n_lower_p = (self.first - first_of_lower_p).masked_fill(~self.real, 0)
            n_below_p = torch.where(self.first > 0, n_lower_p, n_below_p)
        return n_below_p.sum(dim=1)


def reads_counts(lists: Tensor) -> bool:
    """Whether the host reads numbers that follow from lists ``[B, N]``, or takes a bound of them, as
    it does where it would wait for a GPU and the lists are short.
    """
    return lists.device.type == "cpu" or lists.numel() * lists.shape[1] > UNREAD_PAIRS


def pack(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen columns of ``[B, N]`` bool, packed to the left: ``[B, P]`` int64, and ``[B, P]``
    bool, False at the padding. P is the largest number in a row, or N where it is not read.
    """
    count_b = chosen.sum(dim=1)
    if not reads_counts(chosen):
        return _pack_unread(chosen, count_b)
    width = int(count_b.max()) if len(count_b) else 0
    rows, columns = chosen.nonzero(as_tuple=True)  # row by row
    row_start_b = count_b.cumsum(0) - count_b
    position = torch.arange(len(rows), device=rows.device) - row_start_b[rows]
    packed = torch.zeros(len(chosen), width, dtype=torch.int64, device=rows.device)
    packed[rows, position] = columns
    real = torch.arange(width, device=rows.device) < count_b.unsqueeze(1)
    return packed, real


def _pack_unread(chosen: Tensor, count_b: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`pack` into as many columns as there are, by operators whose sizes are known."""
    n_docs = chosen.shape[1]
    columns = torch.arange(n_docs, device=chosen.device)
    # What is not chosen goes to one column more, which is cut off.
    position = (chosen.cumsum(dim=1) - 1).masked_fill(~chosen, n_docs)
    packed = position.new_zeros(len(chosen), n_docs + 1)
    packed = packed.scatter_(1, position, columns.expand_as(position))[:, :-1]
    return packed, columns < count_b.unsqueeze(1)


def find_uppers(labels: Tensor, mask: Tensor) -> Uppers:
    """Pack the documents that have a less relevant one in their list; labels are floating."""
    lowest_label = labels.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True)
    columns, real = pack((labels > lowest_label) & mask)
    labels_p, order = labels.gather(1, columns).masked_fill(~real, torch.inf).sort(dim=1)
    first = torch.searchsorted(labels_p, labels_p)
    starts_level = (first == torch.arange(columns.shape[1], device=first.device)) & real
    if reads_counts(labels):
        levels = int(starts_level.sum(dim=1).max()) if columns.numel() else 0
    else:
        levels = columns.shape[1]
    return Uppers(
        columns=columns.gather(1, order),
        real=real,
        labels=labels_p,
        first=first,
        lowest=(labels == lowest_label) & mask,
        lowest_label=lowest_label,
        levels=levels,
    )


def sum_below(x: Tensor, uppers: Uppers) -> Tensor:
    """``[B, P]``: the sum of x ``[B, N]`` over the documents less relevant than each upper one."""
    sum_lowest = x.masked_fill(~uppers.lowest, 0.0).sum(dim=1, keepdim=True)
    running = uppers.take(x).masked_fill(~uppers.real, 0.0).cumsum(dim=1)
    running = torch.cat([torch.zeros_like(sum_lowest), running], dim=1)  # 0 before the first
    sum_between = running.gather(1, uppers.first)
    return sum_lowest + sum_between
