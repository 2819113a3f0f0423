"""The checkpoints of a run: it never ends without its weights, and resumes exactly."""

import logging
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer, WeightAveraging

from ltr.checkpoint import read_checkpoint, write_checkpoint
from ltr.errors import InputError, Terminated
from ltr.metrics import MEASURES
from ltr.models.ranker import check_trained
from ltr.module import data_of, is_trial
from ltr.run import lightning_internals as internals
from ltr.run.folder import RunFolder, second_name
from ltr.run.progress import Moment, settle
from ltr.run.signals import NAMES, Signals

log = logging.getLogger(__name__)

# The most of a run's time that goes into writing ``last.ckpt`` where nothing else asks for it. A
# file of 270 MB after each of a small data set's epochs took longer than the epoch.
SHARE = 0.05


@dataclass
class Best:
    """Which weights are kept as the best ones.

    Args:
        monitor: What says how good weights are: a metric of the validation, such as
            ``val/nDCG@10``. None keeps no best ones.
        save_top_k: How many of the best are kept: ``best.ckpt``, and beside it ``step=N.ckpt`` for
            each of the k. -1 keeps those of every validation, 0 none.
        save_weights_only: Whether they are kept without the state of the optimiser: a third of the
            size, but no resume.
    """

    monitor: str | None = "val/nDCG@10"
    save_top_k: int = 1
    save_weights_only: bool = False

    def __post_init__(self) -> None:
        if self.save_top_k < -1:
            raise InputError(
                f"save_top_k must be at least -1 (all), got {self.save_top_k}",
                option="best.save_top_k",
            )

    @property
    def sign(self) -> float:
        """-1 for a metric whose lowest value is the best, else 1."""
        name = (self.monitor or "").rpartition("/")[2].partition("@")[0]
        return -1.0 if name in MEASURES and MEASURES[name].lower_is_better else 1.0


@dataclass
class Last:
    """How often ``last.ckpt`` is written.

    Args:
        every_n_steps: Optimiser steps between two writes. It is also written at the end of the run,
            with new best weights, and at Ctrl-C, SIGTERM and SIGHUP; at the end of an epoch and
            after a validation where that takes at most a twentieth of the time since it was last
            written.
    """

    every_n_steps: int = 500

    def __post_init__(self) -> None:
        if self.every_n_steps < 1:
            raise InputError(
                f"every_n_steps must be at least 1, got {self.every_n_steps}",
                option="last.every_n_steps",
            )


