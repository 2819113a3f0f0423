"""Batches of P groups, no two of one owner."""

import logging
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import SourcePlan
from ltr.data.sampling.rows import TextGroups
from ltr.errors import InputError

log = logging.getLogger(__name__)


LEAST_GROUPS = 2  # of a batch: one has nothing to be told from


class _NextGroup(NamedTuple):
    """The next group of an owner; entries compare by the fields in this order."""

    minus_left: int  # minus the number of groups that the owner has left, this one among them
    tie: float  # random, for owners with equally many left
    group: int


class GroupPlan(SourcePlan):
    """Global batches of P groups (``groups_per_batch``, over all processes), no two of one owner.

    At every step the P owners with the most groups left give one each (ties at random). So batches
    are as full as they can be, and a common label does not fill the end of an epoch alone. Full
    batches are then shuffled, and smaller ones come last. A last group that is alone is dropped.
    The processes deal out a global batch group by group, and the global batches do not depend on
    how many processes there are.

    Raises:
        InputError: if no batch remains.
    """

    def __init__(
        self,
        groups: TextGroups,
        groups_per_batch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        where: str = "train",
    ) -> None:
        self.groups = groups
        self.per_step = groups_per_batch
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.n_rows = len(groups.owners)
        # Owners ascend, so the groups of an owner have consecutive numbers from its first one on.
        _, self._first_group_of_owner, self._n_groups_of_owner = np.unique(
            groups.owners, return_index=True, return_counts=True
        )
        # Chance decides only among owners with equally many left: every epoch has these sizes.
        batches = self._batches(0)
        self._n_steps = len(batches)
        self._groups_per_step = np.fromiter(map(len, batches), dtype=np.int64)
        # The epoch that was asked for last, and its batches.
        self._epoch_batches: tuple[int, list[np.ndarray]] | None = None
        if not batches:
            raise InputError(
                f"{where}: a batch needs at least {LEAST_GROUPS} groups, to be told from each other, got {self.n_rows}"
            )
        if left_out := self.n_rows - int(self._groups_per_step.sum()):
            log.info(
                "%s: %d of %d groups find none to share a batch with; other ones in each epoch",
                where,
                left_out,
                self.n_rows,
            )

    def __len__(self) -> int:
        return self._n_steps

    def lists_per_step(self, epoch: int) -> np.ndarray:
        return self._groups_per_step

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        if self._epoch_batches is None or self._epoch_batches[0] != epoch:
            self._epoch_batches = (epoch, self._batches(epoch))
        own_groups = self._epoch_batches[1][step][self.rank :: self.world_size]
        return [self.groups.draw(epoch, group) for group in own_groups]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """The groups of each global batch."""
        rng = np.random.default_rng([self.seed, epoch])
        ties = iter(rng.random(self.n_rows).tolist())
        # The next group of every owner. The heap has its least entry on top: the owner with the
        # most groups left.
        heap = []
        for n_left, group in zip(
            self._n_groups_of_owner.tolist(), self._first_group_of_owner.tolist(), strict=True
        ):
            heap.append(_NextGroup(-n_left, next(ties), group))
        heapify(heap)
        batches = []
        while heap and heap[0].minus_left < -1:
            taken = [heappop(heap) for _ in range(min(self.per_step, len(heap)))]
            # Permuted, or the first process would always get the common labels.
            batches.append(rng.permutation([entry.group for entry in taken]))
            for entry in taken:
                if entry.minus_left < -1:
                    heappush(heap, _NextGroup(entry.minus_left + 1, next(ties), entry.group + 1))
        # Now every owner has one group left, as queries have from the beginning: any cut will do.
        last_groups = rng.permutation([entry.group for entry in heap])
        for start in range(0, len(last_groups), self.per_step):
            batches.append(last_groups[start : start + self.per_step])
        # A batch is never larger than the one before it, so the full ones come first.
        full = [batch for batch in batches if len(batch) == self.per_step]
        smaller = batches[len(full) :]
        shuffled = [full[number] for number in rng.permutation(len(full))]
        return shuffled + [batch for batch in smaller if len(batch) >= LEAST_GROUPS]
