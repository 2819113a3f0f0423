"""What all rankers' data share: ranks and workers, lists to be measured, batches to train on, and the way back after a kill."""

import os
import signal
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from ltr.batch import RankingBatch
from ltr.data.collate import LabelledList
from ltr.data.samplers import BucketedBatches, ShareOfRank, StepSampler
from ltr.errors import InputError


class Collator(Protocol):
    """Makes a batch of lists."""

    def lengths(self, one: LabelledList) -> np.ndarray:
        """What each document of a list costs to score, ``[N]``."""

    def row_length(self, one: LabelledList) -> float:
        """What training rows are sorted by, to share a batch with others like them."""

    def __call__(self, lists: Sequence[LabelledList]) -> RankingBatch: ...


class Rows(Protocol):
    """The rows of an epoch of training."""

    def __len__(self) -> int: ...

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function."""


class RankingDataModule(LightningDataModule):
    """Serves pools to ``validate`` (dev), ``test`` and ``predict`` (test), and ``train`` to ``fit``; its children make them.

    Args:
        path: where the data lies.
        eval_batch_size: queries per evaluation step.
        num_workers: processes that build batches; 0 builds them in the trainer's.
        persistent_workers: keep those processes from epoch to epoch.
        seed: of all sampling; None takes that of ``seed_everything``.

    Raises:
        InputError: for a size below 1, or a number of workers or a seed below 0.
    """

    def __init__(
        self,
        path: str,
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        at_least_one(eval_batch_size=eval_batch_size)
        self.path, self.eval_batch_size = path, eval_batch_size
        self.num_workers, self.persistent_workers = num_workers, persistent_workers and num_workers > 0
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        for name, value in (("num_workers", num_workers), ("seed", self.seed)):
            if value < 0:
                raise InputError(f"{name} must be at least 0, got {value} (option data.init_args.{name})")
        self.train: TrainBatches | None = None
        self._restored = 0

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self._restored = 0

    @property
    def rank(self) -> int:
        """Of this process; 0 without a trainer."""
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def world_size(self) -> int:
        """Processes; 1 without a trainer."""
        return 1 if self.trainer is None else self.trainer.world_size

    @abstractmethod
    def pools(self, split: str) -> "PoolBatches | None":
        """The lists of a split that are measured, or None where there are none."""

    @abstractmethod
    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """The ids of queries and of documents by row: the names that run files know."""

    # Training

    def train_dataloader(self) -> DataLoader:
        if len(self.train) == 0:
            raise InputError(
                f"{self.path}: split 'train' must have a row to learn from for each of the {self.world_size} processes, "
                f"got {self.train.plan.n_rows} in all"
            )
        return self._loader(self.train, StepSampler(len(self.train), self._position))

    def state_dict(self) -> dict:
        """What a checkpoint keeps: the batches that the trainer has consumed, how many make an epoch, and of how many lists."""
        if not self.train:
            return {}
        return {"consumed": self._consumed(), "steps": self._steps(), "per_step": self.train.plan.per_step}

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from a checkpoint, where ``fit`` does.

        Raises:
            InputError: if the epochs of the checkpoint had another number of steps, or other steps, so that its position says
                nothing here.
        """
        if self.trainer.state.fn != "fit" or "steps" not in state_dict:
            return
        if state_dict["steps"] != self._steps():
            raise InputError(
                f"the checkpoint comes from epochs of {state_dict['steps']} steps, here they have {self._steps()}; "
                "go on with the same data, batch_size, devices and limit_train_batches"
            )
        per_step = self.train.plan.per_step
        if state_dict.get("per_step", per_step) != per_step:
            raise InputError(
                f"the checkpoint comes from steps of {state_dict['per_step']} lists, here they have {per_step}; go on with the "
                "same batch_size and devices, or the same groups"
            )
        self._restored = state_dict["consumed"]

    def _consumed(self) -> int:
        """Batches since the start of the run: by what the trainer has consumed, not by what workers had fetched.

        Lightning makes the loader's iterator before it restores its own progress; until then the checkpoint's count holds.
        """
        return max(self._restored, self.trainer.fit_loop.epoch_loop.batch_progress.total.processed) if self.trainer else 0

    def _steps(self) -> int:
        """Steps of an epoch on every rank, as the trainer limits them."""
        limit = self.trainer.limit_train_batches if self.trainer else 1.0
        return min(len(self.train), limit) if isinstance(limit, int) else max(1, int(len(self.train) * limit))

    def _position(self) -> tuple[int, int]:
        """Epoch and step to go on from."""
        return divmod(self._consumed(), self._steps())

    # Measuring

    def val_dataloader(self) -> DataLoader | list:
        return self._eval_loader("dev")

    def test_dataloader(self) -> DataLoader | list:
        return self._eval_loader("test")

    def predict_dataloader(self) -> DataLoader | list:
        return self._eval_loader("test")

    def _eval_loader(self, split: str) -> DataLoader | list:
        batches = self.pools(split)
        return [] if batches is None else self._loader(batches, ShareOfRank(len(batches), self.rank, self.world_size))

    def _loader(self, batches: Dataset, sampler) -> DataLoader:
        return DataLoader(
            batches,
            batch_size=None,  # the data set makes whole batches
            sampler=sampler,
            num_workers=self.num_workers,
            persistent_workers=self.persistent_workers,
            worker_init_fn=_leave_ctrl_c_to_the_trainer,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        )


