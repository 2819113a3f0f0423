"""Lightning's counters of a run's progress, set in a checkpoint so that a resume is exact.

Lightning's counters say where the code was when a checkpoint was written, and a resume guesses from
them what is still to be done. Some guesses are wrong, and a second resume goes on from the wrong
place. So a checkpoint of ours is written at one of three moments, with the counters that this
moment has, wherever the code was.
"""

from enum import Enum, auto
from typing import Any


class Moment(Enum):
    """Where a resumed run continues."""

    AFTER_STEP = auto()  # with the next batch of this epoch; no validation is due any more
    VALIDATION_DUE = auto()  # with the validation due after this batch, from its beginning
    EPOCH_END = auto()  # with the first batch of the next epoch


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
        done = counters["completed"]
        if epoch_has_ended:
            done += 1  # the hook runs before Lightning counts the epoch as completed
        # In the middle of an epoch one more has begun than is done.
        _set(counters, begun=done if epoch_has_ended else done + 1, done=done)

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

    # Of the batches of training: where no validation is due, is_last_batch must be False, since
    # Lightning would read True as "the epoch is over". Where one is due, Lightning needs it as it is.
    if not is_due:
        batch["is_last_batch"] = False

    fit["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]


def _set(counters: dict[str, int], *, begun: int, done: int) -> None:
    """Set Lightning's four counters of one thing; some things have no "started" or "processed"."""
    values = {"ready": begun, "started": begun, "processed": done, "completed": done}
    for name in counters:
        counters[name] = values[name]
