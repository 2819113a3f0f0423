"""Lightning's counters of a run's progress, set in a checkpoint so that a resume is exact.

Lightning's counters say where the code was when a checkpoint was written, and a resume guesses from
them what is still to be done. Some guesses are wrong, and a second resume goes on from the wrong
place. So a checkpoint of ours is written at one of three moments, with the counters that this
moment has, wherever the code was.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict

from lightning.pytorch.callbacks import Timer

from ltr.entries import check_entries


class Moment(Enum):
    """Where a resumed run continues."""

    AFTER_STEP = "with the next batch of this epoch"  # no validation is due any more
    VALIDATION_DUE = "with the validation that is due after this batch, from its beginning"
    EPOCH_END = "with the first batch of the next epoch"


class Counter(TypedDict):
    """How many have been done."""

    processed: int


class EpochProgress(TypedDict):
    """The epochs."""

    current: Counter


class FitLoop(TypedDict):
    """Where training stands."""

    epoch_progress: EpochProgress


class Loops(TypedDict):
    """Where Lightning's loops stand."""

    fit_loop: FitLoop


class Resumable(TypedDict):
    """What a checkpoint must have to be resumed, beside its weights."""

    global_step: int
    loops: Loops
    callbacks: dict[str, Any]
    optimizer_states: list[dict[str, Any]]
    lr_schedulers: list[dict[str, Any]]


def check_resumable(checkpoint: Mapping[str, Any], file: str | Path) -> None:
    """Raise an InputError for a checkpoint that says in no known way where its run stands."""
    check_entries(checkpoint, Resumable, file, "take another one")


def set_counters(checkpoint: dict[str, Any], moment: Moment, batches_since_step: int = 0) -> None:
    """Set the counters in a checkpoint of Lightning to a moment.

    Args:
        checkpoint: as ``dump_checkpoint`` returns it in a callback's hook; changed in place.
        moment: where a resume continues.
        batches_since_step: those whose gradients no optimiser step has used yet. The gradients are
            lost, so a resume repeats the batches.
    """
    fit = checkpoint["loops"]["fit_loop"]
    epoch_has_ended = moment is Moment.EPOCH_END
    for counters in fit["epoch_progress"].values():
        if epoch_has_ended:
            # The hook runs before Lightning counts the epoch as completed.
            done = counters["completed"] + 1
            _set(counters, begun=done, done=done)
        else:
            # In the middle of an epoch one more has begun than is done.
            done = counters["completed"]
            _set(counters, begun=done + 1, done=done)

    batch = fit["epoch_loop.batch_progress"]
    for name in ("total", "current"):
        done = batch[name]["processed"] - batches_since_step
        if epoch_has_ended and name == "current":
            done = 0  # "current" is now the next epoch, which has done none
        _set(batch[name], begun=done, done=done)

    # The scheduler steps, and gradients are set to zero, once per optimiser step: all three have
    # the count of the optimiser steps.
    scheduler = fit["epoch_loop.scheduler_progress"]
    optimizer = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    steps = {
        "total": optimizer["step"]["total"]["completed"],
        "current": optimizer["step"]["current"]["completed"],
    }
    if epoch_has_ended:
        steps["current"] = 0
    for progress in (scheduler, optimizer["step"], optimizer["zero_grad"]):
        for name, done in steps.items():
            _set(progress[name], begun=done, done=done)

    validation = fit["epoch_loop.val_loop.batch_progress"]
    # Lightning resumes a validation if "total" has 1 batch begun and 0 done. It resumes at the batch
    # of "current": 0, the first.
    is_due = moment is Moment.VALIDATION_DUE
    _set(validation["total"], begun=1 if is_due else 0, done=0)
    _set(validation["current"], begun=0, done=0)
    validation["is_last_batch"] = False
    # Where no validation is due, is_last_batch must be False: Lightning would read True as "the epoch
    # is over". Where one is due, Lightning needs it as it is.
    if not is_due:
        batch["is_last_batch"] = False
    fit["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]


def _set(counters: dict[str, int], *, begun: int, done: int) -> None:
    """Set Lightning's four counters of one thing; some things have no "started" or "processed"."""
    values = {"ready": begun, "started": begun, "processed": done, "completed": done}
    for name in counters:
        counters[name] = values[name]


def finished_message(
    checkpoint: dict[str, Any],
    max_epochs: int | None,
    max_steps: int,
    max_time: str | timedelta | dict[str, int] | None,
) -> str | None:
    """Why a run has nothing left to train, as a message; None where something is left.

    Args:
        checkpoint: of the run.
        max_epochs: of the trainer; None or -1 for no limit.
        max_steps: of the trainer; -1 for no limit.
        max_time: of the trainer, over all resumes; None for no limit.
    """
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    steps = checkpoint["global_step"]
    # The run has ended early; "stopped" in the state of Checkpoints says only that it was asked to.
    if checkpoint.get("run", {}).get("stopped"):
        return f"the run was stopped early at step {steps}"
    if 0 <= max_steps <= steps:
        return f"the run has done its {steps} steps (trainer.max_steps)"
    if max_epochs is not None and 0 <= max_epochs <= epochs:
        return f"the run has done its {epochs} epochs (trainer.max_epochs), {steps} steps"
    timer = Timer(max_time)
    timer.load_state_dict(checkpoint.get("callbacks", {}).get(timer.state_key, {}))
    left = timer.time_remaining()
    if left is not None and left <= 0:
        return f"the run has used up its time at step {steps} (trainer.max_time {max_time}; give it more to train on)"
    return None