def at_least_one(**options: int) -> None:
    """Whether options of a datamodule that count something are at least 1.

    Raises:
        InputError: if not.
    """
    for name, value in options.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value} (option data.init_args.{name})")


def _leave_ctrl_c_to_the_trainer(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class PoolBatches(Dataset):
    """Lists as batches: number i is always the same. Every rank gets a batch, an empty one if there are fewer lists than ranks.

    Args:
        lists: one per query.
        batch_size: lists per batch at most.
        collator: makes the batch.
        world_size: ranks that share the batches.
    """

    def __init__(self, lists: list[LabelledList], batch_size: int, collator: Collator, world_size: int = 1) -> None:
        # Similar work within a batch; the batches shuffled, so that limit_val_batches does not pick the longest lists.
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


class Plan(Protocol):
    """Which lists form a batch."""

    n_rows: int  # that an epoch has to draw from, for an error
    per_step: int  # lists of a whole step, over all ranks

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""

    def lists(self, epoch: int, step: int) -> list[LabelledList]:
        """The lists of this rank at a step: a pure function."""


class Buckets:
    """A plan that visits every row once an epoch, rows of similar length together.

    Args:
        rows: what to draw from.
        collator: says the length of a row.
        batch_size: rows per step and rank.
        seed, rank, world_size, window: see :class:`ltr.data.samplers.BucketedBatches`.
    """

    def __init__(
        self,
        rows: Rows,
        collator: Collator,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        window: int = 64,
    ) -> None:
        self.rows, self.collator, self.n_rows = rows, collator, len(rows)
        self.batches = BucketedBatches(
            len(rows), batch_size, self._row_lengths, seed=seed, rank=rank, world_size=world_size, window=window
        )
        self.per_step = self.batches.global_batch

    def _row_lengths(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        return np.asarray([self.collator.row_length(self.rows.draw(epoch, row)) for row in rows])

    def __len__(self) -> int:
        return len(self.batches)

    def lists(self, epoch: int, step: int) -> list[LabelledList]:
        """See :class:`Plan`."""
        return [self.rows.draw(epoch, row) for row in self.batches.rows(epoch, step)]


class TrainBatches(Dataset):
    """Training batches by (epoch, step).

    Args:
        plan: which lists form a batch.
        collator: makes the batch.
    """

    def __init__(self, plan: Plan, collator: Collator) -> None:
        self.plan, self.collator = plan, collator

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: tuple[int, int] | int) -> RankingBatch:
        epoch, step = key if isinstance(key, tuple) else (0, key)  # overfit_batches numbers the batches itself
        return self.collator(self.plan.lists(epoch, step))
