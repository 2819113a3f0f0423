"""Checks of the trainer's options and callbacks: what a run can't resume exactly, or what would
mean nothing, is refused. The trainer itself is Lightning's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
)

from ltr.errors import InputError

# Callbacks, and why: the error says the name of the class, and then this.
REFUSED = {
    StochasticWeightAveraging: "can't be resumed exactly; take lightning.pytorch.callbacks.EMAWeightAveraging",
    GradientAccumulationScheduler: "makes steps of several sizes in one run; set trainer.accumulate_grad_batches",
    BackboneFinetuning: "wants a module that is a backbone with a head, and a ranker is none; remove it",
    ModelPruning: "renames weights, so that no checkpoint fits; prune a trained ranker in Python",
    BatchSizeFinder: "can't change the batches of a run, which are planned before it; set the batch size of the data",
    LearningRateFinder: "trains before the run begins, so no resume is exact; compare runs with several model.lr",
}

ABOVE_0 = 1e-9

# The least values of options that Lightning does not check: a lower one fails in the first step, or
# is silently ignored.
LEAST_VALUES = {
    "accumulate_grad_batches": 1,
    "gradient_clip_val": 0,
    "val_check_interval": ABOVE_0,  # a share of an epoch
    "check_val_every_n_epoch": 1,
}


def check_trainer_options(trainer_options: Mapping[str, Any]) -> None:
    """Raise an InputError for an option of the trainer below its least value, where Lightning does
    not check it, for a ``max_time`` that is none, and for those that leave out what a run is.
    """
    if trainer_options["barebones"] or trainer_options["enable_checkpointing"] is False:
        name = "barebones" if trainer_options["barebones"] else "enable_checkpointing"
        raise InputError(
            f"a run writes checkpoints and what it measures, got {name}: {trainer_options[name]}; leave it out, or try some batches by trainer.fast_dev_run",
            option=f"trainer.{name}",
        )
    for name, least in LEAST_VALUES.items():
        value = trainer_options[name]
        if isinstance(value, int | float) and value < least:
            bound = "above 0" if least == ABOVE_0 else f"at least {least}"
            raise InputError(f"{name} must be {bound}, got {value}", option=f"trainer.{name}")
    try:
        Timer(trainer_options["max_time"])
    except (MisconfigurationException, TypeError, OverflowError):
        raise InputError(
            f"max_time must be days, hours, minutes and seconds as 00:12:00:00, or as {{hours: 12}}, got {trainer_options['max_time']!r}",
            option="trainer.max_time",
        ) from None


def check_callbacks(callbacks: Sequence[Any], known: Sequence[str]) -> None:
    """Check the callbacks of a configuration.

    Raises:
        InputError: for one that can't be resumed exactly, or that waits for a metric that nobody
            logs.
    """
    for callback in callbacks:
        name = type(callback).__name__
        for kind, why in REFUSED.items():
            if isinstance(callback, kind):
                raise InputError(f"{name} {why}", option="trainer.callbacks")
        if isinstance(callback, EarlyStopping) and callback.monitor not in (*known, "train/loss"):
            raise InputError(
                f"{name} must monitor one of {', '.join(known)}, got {callback.monitor!r}",
                option="trainer.callbacks",
            )
