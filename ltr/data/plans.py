"""Which lists form a batch: a pure function of (seed, epoch, step) and of the process, so that a run can resume exactly.

The plan lives in the sampler: the main process draws the lists of a batch, and the workers only collate them.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from torch import distributed
from torch.utils.data import Dataset, DistributedSampler

from ltr.batch import RankingBatch
from ltr.data.collate import Collator
from ltr.data.query_lists import LabelledList
from ltr.data.rows import Groups, Rows
from ltr.errors import InputError

log = logging.getLogger(__name__)

Length = Callable[[LabelledList], float]


class Plan(ABC):
    """Which lists form a batch of this process, ``rank`` of ``world_size``."""

    n_rows: int  # rows that an epoch draws from
    per_step: int  # lists of a step, over all processes
    version: int = 0  # another one after each change of what is drawn

    @abstractmethod
    def __len__(self) -> int:
        """Steps of an epoch, the same in every process."""

    @abstractmethod
    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        """The lists of this process at a step; ``together``: all processes ask for it now, so they may share the drawing."""

    def kept_batches(self, epoch: int, step: int) -> list[list[int]] | None:
        """The rows of batches around this step that (seed, epoch, step) does not tell, for a checkpoint; else None."""
        return None

    def keep(self, epoch: int, step: int, batches: list[list[int]]) -> None:
        """Take over what :meth:`kept_batches` has said."""
        raise NotImplementedError


class _Window(NamedTuple):
    """Batches that were planned together."""

    key: tuple[int, int]  # epoch, number in the epoch
    batches: list[list[int]]  # the rows of each global batch
    drawn: dict[int, LabelledList]  # lists that are drawn already, by row


class Buckets(Plan):
    """Visits every row once an epoch, with rows of similar length in a batch.

    An epoch is a permutation of all rows, cut into windows of ``window`` global batches. The rows of a window are drawn, sorted
    by length and cut into batches, and the batches are shuffled. The processes deal out each global batch row by row; a last,
    smaller one is kept if it has a row for every process.

    Args:
        length: the length to sort by.
        batch_size: rows per step and process.
        window: global batches per window; 1 turns the sorting off.
    """

    def __init__(
        self, rows: Rows, length: Length, batch_size: int, *, seed: int, rank: int = 0, world_size: int = 1, window: int = 64
    ) -> None:
        self.rows, self.length, self.n_rows = rows, length, len(rows)
        self.per_step = batch_size * world_size
        rest = self.n_rows % self.per_step
        self.n_used = self.n_rows - (rest if rest < world_size else 0)
        self.seed, self.rank, self.world_size, self.window = seed, rank, world_size, window
        self._permutation: tuple[int, np.ndarray] | None = None
        self._window: _Window | None = None
        self._kept: _Window | None = None  # one whose batches keep their rows, though other documents are drawn for them now

    def __len__(self) -> int:
        return -(-self.n_used // self.per_step)

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        number, at = divmod(step, self.window)
        if self._window is None or self._window.key != (epoch, number):  # steps come in order: the last window is kept
            self._window = self._planned(epoch, number, together)
        own, drawn = self._window.batches[at][self.rank :: self.world_size], self._window.drawn
        return [drawn[row] if row in drawn else self.rows.draw(epoch, row) for row in own]

    def replace(self, rows: Rows) -> None:
        """Draw other documents for the same rows, from the next batch on."""
        assert len(rows) == self.n_rows, "the plan of an epoch counts the rows"
        self.rows, self._window, self.version = rows, None, self.version + 1

    def keep_window(self, epoch: int, step: int) -> None:
        """Let the batches keep their rows that are planned together with those before this step, whatever is drawn for them.

        So an epoch visits each row once, though the rows are replaced in its midst. All processes must call it together.
        """
        if step % self.window:
            self._kept = self._planned(epoch, step // self.window, together=True)._replace(drawn={})

    def kept_batches(self, epoch: int, step: int) -> list[list[int]] | None:
        return self._kept.batches if self._kept is not None and self._kept.key == (epoch, step // self.window) else None

    def keep(self, epoch: int, step: int, batches: list[list[int]]) -> None:
        self._kept = _Window((epoch, step // self.window), batches, {})

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_permutation": None, "_window": None}  # a spawned worker needs neither

    def _planned(self, epoch: int, number: int, together: bool) -> "_Window":
        """The batches of a window, with the lists of this process that were drawn to plan them."""
        if self._kept is not None and self._kept.key == (epoch, number):
            return self._kept
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)
        size = self.per_step * self.window
        rows = self._permutation[1][: self.n_used][number * size : (number + 1) * size]
        if self.window == 1:
            return _Window((epoch, number), [rows.tolist()], {})
        drawn = self._drawn(epoch, rows, together)
        order = np.argsort([length for length, _ in drawn], kind="stable")
        batches = [order[at : at + self.per_step].tolist() for at in range(0, len(order), self.per_step)]
        shuffled = [batches[at] for at in np.random.default_rng([self.seed, epoch, number]).permutation(len(batches))]
        own = [at for batch in shuffled for at in batch[self.rank :: self.world_size]]
        planned = [[int(rows[at]) for at in batch] for batch in shuffled]
        return _Window((epoch, number), planned, {int(rows[at]): drawn[at][1] for at in own})

    def _drawn(self, epoch: int, rows: np.ndarray, together: bool) -> list[tuple[float, LabelledList]]:
        """Length and list of each row. Processes that ask together draw a share each, and exchange them."""
        share = together and distributed.is_initialized() and distributed.get_world_size() == self.world_size > 1
        own = rows[self.rank :: self.world_size] if share else rows
        drawn = [(self.length(one), one) for one in (self.rows.draw(epoch, row) for row in own)]
        if not share:
            return drawn
        parts: list[list] = [[] for _ in range(self.world_size)]
        distributed.all_gather_object(parts, drawn)
        return [parts[at % self.world_size][at // self.world_size] for at in range(len(rows))]


class GroupPlan(Plan):
    """Global batches of P groups (``groups_per_batch``, over all processes), no two of one owner.

    At every step the P owners with the most groups left give one each (ties at random). So batches are as full as they can be,
    and a common label does not fill the end of an epoch alone. Full batches are then shuffled; smaller ones come last, and one
    with fewer than two groups, or with none for some process, is left out. The processes deal out a global batch group by group;
    it is the same whatever their number. A batch with fewer groups than processes, or an epoch without one, is an InputError.
    """

    def __init__(
        self, groups: Groups, groups_per_batch: int, seed: int, rank: int = 0, world_size: int = 1, *, where: str = "train"
    ) -> None:
        if groups_per_batch < world_size:
            least = f"at least the number of processes, {world_size}"
            raise InputError(f"groups must be {least}, got {groups_per_batch}: each needs one of every batch", option="groups")
        self.groups, self.per_step, self.seed, self.rank, self.world_size = groups, groups_per_batch, seed, rank, world_size
        self.n_rows = len(groups.owners)
        _, self._firsts, self._counts = np.unique(groups.owners, return_index=True, return_counts=True)
        batches = self._batches(0)  # chance decides only among owners with equally many left: every epoch has these sizes
        self._n_steps, self.n_used = len(batches), sum(map(len, batches))
        self._kept: tuple[int, list[np.ndarray]] | None = None
        if not batches:
            least = f"at least {max(2, world_size)} groups, to be told from each other, and one for every process"
            raise InputError(f"{where}: a batch needs {least}; got {self.n_rows}")
        if left_out := self.n_rows - self.n_used:
            text = "%s: %d of %d groups find none to share a batch with; other ones in each epoch"
            log.info(text, where, left_out, self.n_rows)

    def __len__(self) -> int:
        return self._n_steps

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        if self._kept is None or self._kept[0] != epoch:
            self._kept = epoch, self._batches(epoch)
        return [self.groups.draw(epoch, group) for group in self._kept[1][step][self.rank :: self.world_size]]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """The groups of each global batch."""
        rng = np.random.default_rng([self.seed, epoch])
        ties = iter(rng.random(self.n_rows).tolist())
        # The next group of every owner, the owner with the most groups left on top.
        heap = [(-left, next(ties), first) for left, first in zip(self._counts.tolist(), self._firsts.tolist(), strict=True)]
        heapify(heap)
        batches = []
        while heap and heap[0][0] < -1:
            taken = [heappop(heap) for _ in range(min(self.per_step, len(heap)))]
            batches.append(rng.permutation([group for _, _, group in taken]))  # or rank 0 would always get the common labels
            for minus_left, _, group in taken:
                if minus_left < -1:
                    heappush(heap, (minus_left + 1, next(ties), group + 1))
        last = rng.permutation([group for _, _, group in heap])  # one of each owner, as queries have from the beginning
        batches += [last[at : at + self.per_step] for at in range(0, len(last), self.per_step)]
        n_full = sum(len(batch) == self.per_step for batch in batches)
        smaller = [batch for batch in batches[n_full:] if len(batch) >= max(2, self.world_size)]
        return [batches[at] for at in rng.permutation(n_full)] + smaller


class PlanSampler(DistributedSampler):
    """Draws the batches of an epoch, from the first one that the trainer has not consumed yet.

    To Lightning it is a ``DistributedSampler``: it knows its rank, so it must not be replaced by one that does not.
    ``position`` says (epoch, first step); without, it is all of the epoch that ``set_epoch`` says.
    """

    def __init__(self, plan: Plan, position: Callable[[], tuple[int, int]] | None = None) -> None:
        self.plan, self.position, self.epoch = plan, position, 0

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[LabelledList]]:
        epoch, first = (self.epoch, 0) if self.position is None else self.position()
        return (self.plan.lists(epoch, step, together=True) for step in range(first, len(self.plan)))


class ShareOfRank(DistributedSampler):
    """Every world_size-th of n batches, unpadded: each is evaluated exactly once, whatever the number of processes."""

    def __init__(self, n_batches: int, rank: int, world_size: int) -> None:
        self.batches = range(rank, n_batches, world_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[int]:
        return iter(self.batches)


class TrainBatches(Dataset):
    """Training batches, collated from the lists of a :class:`PlanSampler`, or drawn here: ``batches[epoch, step]``."""

    def __init__(self, plan: Plan, collator: Collator) -> None:
        self.plan, self.collator = plan, collator

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: list[LabelledList] | tuple[int, int] | int) -> RankingBatch:
        if isinstance(key, int):  # with overfit_batches, Lightning's own sampler numbers the batches
            key = 0, key
        return self.collator(self.plan.lists(*key) if isinstance(key, tuple) else key)


class EvalBatches(Dataset):
    """Lists to evaluate, in fixed batches. Every process gets one, an empty one if there are fewer lists than processes."""

    def __init__(self, lists: list[LabelledList], batch_size: int, collator: Collator, world_size: int = 1) -> None:
        # Lists of similar cost in a batch; batches shuffled, so that limit_val_batches does not pick the longest lists.
        lists = sorted(lists, key=lambda one: int(collator.lengths(one).sum()))
        size = max(1, min(batch_size, len(lists) // world_size))
        batches = [lists[at : at + size] for at in range(0, len(lists), size)]
        self.batches = [batches[i] for i in np.random.default_rng(0).permutation(len(batches))]
        self.batches += [[]] * (world_size - len(batches))
        self.collator = collator

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> RankingBatch:
        return self.collator(self.batches[number])
