"""The trainer for Python: Lightning's, as quiet as ``ltr fit``."""

import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import disable_possible_user_warnings

from ltr.run.progress_lines import ResultLines, with_bar


def leave_out_hints_of_lightning() -> None:
    """From here on, Lightning says in this process only what is wrong. This is what Lightning and
    Python offer for it; it can't be had for one trainer.
    """
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    disable_possible_user_warnings()
    for category in (DeprecationWarning, FutureWarning):  # of what Lightning itself calls
        warnings.filterwarnings("ignore", category=category, module=r"lightning\.")


def _without_table(evaluate: Callable[..., Any]) -> Any:
    def without_table(
        self: Trainer,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = False,
        *more: Any,
        **options: Any,
    ) -> Any:
        """Lightning's, whose table of the results is printed where ``verbose`` asks for it."""
        return evaluate(self, model, dataloaders, ckpt_path, verbose, *more, **options)

    return without_table


class RankerTrainer(Trainer):
    """Lightning's trainer, which says of a run what ``ltr fit`` says: on a terminal by the same bar,
    and to the logger ``ltr`` of :mod:`logging` by the same lines. It measures all of dev before
    training, and writes no file that was not asked for.

    All options are Lightning's, and what they are given holds. Its messages and its hints for
    developers are left out in this process, whichever trainer has them; its warnings of what is
    wrong are not.

    Args:
        callbacks: Lightning's, ltr's or yours; a bar among them takes the place of ours.
        logger: where curves go. None: nowhere.
        enable_checkpointing: None: only where a callback writes checkpoints.
        enable_progress_bar: None: on a terminal, and where a callback is a bar.
        enable_model_summary: whether Lightning prints its table of modules.
        num_sanity_val_steps: batches of dev that are measured before training; -1, and None: all.
        barebones: Lightning's, which allows no bar and measures nothing before training.
        options: all others.

    Example:
        >>> RankerTrainer(max_epochs=3, accelerator="cpu").loggers
        []
    """

    def __init__(
        self,
        *,
        callbacks: list[Callback] | Callback | None = None,
        logger: Logger | Iterable[Logger] | bool | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool = False,
        num_sanity_val_steps: int | None = None,
        barebones: bool = False,
        **options: Any,
    ) -> None:
        leave_out_hints_of_lightning()
        if barebones:
            enable_progress_bar = bool(enable_progress_bar)
        elif num_sanity_val_steps is None:
            num_sanity_val_steps = -1
        callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
        if enable_checkpointing is None:
            enable_checkpointing = any(isinstance(each, Checkpoint) for each in callbacks)
        callbacks.append(ResultLines())
        callbacks, enable_progress_bar = with_bar(callbacks, enable_progress_bar)
        super().__init__(
            callbacks=callbacks,
            logger=False if logger is None else logger,
            enable_checkpointing=enable_checkpointing,
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            num_sanity_val_steps=num_sanity_val_steps,
            barebones=barebones,
            **options,
        )

    validate = _without_table(Trainer.validate)
    test = _without_table(Trainer.test)
