"""Batches of P groups, no two of one owner."""

import logging
from heapq import heapify, heappop, heappush

import numpy as np

from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import Plan
from ltr.data.sampling.rows import Groups
from ltr.errors import InputError

log = logging.getLogger(__name__)


class GroupPlan(Plan):
    """Global batches of P groups (``groups_per_batch``, over all processes), no two of one owner.

    At every step the P owners with the most groups left give one each (ties at random). So batches
    are as full as they can be, and a common label does not fill the end of an epoch alone. Full
    batches are then shuffled, and smaller ones come last. Batches of fewer than two groups, or of
    fewer groups than processes, are dropped. The processes deal out a global batch group by group;
    it is the same whatever their number.

    Raises:
        InputError: if ``groups_per_batch`` is below the number of processes, or no batch remains.
    """

    def __init__(
        self,
        groups: Groups,
        groups_per_batch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        where: str = "train",
    ) -> None:
        if groups_per_batch < world_size:
            least = f"at least the number of processes, {world_size}"
            raise InputError(
                f"groups must be {least}, got {groups_per_batch}: each needs one of every batch",
                option="groups",
            )
        self.groups = groups
        self.per_step = groups_per_batch
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.n_rows = len(groups.owners)
        _, self._firsts, self._counts = np.unique(
            groups.owners, return_index=True, return_counts=True
        )
        # Chance decides only among owners with equally many left: every epoch has these sizes.
        batches = self._batches(0)
        self._n_steps = len(batches)
        self.n_used = sum(map(len, batches))
        self._epoch_batches: tuple[int, list[np.ndarray]] | None = None
        if not batches:
            least = f"at least {max(2, world_size)} groups, to be told from each other, and one for every process"
            raise InputError(f"{where}: a batch needs {least}; got {self.n_rows}")
        if left_out := self.n_rows - self.n_used:
            text = "%s: %d of %d groups find none to share a batch with; other ones in each epoch"
            log.info(text, where, left_out, self.n_rows)

    def __len__(self) -> int:
        return self._n_steps

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        if self._epoch_batches is None or self._epoch_batches[0] != epoch:
            self._epoch_batches = epoch, self._batches(epoch)
        return [
            self.groups.draw(epoch, group)
            for group in self._epoch_batches[1][step][self.rank :: self.world_size]
        ]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """The groups of each global batch."""
        rng = np.random.default_rng([self.seed, epoch])
        ties = iter(rng.random(self.n_rows).tolist())
        # The next group of every owner, the owner with the most groups left on top.
        heap = [
            (-left, next(ties), first)
            for left, first in zip(self._counts.tolist(), self._firsts.tolist(), strict=True)
        ]
        heapify(heap)
        batches = []
        while heap and heap[0][0] < -1:
            taken = [heappop(heap) for _ in range(min(self.per_step, len(heap)))]
            # Permuted, or the first process would always get the common labels.
            batches.append(rng.permutation([group for _, _, group in taken]))
            # The groups of an owner have consecutive numbers.
            for minus_left, _, group in taken:
                if minus_left < -1:
                    heappush(heap, (minus_left + 1, next(ties), group + 1))
        # Now every owner has one group left, as queries have from the beginning: any cut will do.
        last = rng.permutation([group for _, _, group in heap])
        batches += [last[at : at + self.per_step] for at in range(0, len(last), self.per_step)]
        # Batches only get smaller, so the full ones come first.
        n_full = sum(len(batch) == self.per_step for batch in batches)
        smaller = [batch for batch in batches[n_full:] if len(batch) >= max(2, self.world_size)]
        return [batches[at] for at in rng.permutation(n_full)] + smaller
