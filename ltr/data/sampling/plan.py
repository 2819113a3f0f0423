"""Which lists form a batch: a pure function of (seed, epoch, step) and of the process, so that a
run can resume exactly. The one exception, frozen batches, is kept in checkpoints.

The plan lives in the sampler: the main process draws the lists of a batch, and the workers only
collate them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
from torch.utils.data import Dataset, DistributedSampler

from ltr.batch import RankingBatch
from ltr.data.collate import Collator
from ltr.data.query_lists import LabelledList


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
        """The lists of this process at a step; ``together``: all processes ask for it now, so they
        may share the drawing.
        """

    def frozen_batches(self, epoch: int, step: int) -> list[list[int]] | None:
        """The rows of the batches around this step, for a checkpoint, where they were frozen and
        (seed, epoch, step) does not tell them; else None.
        """
        return None

    def freeze(self, epoch: int, step: int, batches: list[list[int]]) -> None:
        """Take over what :meth:`frozen_batches` has said."""
        raise NotImplementedError


class PlanSampler(DistributedSampler):
    """Draws the batches of an epoch, from the first one that the trainer has not consumed yet.

    To Lightning it is a ``DistributedSampler``: it knows its rank, so it must not be replaced by
    one that does not. ``position`` says (epoch, first step); without, it is all of the epoch that
    ``set_epoch`` says.
    """

    def __init__(self, plan: Plan, position: Callable[[], tuple[int, int]] | None = None) -> None:
        self.plan = plan
        self.position = position
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[LabelledList]]:
        epoch, first = (self.epoch, 0) if self.position is None else self.position()
        return (
            self.plan.lists(epoch, step, together=True) for step in range(first, len(self.plan))
        )


class ShareOfRank(DistributedSampler):
    """Every world_size-th of n batches, unpadded: each is evaluated exactly once, whatever the
    number of processes.
    """

    def __init__(self, n_batches: int, rank: int, world_size: int) -> None:
        self.batches = range(rank, n_batches, world_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[int]:
        return iter(self.batches)


class TrainBatches(Dataset):
    """Training batches, collated from the lists of a :class:`PlanSampler`, or drawn here:
    ``batches[epoch, step]``.
    """

    def __init__(self, plan: Plan, collator: Collator) -> None:
        self.plan = plan
        self.collator = collator

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: list[LabelledList] | tuple[int, int] | int) -> RankingBatch:
        if isinstance(
            key, int
        ):  # with overfit_batches, Lightning's own sampler numbers the batches
            key = 0, key
        return self.collator(self.plan.lists(*key) if isinstance(key, tuple) else key)


class EvalBatches(Dataset):
    """Lists to evaluate, in fixed batches. Every process gets one, an empty one if there are fewer
    lists than processes.
    """

    def __init__(
        self, lists: list[LabelledList], batch_size: int, collator: Collator, world_size: int = 1
    ) -> None:
        # Lists of similar cost in a batch; batches shuffled, so that limit_val_batches does not
        # pick the longest lists.
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
