"""What a Lightning trainer says of the run that it holds."""

import math
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch import Callback, Trainer

from ltr.datamodules import RankingDataModule
from ltr.search.encoding_places import (
    Encodings,
    EncodingsInCache,
    EncodingsOfRun,
    TemporaryEncodings,
)

C = TypeVar("C", bound=Callback)


def data_of(trainer: Trainer) -> RankingDataModule | None:
    """The data module of a run, or None where the trainer was given plain loaders."""
    data = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without declaring it
    return data if isinstance(data, RankingDataModule) else None


def callbacks_of(trainer: Trainer, kind: type[C]) -> list[C]:
    """The callbacks of a class that a trainer has, in their order."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it without declaring it
    return [callback for callback in callbacks if isinstance(callback, kind)]


def validates_before_training(trainer: Trainer) -> bool:
    """Whether a fit first measures the weights that it starts from: its sanity check then takes all
    batches of the validation.
    """
    return trainer.num_sanity_val_steps == math.inf


def logged_metrics(trainer: Trainer, prefix: str) -> dict[str, Any]:
    """The metrics that an evaluation has logged, without their prefix. NaN, which JSON does not
    know, is None.
    """
    metrics: dict[str, Any] = {}
    for name, logged in trainer.callback_metrics.items():
        if name.startswith(prefix):
            value = float(logged)
            metrics[name.removeprefix(prefix)] = None if math.isnan(value) else value
    return metrics


def is_trial(trainer: Trainer) -> bool:
    """Whether the results of a run mean nothing: it only tries whether everything works
    (``trainer.fast_dev_run``).
    """
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # Lightning sets it without declaring it


def place_of_encodings(trainer: Trainer, user: str, source: Path) -> Encodings:
    """Where the embeddings of a corpus lie: for the weights of a training, which pass, in its run
    folder; else in the cache, where they are found again.

    Args:
        trainer: of the run.
        user: what encodes: the name under which a run keeps its last encoding, such as
            ``evaluation``.
        source: where the texts lie; for ``ltr cache``.
    """
    run_folder = Path(trainer.default_root_dir)
    if is_trial(trainer):
        return TemporaryEncodings(run_folder)
    if trainer.state.fn == "fit":
        return EncodingsOfRun(run_folder, user)
    return EncodingsInCache(source, model=run_folder, run_folder=run_folder)
