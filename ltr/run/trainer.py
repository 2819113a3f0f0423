"""What of Lightning's trainer a run may have: callbacks that resume exactly, options that mean
something.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
)

from ltr.errors import InputError

REFUSED = {
    StochasticWeightAveraging: "can't be resumed exactly; take lightning.pytorch.callbacks.EMAWeightAveraging",
    GradientAccumulationScheduler: "makes steps of several sizes in one run; set trainer.accumulate_grad_batches",
    BackboneFinetuning: "wants a module that is a backbone with a head, and a ranker is none; remove it",
    ModelPruning: "renames weights, so that no checkpoint fits; prune a trained ranker in Python",
    BatchSizeFinder: "can't change the batches of a run, which are planned before it; set the batch size of the data",
    LearningRateFinder: "trains before the run begins, so no resume is exact; compare runs with several model.lr",
}


# Options that Lightning takes as they come, and stumbles over in the first step, or silently
# ignores.
LEAST = {
    "accumulate_grad_batches": 1,
    "gradient_clip_val": 0,
    "val_check_interval": 1e-9,
    "check_val_every_n_epoch": 1,
}


def check_options(trainer: Mapping[str, Any]) -> None:
    """Raise an InputError for an option of the trainer below its least value, where Lightning does
    not check it.
    """
    for name, least in LEAST.items():
        value = trainer[name]
        if isinstance(value, int | float) and value < least:
            bound = "above 0" if 0 < least < 1 else f"at least {least}"
            raise InputError(f"{name} must be {bound}, got {value}", option=f"trainer.{name}")


def check_callbacks(callbacks: Sequence[Any], known: Sequence[str]) -> None:
    """Check the callbacks of a configuration.

    Args:
        callbacks: of the trainer.
        known: the metrics that a validation logs.

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
            came = f"one of {', '.join(known)}, got {callback.monitor!r}"
            raise InputError(f"{name} must monitor {came}", option="trainer.callbacks")
