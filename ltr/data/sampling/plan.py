"""Plans: which lists form a batch, and the samplers and data sets that follow a plan.

The lists of a batch are a pure function of (seed, epoch, step) and of the process, so that a run
can resume exactly. The one exception, frozen batches, is kept in checkpoints. The sampler has the
plan: the main process draws the lists of a batch, and the workers only collate them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import Dataset, DistributedSampler

from ltr.batch import RankingBatch
from ltr.data.collate import Collator
from ltr.data.query_lists import LabelledList

# The rows of each batch of a window; of several sources, those of each that has some.
RowsOfBatches = list[list[int]]
Frozen = RowsOfBatches | list[RowsOfBatches | None]


class Plan(ABC):
    """Which lists form a batch of this process, ``rank`` of ``world_size``."""

    n_rows: int  # rows that an epoch draws from
    per_step: int  # lists of a step, over all processes
    rank: int  # this process, and
    world_size: int  # how many there are

    @property
    def version(self) -> int:
        """A number that is raised whenever other documents are drawn from now on."""
        return 0

    @abstractmethod
    def __len__(self) -> int:
        """Steps of an epoch, the same in every process."""

    @abstractmethod
    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        """The lists of this process at a step.

        Args:
            epoch: counted from 0.
            step: of the epoch, counted from 0.
            together: all processes ask for this step now, so they may share the drawing.
        """

    def source_position(self, source: int, epoch: int, step: int) -> tuple[int, int]:
        """The epoch and the step of its own that a source, by its number, gives next, from a step
        on; here there is one source.
        """
        return epoch, step

    def frozen_batches(self, epoch: int, step: int) -> Frozen | None:
        """The rows of the batches of the window that this step lies in, if they were frozen; else
        None. Of several sources, those of each.

        A checkpoint keeps them, as they do not follow from (seed, epoch, step).
        """
        return None

    def restore_frozen(self, epoch: int, step: int, batches: Any) -> None:
        """Freeze the batches of the window that this step lies in again, as a checkpoint has them
        from :meth:`frozen_batches`.
        """
        raise NotImplementedError


class SourcePlan(Plan):
    """A plan of one source's training lists."""

    @abstractmethod
    def lists_per_step(self, epoch: int) -> np.ndarray:
        """``[steps]`` int64: how many lists each step of an epoch has, over all processes. Their sum
        is the same in every epoch.
        """


class PlanSampler(DistributedSampler):
    """Draws the batches of an epoch, from the first one that the trainer has not consumed yet.

    It is a ``DistributedSampler`` only so that Lightning does not replace it by one of its own: the
    plan knows its process.

    Args:
        plan: says which lists form a batch.
        position: returns the epoch and its first step; without, an epoch is the whole one of which
            ``set_epoch`` was told.
    """

    def __init__(self, plan: Plan, position: Callable[[], tuple[int, int]] | None = None) -> None:
        self.plan = plan
        self.position = position
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[LabelledList]]:
        # Not a generator function: its body would run at the first next(), and the position must be
        # read now.
        epoch = self.epoch
        first_step = 0
        if self.position is not None:
            epoch, first_step = self.position()
        steps = range(first_step, len(self.plan))
        return (self.plan.lists(epoch, step, together=True) for step in steps)


class ShareOfRank(DistributedSampler):
    """Every ``world_size``-th of ``n_batches`` batches: each is evaluated exactly once, whatever the
    number of processes. It is a ``DistributedSampler`` for the reason of :class:`PlanSampler`.
    """

    def __init__(self, n_batches: int, rank: int, world_size: int) -> None:
        self.batches = range(rank, n_batches, world_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[int]:
        return iter(self.batches)


class TrainBatches(Dataset):
    """Training batches. A :class:`PlanSampler` passes their lists in; ``batches[epoch, step]`` draws
    them here, for who looks at a batch without a loader.
    """

    def __init__(self, plan: Plan, collator: Collator) -> None:
        self.plan = plan
        self.collator = collator

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: list[LabelledList] | tuple[int, int] | int) -> RankingBatch:
        # With overfit_batches, Lightning's own sampler numbers the batches.
        if isinstance(key, int):
            return self.collator(self.plan.lists(epoch=0, step=key))
        if isinstance(key, tuple):
            epoch, step = key
            return self.collator(self.plan.lists(epoch, step))
        return self.collator(key)


class EvalBatches(Dataset):
    """Lists to evaluate, in fixed batches. There is at least one for every process: if there are
    fewer lists than processes, some batches are empty.
    """

    def __init__(
        self, lists: list[LabelledList], batch_size: int, collator: Collator, world_size: int = 1
    ) -> None:
        # Lists of similar cost share a batch. The batches are shuffled: else limit_val_batches would
        # pick the shortest lists.
        lists = sorted(lists, key=lambda ranked_list: int(collator.costs(ranked_list).sum()))
        size = max(1, min(batch_size, len(lists) // world_size))
        batches = [lists[start : start + size] for start in range(0, len(lists), size)]
        order = np.random.default_rng(0).permutation(len(batches))
        self.batches = [batches[number] for number in order]
        self.batches += [[]] * (world_size - len(batches))
        self.collator = collator

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> RankingBatch:
        return self.collator(self.batches[number])