class Checkpoints(Checkpoint):
    """Writes ``last.ckpt`` and ``best.ckpt`` into the run folder (``checkpoints`` in the trainer's
    ``default_root_dir``).

    A checkpoint is written between two optimiser steps, when weights, optimiser and progress agree,
    as a whole file or not at all. A run that was killed at any moment resumes from ``last.ckpt`` to
    the very weights and validations of a run that was not. The first Ctrl-C, SIGTERM or SIGHUP
    finishes the step and saves; a validation that is due or running is done by the resumed run. The
    second ends the run at once.

    What is best is told by the files that are there, so a run folder may be moved and copied.

    Args:
        best: which weights are kept.
        last: how often the run is saved.
        identity: what the run is, see :mod:`ltr.run.identity`; every checkpoint holds it.
    """

    def __init__(
        self,
        best: Best | None = None,
        last: Last | None = None,
        identity: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.best = best or Best()
        self.last = last or Last()
        self.identity = identity or {}
        self._signals = Signals()
        # The scores of the best weights that are kept, by step.
        self._scores: dict[int, float] = {}
        # The last validation was among the best: until best.ckpt is written.
        self._improved = False
        # last.every_n_steps asks for last.ckpt: until it is written.
        self._is_due = False
        # When the next write of last.ckpt takes at most its share of the time.
        self._pays_from = 0.0
        # Optimiser steps when the batch at hand began, and batches since the last step.
        self._steps_before = 0
        self._unfinished = 0
        # A validation of the training is running, and the states of the callbacks before it.
        self._is_validating = False
        self._before_validation: dict[str, Any] = {}
        # Something has asked training to stop: kept in checkpoints, so that a resume stops too.
        self._stopped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.strategy.restore_checkpoint_after_setup:
            came = f"{type(trainer.strategy).__name__}: an exact resume of sharded models is not supported"
            raise InputError(
                f"trainer.strategy must keep the whole model on every rank (auto, ddp), got {came}"
            )
        # Not in on_fit_start: what load_state_dict restores comes before that.
        self._stopped = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        kept = self._kept(RunFolder(trainer.default_root_dir)) if trainer.is_global_zero else {}
        self._scores = trainer.strategy.broadcast(kept)  # so that all ranks decide alike
        self._unfinished = 0
        self._pays_from = 0.0

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stopped = state_dict["stopped"]

    def state_dict(self) -> dict[str, Any]:
        return {"stopped": self._stopped}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # As EarlyStopping asked before the run was interrupted.
        trainer.should_stop |= self._stopped
        # Not earlier: Lightning has just set its own handlers.
        self._signals.listen(leads=trainer.is_global_zero, came=lambda: self._leave_early(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._signals.release()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._signals.release()
        folder = RunFolder(trainer.default_root_dir)
        fits = trainer.is_global_zero and trainer.state.fn == "fit"
        if isinstance(exception, KeyboardInterrupt) and fits and folder.last.is_file():
            ended = "interrupted"
            if isinstance(exception, Terminated):
                ended = f"ended by {NAMES[signal.Signals(exception.number)]}"
            log.warning(
                "%s; 'ltr fit %s' resumes from %s", ended, quote(str(folder.path)), folder.last
            )

    # Steps

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._is_due:  # there was nothing to validate on
            self._save(trainer, Moment.AFTER_STEP)
        self._steps_before = trainer.global_step
        internals.set_logged_step(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._unfinished = 0 if trainer.global_step != self._steps_before else self._unfinished + 1
        to_validate = internals.validation_is_due(trainer)
        if self._unfinished:
            return
        self._is_due = trainer.global_step % self.last.every_n_steps == 0
        if internals.epoch_is_trained(trainer) and not to_validate:
            return
        if self._signals.asked and not _ends(trainer):
            self._leave(trainer, Moment.VALIDATION_DUE if to_validate else Moment.AFTER_STEP)
        if self._is_due and not to_validate:
            self._save(trainer, Moment.AFTER_STEP)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        whole = internals.epoch_is_whole(trainer)
        # Read once: a signal that comes meanwhile waits for the next step.
        asked = self._signals.asked
        self._save_if_it_pays(trainer, Moment.EPOCH_END if whole else Moment.AFTER_STEP, asked)
        if asked and whole and not _ends(trainer):
            raise asked

    # Validations

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._before_validation = internals.callback_states(trainer)
            self._is_validating = True
            if self._signals.asked:
                self._leave_validation(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_validating:
            return
        self._is_validating = False
        self._rate(trainer)
        if internals.is_last_batch(trainer):
            self._before_validation = {}
            return  # the end of the epoch is at hand
        asked = self._signals.asked
        if self._improved or not self._unfinished:
            self._save_if_it_pays(trainer, Moment.AFTER_STEP, asked)
        self._before_validation = {}
        if asked and not self._unfinished and not _ends(trainer):
            raise asked

    def _rate(self, trainer: Trainer) -> None:
        """Note the score of these weights, and whether they are among the best."""
        value = trainer.callback_metrics.get(self.best.monitor or "")
        step = trainer.global_step
        k = self.best.save_top_k
        if value is None or k == 0 or math.isnan(value):
            return
        self._scores[step] = self.best.sign * float(value)
        ranked = sorted(self._scores, key=lambda one: (-self._scores[one], one))
        kept = ranked if k == -1 else ranked[:k]
        self._improved = step in kept
        self._scores = {one: self._scores[one] for one in kept}

    def _leave_validation(self, trainer: Trainer) -> None:
        """End the run within a validation, which the resumed run does anew; averaged weights are
        not trained on.
        """
        averaged = any(isinstance(one, WeightAveraging) for one in trainer.callbacks)  # type: ignore[attr-defined]
        if self._is_validating and not self._unfinished and not averaged and not _ends(trainer):
            self._is_validating = False
            self._leave(trainer, Moment.VALIDATION_DUE)

    def _leave_early(self, trainer: Trainer) -> None:
        """End the run within what may take long and is done anew by the resumed run: a validation,
        a refresh of negatives.
        """
        assert self._signals.asked is not None
        data = data_of(trainer)
        if data is not None and data.is_refreshing:
            if internals.epoch_has_begun(trainer):  # else the end of the last epoch is saved
                self._save(trainer, Moment.AFTER_STEP)
            raise self._signals.asked
        self._leave_validation(trainer)

    # Saving

    def _leave(self, trainer: Trainer, moment: Moment) -> None:
        assert self._signals.asked is not None
        self._save(trainer, moment)
        raise self._signals.asked

    def _save_if_it_pays(
        self, trainer: Trainer, moment: Moment, asked: KeyboardInterrupt | None
    ) -> None:
        """Write, or leave it to a later moment: what is lost then is done anew by a resume, and
        costs less than writing did.

        A refresh of negatives may follow the end of an epoch. It takes longer than a write, and
        ends at once when it is asked to.
        """
        data = data_of(trainer)
        refreshed = data is not None and data.is_refreshed
        wanted = self._improved or self._is_due or asked or refreshed or _ends(trainer)
        if wanted or time.monotonic() >= self._pays_from:
            self._save(trainer, moment)

    def _save(self, trainer: Trainer, moment: Moment) -> None:
        """Write ``last.ckpt``, and ``best.ckpt`` where the weights are the best so far.

        Only rank 0 does, and no rank waits for it. Weights that are no numbers are refused: those
        before them stay. In the middle of accumulated gradients a resume continues after the step
        before, and repeats the batches since.
        """
        check_trained(trainer.lightning_module)
        improved = self._improved
        self._improved = False
        self._is_due = False
        self._stopped = trainer.should_stop and not _time_is_up(trainer)
        if not trainer.is_global_zero or is_trial(trainer):
            return
        start = time.monotonic()
        folder = RunFolder(trainer.default_root_dir)
        checkpoint = self._settled(trainer, moment)
        temporary = folder.checkpoints / ".checkpoint.tmp"
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        try:
            write_checkpoint(checkpoint, temporary)
            if improved:  # before last.ckpt: a resume from an older one finds them best again
                whole = temporary
                if self.best.save_weights_only:
                    whole = folder.checkpoints / ".best.tmp"
                    light = dict(checkpoint)
                    for part in ("callbacks", "optimizer_states", "lr_schedulers"):
                        del light[part]
                    write_checkpoint(light, whole)
                self._keep_best(folder, whole, trainer.global_step)
            os.replace(temporary, folder.last)
        finally:
            for left in (temporary, folder.checkpoints / ".best.tmp"):
                left.unlink(missing_ok=True)
        took = time.monotonic() - start
        self._pays_from = start + took / SHARE

    def _settled(self, trainer: Trainer, moment: Moment) -> dict[str, Any]:
        """A checkpoint of Lightning that resumes at a moment, and what we add to it."""
        checkpoint = internals.dump_checkpoint(trainer)
        data = data_of(trainer)
        if self._unfinished and data is not None:
            checkpoint[type(data).__qualname__] = data.state_dict(self._unfinished)
        repeats_validation = self._unfinished or moment is Moment.VALIDATION_DUE
        if self._before_validation and repeats_validation:
            checkpoint["callbacks"] = self._before_validation
        settle(checkpoint, moment, self._unfinished)
        monitored = {"monitor": self.best.monitor, "scores": dict(self._scores)}
        # Asked to stop before min_epochs or min_steps, a run is not at its end.
        ended = self._stopped and internals.may_stop(trainer)
        checkpoint["run"] = {"identity": self.identity, "stopped": ended} | monitored
        return checkpoint

    def _kept(self, folder: RunFolder) -> dict[int, float]:
        """The scores of the best weights in the folder; the very best is made one of several, if it
        was not yet.
        """
        if self.best.save_top_k not in (0, 1) and folder.best.is_file():
            file = folder.of_step(read_checkpoint(folder.best, quick=True)["global_step"])
            if not file.is_file():
                second_name(folder.best, file)
        return folder.kept_scores(self.best.monitor)

    def _keep_best(self, folder: RunFolder, file: Path, step: int) -> None:
        """Put a checkpoint among the best, and remove those that no longer are."""
        if max(self._scores, key=lambda one: (self._scores[one], -one)) == step:
            second_name(file, folder.best)
        if self.best.save_top_k != 1:
            second_name(file, folder.of_step(step))
        for other in folder.steps():
            if other not in self._scores:
                folder.of_step(other).unlink()


def _ends(trainer: Trainer) -> bool:
    """Whether nothing is left to train: then the run ends by itself, and is not interrupted."""
    return (
        internals.epochs_are_done(trainer)
        or trainer.global_step == trainer.fit_loop.max_steps
        or (trainer.should_stop and internals.may_stop(trainer))
    )


def _time_is_up(trainer: Trainer) -> bool:
    """Whether ``trainer.max_time`` has ended the run: with more time it resumes."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning sets it without declaring it
        if isinstance(callback, Timer):
            left = callback.time_remaining()
            if left is not None and left <= 0:
                return True
    return False
