"""A checkpoint to resume from, whatever ends the run."""

import logging
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ltr.errors import InputError
from ltr.module import is_trial

log = logging.getLogger(__name__)


class LastCheckpoint(Checkpoint):
    """Writes ``last.ckpt`` every n steps, at the end of an epoch and of the run, after every validation, and at Ctrl-C.

    It is written between two optimiser steps, when weights, optimiser and progress agree, and never while a validation is due. So
    a run that was killed at any moment resumes from it (``fit --ckpt_path last``) to the same weights and validations. The first
    Ctrl-C finishes the step, and a validation that is due or running, and saves; the second ends the run at once.

    Args:
        every_n_steps: optimiser steps between two writes.
        dirpath: folder; the command line sets ``checkpoints`` in the run folder.
    """

    def __init__(self, every_n_steps: int = 500, dirpath: str | None = None) -> None:
        super().__init__()
        if every_n_steps < 1:
            raise InputError(f"every_n_steps must be at least 1, got {every_n_steps}", option="last.every_n_steps")
        self.every_n_steps, self.dirpath = every_n_steps, dirpath
        self._interrupted = False
        self._steps_before = 0
        self._between_steps = True
        self._previous_handler: Any = None  # of Ctrl-C: a function or a number

    @property
    def path(self) -> Path:
        return Path(self.dirpath or "checkpoints") / "last.ckpt"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.strategy.restore_checkpoint_after_setup:
            raise InputError(
                f"trainer.strategy must keep the whole model on every rank (auto, ddp), got {type(trainer.strategy).__name__}: "
                "an exact resume of sharded models is not supported"
            )

    # Ctrl-C

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            # The other ranks continue until rank 0 has saved and ends them: a step needs all ranks.
            handler = self._interrupt if trainer.is_global_zero else signal.SIG_IGN
            self._previous_handler = signal.signal(signal.SIGINT, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        then = "finishing this step (and its validation, if one is due), then saving last.ckpt; once more to stop at once"
        print(f"\nCtrl-C: {then}", flush=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown()
        if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero and self.path.is_file():
            log.warning("interrupted; the same command with '--ckpt_path last' resumes from %s", self.path)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        if self._previous_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._previous_handler)
            self._previous_handler = None

    # Saving

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._steps_before = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._between_steps = trainer.global_step != self._steps_before  # else gradients are being accumulated
        epoch, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        assert fetcher is not None, "a batch has been fetched"
        if not self._between_steps or epoch._should_check_val_fx(fetcher):
            return
        ends = epoch.batch_progress.is_last_batch or trainer.should_stop or trainer.global_step == trainer.max_steps
        if self._interrupted:
            self._save(trainer, alone=True)
            raise KeyboardInterrupt
        if ends or trainer.global_step % self.every_n_steps == 0:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self._between_steps:
            self._save(trainer)
            if self._interrupted:
                raise KeyboardInterrupt

    def _save(self, trainer: Trainer, alone: bool = False) -> None:
        """Write a temporary file beside ``last.ckpt`` and rename it. Lightning's own may be on another disk, and be copied."""
        if is_trial(trainer):
            return
        temporary = self.path.with_name(".last.ckpt.tmp")
        if alone:
            # Not trainer.save_checkpoint: it waits for the other ranks, which are already in the next step.
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            trainer.strategy.save_checkpoint(checkpoint, temporary)
        else:
            trainer.save_checkpoint(temporary, weights_only=False)
        if trainer.is_global_zero:
            os.replace(temporary, self.path)
