"""How training batches are loaded: the option ``loading`` of a data module, and the loader."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from ltr.batch import RankingBatch
from ltr.data.sampling.plan import TrainBatches
from ltr.errors import ENDING_SIGNALS, at_least


@dataclass(frozen=True)
class Loading:
    """How batches are drawn and collated. What is learnt depends on ``seed`` and ``bucket_window``
    alone.

    Args:
        num_workers: processes that collate batches; 0: the trainer's own does.
        persistent_workers: keep those processes from epoch to epoch.
        bucket_window: batches among which rows are sorted by length to save padding; 1 turns that
            off. P×K batches are not sorted.
        seed: of all sampling; None takes that of ``seed_everything``.

    Raises:
        InputError: for a window below 1, or a number of workers or a seed below 0.

    Example:
        >>> loading = Loading(num_workers=2)  # beside the training
    """

    num_workers: int = 0
    persistent_workers: bool = False
    bucket_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        # Errors name the option by its path below ``data``, which is no Python name.
        at_least(1, **{"loading.bucket_window": self.bucket_window})
        at_least(0, **{"loading.num_workers": self.num_workers, "loading.seed": self.seed})

    @property
    def sampling_seed(self) -> int:
        """The seed, or that of ``seed_everything``; 0 without either."""
        if self.seed is not None:
            return self.seed
        return int(os.environ.get("PL_GLOBAL_SEED", 0))

    def loader(self, batches: Dataset, sampler: Sampler, *, pinned: bool) -> DataLoader:
        """A loader of a data set that makes whole batches, in the order of a sampler.

        Args:
            batches: what is loaded.
            sampler: the keys of batches, one by one.
            pinned: whether batches lie in memory that a GPU can read directly.
        """
        return DataLoader(batches, **self._options(sampler, pinned))

    def train_loader(
        self,
        batches: TrainBatches,
        sampler: Sampler,
        before_batch: Callable[[], None],
        *,
        pinned: bool,
    ) -> "TrainLoader":
        """A loader of training batches, see :class:`TrainLoader`."""
        return TrainLoader(before_batch, batches, **self._options(sampler, pinned))

    def _options(self, sampler: Sampler, pinned: bool) -> dict[str, Any]:
        return {
            "batch_size": None,  # the data set makes whole batches
            "sampler": sampler,
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers and self.num_workers > 0,
            "collate_fn": _as_it_is,
            "worker_init_fn": _leave_signals_to_the_trainer,
            "pin_memory": pinned,
        }


class TrainLoader(DataLoader):
    """Loads training batches. When the plan has changed, what workers have fetched ahead is thrown
    away, and the next batch is drawn by the new plan.

    Args:
        before_batch: called before each batch.
        dataset: what is loaded, by a :class:`ltr.data.sampling.plan.PlanSampler` that starts at the
            trainer's position.
        options: see ``DataLoader``.
    """

    def __init__(
        self, before_batch: Callable[[], None], dataset: TrainBatches, **options: Any
    ) -> None:
        super().__init__(dataset, **options)
        self.plan = dataset.plan
        self.before_batch = before_batch
        self._version = self.plan.version  # of the plan that the workers draw by

    def __iter__(self) -> Iterator[RankingBatch]:  # type: ignore[override]  # a generator is an iterator of batches too
        fetched: Iterator[RankingBatch] | None = None
        while True:
            self.before_batch()
            if self._version != self.plan.version:
                self._version = self.plan.version
                fetched = None
                # DataLoader keeps its persistent workers in _iterator. They have copies of the old plan.
                self._iterator = None
            if fetched is None:
                # Its sampler goes on from the trainer's position, in the middle of an epoch too.
                fetched = super().__iter__()
            try:
                batch = next(fetched)
            except StopIteration:
                return
            yield batch


def _as_it_is(batch: RankingBatch) -> RankingBatch:
    """The batch, whose arrays torch would turn into tensors: they are to stay on the host."""
    return batch


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Make a worker ignore signals. They reach the trainer too, and the trainer decides when the run
    ends: until then it needs batches from its workers.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
