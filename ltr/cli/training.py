"""The Lightning command line of rankers: ``fit``, ``validate``, ``test``, ``predict`` and ``mine``
into a run folder.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import jsonargparse
import transformers
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers.logger import DummyLogger

from ltr.callbacks import HardNegativeMining
from ltr.check.kept_forecast import KeptForecast, difference_line
from ltr.checkpoint import read_checkpoint
from ltr.cli.folder_of_command import folder_of_command
from ltr.cli.messages import add_restarts, errors_with_paths, input_error_behind, line_for_user
from ltr.cli.mine import mining_callback
from ltr.cli.parsed import ParsedCommand
from ltr.data.console import say
from ltr.data.layouts import FeatureVectors
from ltr.data.splits import split_named
from ltr.errors import InputError
from ltr.in_batch import OwnLists
from ltr.processes import by_rank_0, lost_connection, rank, world_size
from ltr.run import lightning_internals as internals
from ltr.run.agreement import check_agreement
from ltr.run.checkpoints import Checkpoints
from ltr.run.identity import identity_of
from ltr.run.init_from import take_weights
from ltr.run.launchers import (
    check_nodes,
    has_launcher,
    is_rank_0,
    join_processes,
    tell_lightning_rank,
    use_launched_processes,
)
from ltr.run.log import route_messages
from ltr.run.loggers import (
    build_loggers,
    continue_tensorboards,
    ending_wandb_run,
    log_weights_to_wandb,
)
from ltr.run.metrics_file import read_metrics
from ltr.run.precision import ChosenPrecision
from ltr.run.progress_lines import ResultLines, with_bar
from ltr.run.results import ResultsWriter
from ltr.run.run_folder import RunFolder
from ltr.run.signals import exception_of, ignore_cluster_signals, number_of
from ltr.run.summary import ceiling_line, made_worse_warning, summary_line
from ltr.run.together import (
    LONGEST_WAIT,
    Ending,
    EndWatch,
    EndWatchCallback,
)
from ltr.run.trainer_checks import check_callbacks
from ltr.run.which_checkpoint import (
    Limits,
    NothingToDo,
    checkpoint_to_measure,
    checkpoint_to_resume,
)
from ltr.trainer_state import is_trial

log = logging.getLogger(__name__)


def run_configured(command_line: list[str]) -> None:
    """Parse the words and run the command; an InputError for what the user can mend."""
    transformers.utils.logging.disable_progress_bar()  # even for loading weights, a tenth of a second
    tell_lightning_rank()
    with ExitStack() as stack:
        log_into = stack.enter_context(route_messages(is_rank_0=is_rank_0()))
        try:
            RankerCLI(command_line, stack, log_into).run()
        except NothingToDo as done:
            log.info("%s", done)


def _say_lost(lost: str) -> None:
    """One line, where a signal ends this process before it learns why another one is gone."""
    say(
        f"ltr [rank {rank()}]: process {rank()} of {world_size()} lost the connection to another one ({lost}), which has ended or can't be reached; its own output says why",
        to=sys.stderr,
    )


class RankerCLI(ParsedCommand):
    """A command with a run folder: ``runs/<experiment>/seed=<n>`` unless
    ``--trainer.default_root_dir`` names another.

    Args:
        command_line: as of :class:`ltr.cli.parsed.ParsedCommand`.
        stack: holds the folder while the command runs.
        log_into: is called with the file that the log goes to, once the run folder is known.
    """

    def __init__(
        self, command_line: list[str], stack: ExitStack, log_into: Callable[[Path], None]
    ) -> None:
        super().__init__(command_line)
        self._stack = stack
        self._log_into = log_into
        # From _find_folders on.
        self._plain: dict[str, Any]  # the configuration
        self._identity: dict[str, Any]
        self._folder: RunFolder
        self._precision: ChosenPrecision
        self._results_folder: RunFolder  # that of the run, or of another split than test
        self._results: ResultsWriter
        # From _take_folders on: that the command starts from.
        self._checkpoint: str | None = None
        self._checkpoints: Checkpoints | None = None  # the callback, once the trainer is there
        self._end_watch = EndWatch(
            lambda: None if self._checkpoints is None else self._checkpoints.signal_here
        )

    def run(self) -> None:
        """Run the command. What ends it is told to the other processes of the run.

        The folders are taken before anything is made. Where a launcher has started the processes,
        they are taken by all of them together, and these can meet once there is a trainer.
        """
        try:
            ending = self._run_or_tell_error()
        except (KeyboardInterrupt, SystemExit) as stop:
            # Lightning ends by SystemExit after a signal, which is then its context.
            cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__context__
            if isinstance(cause, KeyboardInterrupt):
                self._tell_of_signal(cause)
            raise
        finally:
            self._end_watch.finish()
        if ending is not None:
            raise ending

    def _run_or_tell_error(self) -> BaseException | None:
        """Run the command. Returns what ends this process where another one is gone, or did not come;
        None where the work is done.
        """
        try:
            with errors_with_paths(self.options):
                self.seed()
                self._find_folders()
                if not has_launcher():
                    self._take_folders()
                self.make(self._plain)
                self.trainer = self.instantiate_trainer()
                internals.limit_waiting(self.trainer, LONGEST_WAIT)
                internals.copy_gradients_together(self.trainer)
                if has_launcher():
                    join_processes(self.trainer)
                    self._end_watch.begin()
                    check_agreement(self._plain)
                    self._take_folders()
                self._prepare()
                self._train_or_measure()
        except NothingToDo:
            raise
        except Exception as error:
            if world_size() > 1:
                ignore_cluster_signals()
            lost = lost_connection(error)
            if lost is None:
                self._tell_of_error(error)
                raise
            ending = self._ending_without_others(lost, error)
            ending.__cause__ = error
            return ending
        return None

    def _tell_of_signal(self, interrupt: KeyboardInterrupt) -> None:
        """Tell the other processes that a signal ends this one."""
        if self._end_watch.rank_0_is_gone():
            _say_lost("its store does not answer")
        # Those that Lightning has started itself it has killed.
        gone = [] if has_launcher() else range(1, world_size())
        self._end_watch.tell(Ending(number_of(interrupt)), gone)

    def _tell_of_error(self, error: Exception) -> None:
        """Tell the other processes that an error ends this one, and the user of a restart."""
        line = line_for_user(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        told = f"process {rank()} of {world_size()} has ended: {line}"
        self._end_watch.tell(Ending(line=told))
        add_restarts(error)

    def _ending_without_others(self, lost: str, error: Exception) -> BaseException:
        """What ends this process where another one is gone, or did not come: the signal that has
        ended that one, or else one line, with what the error says of it.
        """
        if self._checkpoints is not None and self._checkpoints.heard_on_other_rank is not None:
            if self._end_watch.rank_0_is_gone():
                _say_lost(lost)
            return self._checkpoints.heard_on_other_rank
        if world_size() == 1:
            return InputError(
                f"the processes of this command could not meet ({lost}); all of them must be started, and MASTER_ADDR and MASTER_PORT must name a free port that they can reach"
            )
        ending = self._end_watch.find_and_tell_ending(
            lost, error, internals.longest_wait(self.trainer)
        )
        if ending.number:
            return exception_of(ending.number)
        again = "start it again"
        folder = self.options.trainer.default_root_dir
        if self._command == "fit" and RunFolder(folder).holds_checkpoints():
            again = f"'ltr fit {quote(folder)}' resumes the run"
        return InputError(f"{ending.line}; {again}")

    # The run folder and the checkpoint

    def _find_folders(self) -> None:
        """Find what the run is, its folder, and where the results go."""
        options = self.options
        check_nodes(options.trainer.num_nodes)
        self._folder = folder_of_command(self)
        self._precision = self.settle_precision(self._folder)
        # Both as the user has configured it, so before the options are changed below.
        self._plain = self.plain_options()
        self._identity = identity_of(self._plain)
        self._results = ResultsWriter(self._plain)
        self._results_folder = self._folder
        if self._command == "test":
            options.split = split_named(options.split, "split")
            self._results_folder = self._folder.folder_of_split(options.split)
        options.trainer.default_root_dir = str(self._results_folder.path)
        options.weights_only = True  # a checkpoint is never code

    def _prepare(self) -> None:
        """Give the trainer, the data and a new run's ranker what they begin with."""
        made = self.made
        made.ckpt_path = self._checkpoint
        self._say_precision()
        self._begin_logging()
        self.datamodule.reads = self.model.reads
        if self._command == "test":
            self.datamodule.test_on(made.split)
        if self._command == "fit" and self._checkpoint is not None:
            checkpoint = read_checkpoint(self._checkpoint, checksums=False)
            self.datamodule.will_resume(checkpoint.get(type(self.datamodule).__qualname__, {}))
        if made.init_from is None or self._checkpoint is not None:
            return
        weights = take_weights(self.model, made.init_from, "--init_from")
        self._results.init_weights = weights
        log.info("the ranker starts from the weights of %s", weights.file)

    def _say_precision(self) -> None:
        """Say which precision was chosen, and why, where a GPU left a choice."""
        if self._precision.line is not None:
            log.info("%s", self._precision.line)
        warning = self._precision.warning(self.trainer.strategy.root_device)
        if warning is not None:
            log.warning("%s", warning)

    def _take_folders(self) -> None:
        """Take the folders, and find the checkpoint that the command starts from. Where the
        processes have met, rank 0 does it for all: they begin alike, or none does.
        """
        found = by_rank_0(self._checkpoint_of_taken)
        if isinstance(found, NothingToDo):
            raise found
        self._results_folder.check_seen_by_all()
        self._checkpoint = found
        self._log_into(self._results_folder.log)

    def _begin_logging(self) -> None:
        """Give the trainer its loggers. They write into the run folder, so it is taken before."""
        if self._command == "mine" or is_trial(self.trainer):
            return
        made = self.made
        folder = Path(made.trainer.default_root_dir)
        is_fit = self._command == "fit"
        if self.has_our_loggers:
            self.trainer.loggers = build_loggers(folder, made.wandb, is_fit, _class_names(made))
        elif made.wandb is not None:
            log.warning(
                "nothing is logged to %s at Weights & Biases: trainer.logger takes the place of --wandb",
                made.wandb,
            )
        continue_tensorboards(self.trainer.loggers, folder, is_fit, self._checkpoint)
        if not is_fit and self._checkpoint is not None:
            # What is measured stands at the step of the last validation of these weights. A file
            # without a step is no checkpoint of a ranker, which is told where it is opened.
            steps = read_checkpoint(self._checkpoint, checksums=False).get("global_step", 0)
            internals.set_logged_step(self.trainer, max(steps - 1, 0))

    def _checkpoint_of_taken(self) -> str | NothingToDo | None:
        """Take the folders. Returns the checkpoint that the command starts from, None for none; or
        an error that all processes must raise: :func:`by_rank_0` hands on what is returned.
        """
        options = self.options
        folder = self._folder
        folder.check_writable()
        folder.check_no_hpc_checkpoint()
        if is_rank_0():
            self._stack.enter_context(folder.owned())
            if self._results_folder is not folder:
                self._stack.enter_context(self._results_folder.owned())
            # Before the folder is let go: of a start that failed, it removes what lies there.
            self._stack.enter_context(ending_wandb_run())
        # A damaged file would be found when the results are written.
        read_metrics(self._results_folder.metrics)
        if self._command != "fit":
            return checkpoint_to_measure(folder, options.ckpt_path, self._identity)
        trainer = options.trainer
        limits = Limits(trainer.max_epochs, trainer.max_steps, trainer.max_time)
        try:
            return checkpoint_to_resume(folder, options.ckpt_path, self._identity, limits)
        except NothingToDo as done:
            return done

    def _train_or_measure(self) -> None:
        try:
            self.run_subcommand()
        except Exception as error:
            if not internals.comes_of_restoring(error):
                raise
            file = self.made.ckpt_path
            bad_input = input_error_behind(error)
            if bad_input is not None:  # of a part that has looked at its own state
                bad_input.message = f"--ckpt_path {file}: {bad_input.message}"
                raise
            text = " ".join(str(error).split())[:200]
            raise InputError(
                f"--ckpt_path {file}: the checkpoint is damaged, or does not fit this configuration ({type(error).__name__}: {text}); take another one"
            ) from error

    # The trainer

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        made = self.made
        use_launched_processes(made.trainer)  # not into config.yaml: others may resume the run
        callbacks = self.callbacks()
        if self._command == "mine":
            mining = [each for each in callbacks if isinstance(each, HardNegativeMining)]
            return super().instantiate_trainer(
                callbacks=[EndWatchCallback(self._end_watch), *mining],
                logger=False,
                enable_progress_bar=False,
            )
        check_callbacks(callbacks, self._monitored())
        is_fit = self._command == "fit"
        if self.has_our_loggers:
            kwargs["logger"] = DummyLogger()  # _begin_logging gives the others
        callbacks.insert(0, EndWatchCallback(self._end_watch))
        callbacks += [self._results, ResultLines()]
        callbacks, has_bar = with_bar(callbacks, made.trainer.enable_progress_bar)
        kwargs["enable_progress_bar"] = has_bar
        if is_fit and self.has_our_loggers:
            callbacks.append(LearningRateMonitor())
        self._checkpoints = Checkpoints(made.best, made.last, self._identity)
        callbacks.append(self._checkpoints)
        if is_fit:
            callbacks.append(KeptForecast())
        try:
            return super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except TypeError as error:
            if "devices" not in str(error):
                raise
            raise InputError(
                f"devices must be a number of processes, or of GPUs, got {made.trainer.devices!r}",
                option="trainer.devices",
            ) from None

    def _monitored(self) -> list[str]:
        """The names of what is measured on dev."""
        return [f"val/{metric.name}" for metric in self.model.ranking_metrics]

    # Before and after the command

    def before_fit(self) -> None:
        known = self._monitored()
        monitor = self.options.best.monitor
        if monitor is not None and monitor not in known:
            raise InputError(
                f"best.monitor must be one of the measures {', '.join(known)}, got {monitor!r}"
            )

    # Lightning's table of the results is left out: ResultLines says them.

    def validate(self, **options: Any) -> None:
        self.trainer.validate(verbose=False, **options)

    def test(self, **options: Any) -> None:
        self.trainer.test(verbose=False, **options)

    def before_mine(self) -> None:
        """Start from the recipe of the callback that mines while training; options that were given
        replace its own.
        """
        callback = mining_callback(self.trainer)
        if callback is not None:
            given = self.given("recipe")
            changes = {} if given is None else vars(given)
            self.made.recipe = replace(callback.recipe, **changes)

    def after_fit(self) -> None:
        # The others may read the folder while the first process still writes it.
        if is_trial(self.trainer) or not self.trainer.is_global_zero:
            return
        folder = RunFolder(self.trainer.default_root_dir)
        best = self.made.best
        if self.made.wandb_model:
            log_weights_to_wandb(self.trainer.loggers, folder)
        difference = difference_line(read_metrics(folder.metrics))
        if difference is not None:
            log.info("%s", difference)
        text = summary_line(folder, best)
        if folder.last.is_file():  # something was trained
            text += f"; all of it lies in {folder.path}"
            next_command = self._next_command(quote(str(folder.path)))
            if next_command:
                text += f"; next: {next_command}"
        log.info("%s", text)
        warning = made_worse_warning(folder, best)
        if warning is not None:
            log.warning("%s", warning)

    def _next_command(self, run: str) -> str:
        """What measures a run that was trained, or ranks by it; nothing where no command does."""
        splits = self.datamodule.measurable_splits
        options = self.datamodule.options_to_measure
        if "test" in splits:
            return f"ltr test {run}{options}"
        if "dev" in splits:
            return f"ltr validate {run}{options}"
        if isinstance(self.model.reads, FeatureVectors):
            return ""
        return f"ltr rank {run} --query WORDS --documents FILE"

    def after_validate(self) -> None:
        self._check_measured(self.trainer.num_val_batches, "trainer.limit_val_batches")
        self._say_ceiling()

    def after_test(self) -> None:
        self._check_measured(self.trainer.num_test_batches, "trainer.limit_test_batches")
        self._say_ceiling()
        self._say_place("test.run, per_query.tsv and metrics.json lie")

    def _check_measured(self, n_batches: Sequence[int | float], option: str) -> None:
        if sum(n_batches) == 0:
            raise InputError(
                f"ltr {self._command} must read batches to measure anything, and has read none; raise it",
                option=option,
            )

    def _say_ceiling(self) -> None:
        """Say what the candidates of an evaluation allow, where they don't hold all that is relevant."""
        # Only rank 0 writes the results, and a trial run writes none.
        if is_trial(self.trainer) or not self.trainer.is_global_zero:
            return
        results = read_metrics(RunFolder(self.trainer.default_root_dir).metrics)
        line = ceiling_line(results[self._command])
        if line is not None:
            log.info("%s", line)

    def after_predict(self) -> None:
        self._say_place("predict.run lies")

    def _say_place(self, what_lies: str) -> None:
        """Say where the results are; a trial run writes none."""
        if not is_trial(self.trainer):
            log.info("%s in %s", what_lies, self.trainer.default_root_dir)


def _class_names(made: jsonargparse.Namespace) -> list[str]:
    """The class names of the parts of a run, but for None and OwnLists, which adds nothing."""
    model = made.model
    parts = (model.ranker, model.loss, model.margin, model.in_batch, made.data)
    return [type(part).__name__ for part in parts if not isinstance(part, OwnLists | None)]
