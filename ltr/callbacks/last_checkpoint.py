"""A checkpoint to go on from, whatever ends the run."""

import logging
import os
import signal
import threading
from pathlib import Path
from types import FrameType

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

log = logging.getLogger(__name__)


class LastCheckpoint(Checkpoint):
    """Writes ``last.ckpt`` every n steps, at the last step of an epoch and of the run, after every validation, and at Ctrl-C.

    It is written between two steps, when weights, optimiser and progress agree, to a temporary file that is renamed when it is whole: a run killed
    at any moment goes on from it (``fit --ckpt_path last``) to the same weights. A run that ends during the validation of an epoch goes
    on with the next epoch. The first Ctrl-C finishes the step and saves; the second one ends the run at once.

    Args:
        every_n_steps: optimiser steps between two writes.
        dirpath: folder; the command line sets the run folder's ``checkpoints``.
    """

    def __init__(self, every_n_steps: int = 500, dirpath: str | None = None) -> None:
        super().__init__()
        self.every_n_steps, self.dirpath = every_n_steps, dirpath
        self._interrupted = False
        self._saved_at = -1
        self._previous_handler = None

    @property
    def path(self) -> Path:
        return Path(self.dirpath or "checkpoints") / "last.ckpt"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = trainer.global_step
        if trainer.is_global_zero and threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._interrupt)
        elif threading.current_thread() is threading.main_thread():
            # The other ranks go on until rank 0 has saved and ends them: a step needs them all.
            self._previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nCtrl-C: finishing this step, then saving last.ckpt (once more to stop at once)", flush=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx: int) -> None:
        stepped = trainer.global_step != self._saved_at
        ends = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch or trainer.global_step == trainer.max_steps
        due = ends or trainer.should_stop or trainer.global_step % self.every_n_steps == 0
        if stepped and due and not trainer.fast_dev_run:
            self._save(trainer)
        if self._interrupted:
            if stepped and not due:
                self._save(trainer, alone=True)
            raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args, **kwargs) -> None:
        if self._interrupted:  # the step before the validation has been saved
            raise KeyboardInterrupt

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Now the best checkpoint is known too: a resumed run must not forget it.
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not trainer.fast_dev_run:
            self._save(trainer)

    def _save(self, trainer: Trainer, alone: bool = False) -> None:
        """Write a temporary file beside ``last.ckpt`` and rename it: Lightning's own may lie on another disk, and be copied."""
        temporary = self.path.with_name(".last.ckpt.tmp")
        if alone:
            # Not trainer.save_checkpoint: that waits for the other ranks, which are already in the next step.
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            trainer.strategy.save_checkpoint(checkpoint, temporary)
        else:
            trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            os.replace(temporary, self.path)
        self._saved_at = trainer.global_step

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero and self.path.is_file():
            log.warning("interrupted; the same command with '--ckpt_path last' goes on from %s", self.path)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._previous_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._previous_handler)
            self._previous_handler = None
