"""The checkpoints of a run: it never ends without its weights, and resumes exactly."""

import logging
import math
import os
import time
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn, TypedDict

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer, WeightAveraging

from ltr.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from ltr.datamodules import RankingDataModule
from ltr.entries import check_entries
from ltr.errors import InputError, Terminated
from ltr.models.encoder.text_encoder import encoders_of
from ltr.models.ranker import check_finite
from ltr.processes import host_group, leave_constant_buffers, settle_order_of_sums
from ltr.run import lightning_internals as internals
from ltr.run.checkpoint_options import BestOptions, LastOptions, best_first
from ltr.run.counters import Moment, set_counters
from ltr.run.log import gather_hosts
from ltr.run.run_folder import RunFolder, link_or_copy
from ltr.run.same_options import as_taken
from ltr.run.signals import Signals, name_of
from ltr.search.encoding_places import EncodingsInCache, EncodingsOfRun
from ltr.trainer_state import callbacks_of, data_of, is_trial

log = logging.getLogger(__name__)

# The most of a run's time that goes into writing ``last.ckpt`` where nothing else asks for it.
# Without it, a run on a small data set spent more time writing its 270 MB after each epoch than
# training the epoch.
MAX_SHARE_OF_TIME = 0.05


class Phase(Enum):
    """Whether a validation is running, and so what a signal does."""

    OUTSIDE = auto()  # of a validation; a signal waits for the end of the optimiser step
    VALIDATING = auto()  # a signal ends the run at once; the resumed run does the validation anew
    LEAVING_VALIDATION = auto()  # it has ended, by itself or a signal; its results are written now


class CheckpointsState(TypedDict):
    """What the callback keeps of itself in a checkpoint."""

    stopped: bool


