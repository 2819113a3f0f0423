"""What a training will take: seconds, memory and disk, from how long each kind of its work takes."""

import math
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from ltr.callbacks import HardNegativeMining
from ltr.check.section import Section
from ltr.compare.tables import Table
from ltr.data.progress import duration


@dataclass(frozen=True)
class Work:
    """One kind of work of a training.

    Attributes:
        name: what is done, as ``validation``.
        times: how often.
        seconds: that it takes each time.
    """

    name: str
    times: int
    seconds: float

    @property
    def total_seconds(self) -> float:
        """All times together."""
        return self.times * self.seconds


@dataclass(frozen=True)
class Forecast:
    """What a training will take, from before its first validation to its end.

    Attributes:
        works: all kinds of work.
        memory: bytes of the process at most.
        device_memory: bytes on a GPU at most; None without one.
        disk: bytes of the run folder.
    """

    works: list[Work]
    memory: int | None = None
    device_memory: int | None = None
    disk: int | None = None

    @property
    def seconds(self) -> float:
        """Of the whole training."""
        return sum(work.total_seconds for work in self.works)


@dataclass(frozen=True)
class Schedule:
    """How often a training does what.

    Attributes:
        steps: of the optimiser: all, or those of one epoch where the training has no last step.
        batches: that these steps train on.
        has_end: whether the training has a last step.
        validates_first: whether it measures the weights that it starts from.
        choices: validations while training, after each of which a checkpoint is written.
        refreshes: of mined negatives.
    """

    steps: int
    batches: int
    has_end: bool
    validates_first: bool
    choices: int
    refreshes: int

    @property
    def validations(self) -> int:
        """All, with the one before the first step."""
        return self.choices + int(self.validates_first)

    @property
    def batches_per_step(self) -> float:
        """The mean: the last step of an epoch may have fewer."""
        return self.batches / self.steps


def schedule_of(
    trainer: Trainer, *, validates_first: bool, mining: HardNegativeMining | None, mines_first: bool
) -> Schedule:
    """The schedule of a training whose first batch is there.

    Args:
        trainer: has its training batches.
        validates_first: whether it measures the weights that it starts from.
        mining: what refreshes negatives, if anything does.
        mines_first: whether negatives are mined before the first step.
    """
    epoch_batches = max(1, int(trainer.num_training_batches))
    accumulated = trainer.accumulate_grad_batches
    epoch_steps = math.ceil(epoch_batches / accumulated)  # the last batch of an epoch makes one
    total = trainer.estimated_stepping_batches
    has_end = math.isfinite(total) and total > 0
    steps = int(total) if has_end else epoch_steps
    whole_epochs, steps_of_rest = divmod(steps, epoch_steps)
    batches = whole_epochs * epoch_batches + steps_of_rest * accumulated
    epochs = max(1, math.ceil(batches / epoch_batches))
    refreshes = 0
    if mining is not None:
        refreshes = int(mines_first)
        if mining.schedule.steps is not None:
            refreshes += (steps - 1) // mining.schedule.steps
        elif mining.schedule.epochs is not None:
            refreshes += (epochs - 1) // mining.schedule.epochs
    choices = _validations_while_training(trainer, batches, epoch_batches)
    return Schedule(steps, batches, has_end, validates_first, choices, refreshes)


def _validations_while_training(trainer: Trainer, batches: int, epoch_batches: int) -> int:
    """How often so many training batches are interrupted by a validation.

    25 batches in epochs of 10, validated after each half of an epoch: 4 times in the two whole
    epochs, and once in the rest.
    """
    interval = trainer.val_check_interval or 1.0  # a share of an epoch, or a number of batches
    if isinstance(interval, float):
        interval = max(1, int(epoch_batches * interval))
    every_n_epochs = trainer.check_val_every_n_epoch
    if every_n_epochs is None:  # batches are counted on from epoch to epoch
        return int(batches // interval)
    whole_epochs, rest = divmod(batches, epoch_batches)
    validations = (whole_epochs // every_n_epochs) * (epoch_batches // interval)
    if (whole_epochs + 1) % every_n_epochs == 0:  # the last epoch may not be whole
        validations += rest // interval
    return int(validations)


def works_of(schedule: Schedule, seconds: Mapping[str, float]) -> list[Work]:
    """The kinds of work whose seconds are known, each as often as the schedule has it.

    Args:
        schedule: how often the training does what.
        seconds: of one time of each kind, by its name.
    """
    times = {
        "step": schedule.steps,
        "validation": schedule.validations,
        "refresh of negatives": schedule.refreshes,
        # One is written after each of these, and one at the end of a training without any.
        "checkpoint": max(1, schedule.choices),
    }
    return [Work(name, times[name], each) for name, each in seconds.items()]


def forecast_section(forecast: Forecast, schedule: Schedule) -> Section:
    """A forecast as a table."""
    rows = []
    for work in forecast.works:
        total = duration(work.total_seconds)
        rows.append([work.name, f"{work.times:,}", f"{work.seconds:.3g}", total])
    rows.append(["all", "", "", duration(forecast.seconds)])
    lines = []
    if not schedule.has_end:
        lines.append("the training has no last step: this is one epoch of it")
    entries: dict[str, object] = {"seconds": forecast.seconds, "steps": schedule.steps}
    for work in forecast.works:
        entries[work.name] = {"times": work.times, "seconds": work.seconds}
    sizes = {
        "memory": forecast.memory,
        "device_memory": forecast.device_memory,
        "disk": forecast.disk,
    }
    parts = []
    for name, size in sizes.items():
        if size is not None:
            entries[name] = size
            what = "memory of the GPU" if name == "device_memory" else name
            parts.append(f"{what} {_size_in_words(size)}")
    if parts:
        lines.append(", ".join(parts))
    table = Table("what the training will take", ["work", "times", "seconds each", "in all"], rows)
    return Section("Forecast", [table], lines, entries=entries)


def _size_in_words(size: int) -> str:
    """A number of bytes as ``1.2 GB`` or ``34 MB``."""
    return f"{size / 1e9:.2g} GB" if size >= 1e8 else f"{size / 1e6:.2g} MB"


class PeakMemory:
    """The most memory that this process takes: from here on under Linux, which is told to forget the
    earlier peak; elsewhere from its start on.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def process_peak(self) -> int:
        """Bytes of the process."""
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def device_peak(self) -> int | None:
        """Bytes on the GPU; None without one."""
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