class Checkpoints(Checkpoint):
    """Writes ``last.ckpt`` and ``best.ckpt`` into the run folder (``checkpoints`` in the trainer's
    ``default_root_dir``).

    A checkpoint is written between two optimiser steps, when weights, optimiser and progress agree,
    as a whole file or not at all. A run that was killed at any moment resumes from ``last.ckpt`` to
    the very weights and validations of a run that was not. The first signal
    (:data:`ltr.errors.ENDING_SIGNALS`) finishes the step and saves; a validation that is due or
    running is done by the resumed run. The second ends the run at once, but for those of a cluster
    that follow within seconds.

    What is best is told by the files that are there, so a run folder may be moved and copied.

    Args:
        best: which weights are kept.
        last: how often the run is saved.
        identity: what the run is, see :mod:`ltr.run.identity`; every checkpoint holds it.
    """

    def __init__(
        self,
        best: BestOptions | None = None,
        last: LastOptions | None = None,
        identity: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.best_options = best or BestOptions()
        self.last_options = last or LastOptions()
        self.identity = identity or {}
        self._signals = Signals()
        # The scores of the best weights that are kept, by step; higher is better.
        self._scores: dict[int, float] = {}

        # The last validation was among the best: best.ckpt is to be written with last.ckpt.
        self._best_is_due = False
        # The weights of the last validation are the best of all: a test reads what it has encoded.
        self._newest_is_best = False
        # last.every_n_steps asks for last.ckpt.
        self._last_is_due = False
        # From this time.monotonic() on, last.ckpt is written even where nothing asks for it: writing
        # then takes less than MAX_SHARE_OF_TIME of the time since the last write. 0: from now on.
        self._next_cheap_write = 0.0

        # Optimiser steps before the batch at hand.
        self._steps_before_batch = 0
        # Batches since the last optimiser step: above 0 in the middle of accumulated gradients.
        self._batches_since_step = 0

        self._phase = Phase.OUTSIDE
        # The states of all callbacks before the validation; empty OUTSIDE. A resume that does a
        # validation anew needs them, since callbacks such as EarlyStopping count validations.
        self._states_before_validation: dict[str, Any] = {}

        # Something has asked training to stop, as EarlyStopping does. Checkpoints keep it, so that
        # a resume stops too.
        self._asked_to_stop = False

    @property
    def heard_on_other_rank(self) -> KeyboardInterrupt | None:
        """The signal that came to this process, if it is not rank 0; None without."""
        return self._signals.heard_on_other_rank

    @property
    def signal_here(self) -> KeyboardInterrupt | None:
        """The signal that came to this process, whatever its rank; None without."""
        return self._signals.pending or self._signals.heard_on_other_rank

    def check_options(self, pl_module: LightningModule, data: RankingDataModule) -> None:
        """See :meth:`ltr.datamodules.RankingDataModule.check_options`."""
        _check_strategy(pl_module.trainer)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        _check_strategy(trainer)
        internals.keep_from_requeues(trainer)
        if any(encoder.frozen_base is not None for encoder in encoders_of(pl_module)):
            internals.average_without_rounding(trainer)
        # Reset here and not in on_fit_start: load_state_dict comes in between, and may set it.
        self._asked_to_stop = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scores: dict[int, float] = {}
        if trainer.is_global_zero:
            folder = RunFolder(trainer.default_root_dir)
            self._name_best_by_step(folder)
            scores = folder.kept_scores(self.best_options.monitor)
        self._scores = trainer.strategy.broadcast(scores)  # so that all ranks decide alike
        # A run before this one, with the same callback, may have ended anywhere.
        self._best_is_due = False
        self._newest_is_best = False
        self._last_is_due = False
        self._next_cheap_write = 0.0
        self._batches_since_step = 0
        self._phase = Phase.OUTSIDE
        self._states_before_validation = {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_entries(
            state_dict, CheckpointsState, type(self).__qualname__, "take another checkpoint"
        )
        self._asked_to_stop = state_dict["stopped"]

    def state_dict(self) -> dict[str, Any]:
        # Whether the run was asked to stop. Whether it did is the "stopped" that
        # _resumable_checkpoint writes.
        return {"stopped": self._asked_to_stop}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not is_trial(trainer):
            moment = f"goes on from step {trainer.global_step}" if trainer.ckpt_path else "begins"
            places = gather_hosts()  # on every rank, whoever has a log
            log.debug("the run %s: %s", moment, places)
        if self._asked_to_stop:  # before the run was interrupted
            trainer.should_stop = True
        if trainer.world_size > 1:
            host_group(internals.longest_wait(trainer))
        settle_order_of_sums(trainer.strategy.model)
        leave_constant_buffers(trainer.strategy.model)
        # Not earlier: Lightning has just set its own handlers.
        self._signals.listen(
            is_rank_0=trainer.is_global_zero, on_signal=lambda: self._on_signal(trainer)
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._signals.release()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Move what the last validation has encoded into the cache where its weights are the best, so
        that a test finds it.
        """
        data = data_of(trainer)
        if stage != "fit" or data is None or not trainer.is_global_zero or not self._newest_is_best:
            return
        run_folder = Path(trainer.default_root_dir)
        encoding = EncodingsOfRun(run_folder, "evaluation").last()
        if encoding is None:
            return
        for corpus in data.corpora:
            texts = corpus.docs
            if texts.read_key not in encoding.plan.texts:
                continue
            try:
                EncodingsInCache(texts.folder, run_folder).put(encoding)
            except (InputError, OSError) as error:  # no reason for a training to fail
                log.warning("a test of these weights encodes the corpus again: %s", error)
                return

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._signals.release(leaves=not trainer.is_global_zero)
        folder = RunFolder(trainer.default_root_dir)
        is_fit = trainer.is_global_zero and trainer.state.fn == "fit"
        if isinstance(exception, KeyboardInterrupt) and is_fit and folder.last.is_file():
            end = "interrupted"
            if isinstance(exception, Terminated):
                end = f"ended by {name_of(exception.number)}"
            log.warning(
                "%s; 'ltr fit %s' resumes from %s", end, quote(str(folder.path)), folder.last
            )

    # Steps. Which hook saves after a batch:
    #
    # * a validation is due: on_validation_end
    # * the epoch ends here: on_train_epoch_end, also after a validation
    # * neither: on_train_batch_end, where last.every_n_steps or a signal asks for it
    #
    # A signal ends the run in the hook that saves; where a validation is due, before it.

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # last.ckpt was due after the batch before, and on_train_batch_end left it to
        # on_validation_end. Where there are no validation batches, Lightning has not called that.
        if self._last_is_due:
            self._save(trainer, Moment.AFTER_STEP)
        self._steps_before_batch = trainer.global_step
        internals.set_logged_step(trainer, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self._steps_before_batch:
            self._batches_since_step += 1
        else:
            self._batches_since_step = 0
        if self._batches_since_step:  # in the middle of accumulated gradients
            return
        validation_is_due = internals.validation_is_due(trainer)
        self._last_is_due = trainer.global_step % self.last_options.every_n_steps == 0
        must_end = self._signals.pending is not None and not _is_complete(trainer)
        if validation_is_due:
            if must_end:
                self._save_and_end(trainer, Moment.VALIDATION_DUE)  # raises
            return  # on_validation_end saves, or on_train_epoch_end
        if internals.epoch_ends_here(trainer):
            return  # on_train_epoch_end saves
        if must_end:
            self._save_and_end(trainer, Moment.AFTER_STEP)  # raises
        if self._last_is_due:
            self._save(trainer, Moment.AFTER_STEP)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_whole = internals.all_batches_trained(trainer)
        pending = self._signals.pending
        # An epoch that is not whole was cut short by max_steps, and is the last: the run ends by
        # itself.
        moment = Moment.EPOCH_END if is_whole else Moment.AFTER_STEP
        self._save_if_due_or_cheap(trainer, moment, pending)
        if pending is not None and is_whole and not _is_complete(trainer):
            raise pending

    # Validations

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._states_before_validation = internals.callback_states(trainer)
            self._phase = Phase.VALIDATING
            if self._signals.pending is not None:
                self._end_if_validating(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Comes before on_validation_end of any callback. One of them writes metrics.json: a signal
        # that saved meanwhile would write the same file, and wait for its lock for ever.
        if self._phase is Phase.VALIDATING:
            self._phase = Phase.LEAVING_VALIDATION

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._phase is Phase.OUTSIDE:
            return
        self._note_score(trainer)
        pending = self._signals.pending
        # After the last batch of an epoch on_train_epoch_end follows, and saves.
        is_within_epoch = not internals.fetched_last_batch(trainer)
        # In the middle of accumulated gradients last.ckpt is not written here, since a resume would
        # repeat batches: a later moment writes it. New best weights can't wait.
        if is_within_epoch and (self._best_is_due or not self._batches_since_step):
            self._save_if_due_or_cheap(trainer, Moment.AFTER_STEP, pending)
        self._phase = Phase.OUTSIDE
        self._states_before_validation = {}
        may_end = is_within_epoch and not self._batches_since_step
        if pending is not None and may_end and not _is_complete(trainer):
            raise pending

    def _note_score(self, trainer: Trainer) -> None:
        """Note the score of these weights, and whether they are among the best."""
        score = trainer.callback_metrics.get(self.best_options.monitor or "")
        step = trainer.global_step
        k = self.best_options.save_top_k
        self._newest_is_best = False
        if score is None or k == 0 or math.isnan(score):
            return
        self._scores[step] = self.best_options.sign * float(score)
        ranked = best_first(self._scores)
        kept = ranked if k == -1 else ranked[:k]
        self._best_is_due = step in kept
        self._newest_is_best = step == ranked[0]
        self._scores = {kept_step: self._scores[kept_step] for kept_step in kept}

    # Ending early

    def _on_signal(self, trainer: Trainer) -> None:
        """In the handler of a signal. If a validation or a refresh of negatives is running, end the
        run now: it may take long, and the resumed run does it anew. Else do nothing: the end of the
        step ends the run.
        """
        assert self._signals.pending is not None
        data = data_of(trainer)
        if data is not None and data.is_refreshing:
            # Save what this epoch has trained. If it has trained nothing yet, the end of the epoch
            # before was saved already.
            if internals.epoch_has_begun(trainer):
                self._save(trainer, Moment.AFTER_STEP)
            raise self._signals.pending
        self._end_if_validating(trainer)

    def _end_if_validating(self, trainer: Trainer) -> None:
        """End the run within a validation, which the resumed run does anew.

        A validation of averaged weights is finished instead: while it runs, the model does not have
        the weights that are trained on. So is one in the middle of accumulated gradients, whose step
        is not done.
        """
        is_averaged = bool(callbacks_of(trainer, WeightAveraging))
        may_end = self._phase is Phase.VALIDATING and not self._batches_since_step
        if may_end and not is_averaged and not _is_complete(trainer):
            # Set before saving, so that another signal does not come here again.
            self._phase = Phase.LEAVING_VALIDATION
            self._save_and_end(trainer, Moment.VALIDATION_DUE)

    def _save_and_end(self, trainer: Trainer, moment: Moment) -> NoReturn:
        assert self._signals.pending is not None
        self._save(trainer, moment)
        raise self._signals.pending

    # Saving

    def _save_if_due_or_cheap(
        self, trainer: Trainer, moment: Moment, pending: KeyboardInterrupt | None
    ) -> None:
        """Write ``last.ckpt`` if something asks for it, or if a write takes little of the run's
        time. Else a later moment writes it. If the run is killed before that moment, its resume
        repeats a little work, which costs less than a write each time.

        A run with refreshes of negatives always writes it: a refresh may follow, which takes longer
        than a write, and between two epochs a signal ends it without a further save (_on_signal).

        ``pending`` is handed over, since the caller has read it once: a signal that comes meanwhile
        waits for the next step.
        """
        data = data_of(trainer)
        refreshes = data is not None and data.has_refreshes
        is_due = self._best_is_due or self._last_is_due or refreshes
        ends = pending is not None or _is_complete(trainer)
        if is_due or ends or time.monotonic() >= self._next_cheap_write:
            self._save(trainer, moment)

    def _save(self, trainer: Trainer, moment: Moment) -> None:
        """Write ``last.ckpt``, and ``best.ckpt`` where the weights are the best so far.

        Only rank 0 does, and no rank waits for it. NaN or infinite weights are an error, and the
        files of before stay. In the middle of accumulated gradients a resume continues after the
        step before, and repeats the batches since.
        """
        check_finite(trainer.lightning_module)
        writes_best = self._best_is_due
        self._best_is_due = False
        self._last_is_due = False
        # Set before _resumable_checkpoint, which stores it.
        self._asked_to_stop = trainer.should_stop and not _time_is_up(trainer)
        if not trainer.is_global_zero or is_trial(trainer):
            return
        start = time.monotonic()
        folder = RunFolder(trainer.default_root_dir)
        checkpoint = self._resumable_checkpoint(trainer, moment)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        try:
            write_checkpoint(checkpoint, folder.temporary_checkpoint)
            step = checkpoint["global_step"]
            only_weights = self.best_options.save_weights_only
            # best.ckpt comes first. A run that is killed between the two resumes from the last.ckpt
            # before, and its validation finds the same weights best again. Where there is no
            # last.ckpt before, it resumes from best.ckpt, which must be whole until there is one.
            best_must_be_resumable = not folder.last.is_file()
            if writes_best and only_weights and not best_must_be_resumable:
                _write_weights(checkpoint, folder.temporary_best)
                self._keep_best(folder, folder.temporary_best, step)
            elif writes_best:
                self._keep_best(folder, folder.temporary_checkpoint, step)
            os.replace(folder.temporary_checkpoint, folder.last)
            if writes_best and only_weights and best_must_be_resumable:
                # No run resumes from best.ckpt any more: replace it by its weights.
                _write_weights(checkpoint, folder.temporary_best)
                self._keep_best(folder, folder.temporary_best, step)
        finally:
            folder.temporary_checkpoint.unlink(missing_ok=True)
            folder.temporary_best.unlink(missing_ok=True)
        seconds = time.monotonic() - start
        # A write of 10 s makes the next one cheap 200 s after this one began.
        self._next_cheap_write = start + seconds / MAX_SHARE_OF_TIME

    def _resumable_checkpoint(self, trainer: Trainer, moment: Moment) -> dict[str, Any]:
        """A checkpoint of Lightning that resumes at a moment, and what we add to it."""
        checkpoint = internals.dump_checkpoint(trainer)
        data = data_of(trainer)
        repeats_batches = self._batches_since_step > 0
        if repeats_batches and data is not None:
            # Lightning has stored the state of the data after the batches since the last step. A
            # resume repeats them, so the state before them takes its place, under Lightning's key.
            checkpoint[type(data).__qualname__] = data.state_dict(self._batches_since_step)
        # A resume from the middle of accumulated gradients repeats these batches and the validation
        # after them, so it needs the states of the callbacks from before that validation.
        repeats_validation = repeats_batches or moment is Moment.VALIDATION_DUE
        if repeats_validation and self._states_before_validation:
            checkpoint["callbacks"] = self._states_before_validation
        set_counters(checkpoint, moment, self._batches_since_step)
        checkpoint["run"] = {
            "format": FORMAT,
            "identity": as_taken(self.identity, {} if data is None else data.taken),
            # True if the run has ended early. A request to stop counts only from min_epochs and
            # min_steps on.
            "stopped": self._asked_to_stop and internals.may_stop(trainer),
            "monitor": self.best_options.monitor,
            "precision": str(trainer.precision),
            "scores": dict(self._scores),
        }
        return checkpoint

    def _name_best_by_step(self, folder: RunFolder) -> None:
        """Where several are kept, name a lone ``best.ckpt`` ``step=N.ckpt``, too."""
        if self.best_options.save_top_k in (0, 1) or not folder.best.is_file():
            return
        step = read_checkpoint(folder.best, checksums=False)["global_step"]
        file = folder.step_file(step)
        if not file.is_file():
            link_or_copy(folder.best, file)

    def _keep_best(self, folder: RunFolder, file: Path, step: int) -> None:
        """Put a checkpoint among the best, and remove those that no longer are."""
        if best_first(self._scores)[0] == step:
            link_or_copy(file, folder.best)
        if self.best_options.save_top_k != 1:
            link_or_copy(file, folder.step_file(step))
        if self.best_options.save_top_k == -1:  # all of them are
            return
        # Those of another metric stay: they were the best by what the run was told before.
        for kept_step in folder.kept_scores(self.best_options.monitor):
            if kept_step not in self._scores:
                folder.step_file(kept_step).unlink(missing_ok=True)


def _check_strategy(trainer: Trainer) -> None:
    """Raise an InputError for a strategy under which no resume is exact."""
    if not trainer.strategy.restore_checkpoint_after_setup:
        return
    name = type(trainer.strategy).__name__
    raise InputError(
        f"trainer.strategy must keep the whole model on every rank (auto, ddp), got {name}: an exact resume of sharded models is not supported"
    )


def _write_weights(checkpoint: Mapping[str, Any], file: Path) -> None:
    """Write a checkpoint without what only a resume needs."""
    weights = dict(checkpoint)
    for part in ("callbacks", "optimizer_states", "lr_schedulers"):
        del weights[part]
    write_checkpoint(weights, file)


def _is_complete(trainer: Trainer) -> bool:
    """Whether nothing is left to train: then the run ends by itself, and is not interrupted."""
    return (
        internals.epochs_are_done(trainer)
        or trainer.global_step == trainer.fit_loop.max_steps
        or (trainer.should_stop and internals.may_stop(trainer))
    )


def _time_is_up(trainer: Trainer) -> bool:
    """Whether ``trainer.max_time`` has ended the run: with more time it resumes."""
    for timer in callbacks_of(trainer, Timer):
        left = timer.time_remaining()
        if left is not None and left <= 0:
            return True
    return False
