"""The Lightning command line of rankers: ``fit``, ``validate``, ``test``, ``predict`` into a run
folder.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import jsonargparse
import transformers
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only

from ltr.callbacks import HardNegativeMining
from ltr.checkpoint import read_checkpoint
from ltr.cli import negatives
from ltr.cli.arguments import COMMANDS, ModelHelp, check_keys, expanded
from ltr.cli.messages import input_error, path_of
from ltr.cli.mine import MiningTrainer, mining_of
from ltr.data.files import write_whole
from ltr.datamodules import RankingDataModule
from ltr.errors import InputError
from ltr.in_batch import OwnLists
from ltr.module import METRICS, RankerModule, is_trial
from ltr.run.checkpoints import Best, Checkpoints, Last
from ltr.run.folder import RunFolder, link_or_copy
from ltr.run.identity import check_same, identity, ranker_options
from ltr.run.log import Progress, route_messages
from ltr.run.loggers import build_loggers, wandb_run_ended
from ltr.run.progress import finished_message
from ltr.run.results import (
    RunWriter,
    ceiling_line,
    read_metrics,
    summary_line,
    worse_than_start_warning,
)
from ltr.run.trainer import check_callbacks, check_options
from ltr.run.weights import take_weights

log = logging.getLogger(__name__)


class NothingToDo(Exception):
    """A run is finished, and was told to resume."""


def run(args: list[str]) -> None:
    """Parse the arguments and run the command; an InputError for what the user can mend."""
    transformers.utils.logging.disable_progress_bar()  # for what takes a tenth of a second
    with ExitStack() as stack:
        log_into = stack.enter_context(route_messages(is_rank_0=_is_rank_0()))
        stack.enter_context(wandb_run_ended())
        if args[0] == "negatives":
            return negatives.run(args[1:])
        try:
            RankerCLI(stack, log_into, expanded(args))
        except NothingToDo as done:
            log.info("%s", done)


class RunConfig(SaveConfigCallback):
    """Writes the whole configuration of a ``fit`` into its run folder, and tells it to the loggers."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing yet: the run may still be refused."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not is_trial(trainer):
            self.save_config(trainer, pl_module, "fit")

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        config = self.config.clone()
        # What belongs to this run and not to its configuration: a copy of the file elsewhere must
        # not write here.
        config.ckpt_path = None
        config.trainer.default_root_dir = None
        text = self.parser.dump(config, skip_unset=False)
        write_whole(RunFolder(trainer.default_root_dir).config, [text])
        for logger in trainer.loggers:
            logger.log_hyperparams(yaml.safe_load(text))


class RankerCLI(LightningCLI):
    """LightningCLI with a run folder: ``runs/<experiment>/seed=<n>`` unless
    ``--trainer.default_root_dir`` names another.

    Args:
        stack: holds the folder while the command runs.
        log_into: names the file of the log.
        args: the command with its options.
    """

    def __init__(self, stack: ExitStack, log_into: Callable[[Path], None], args: list[str]) -> None:
        self._held = stack
        self._log_into = log_into
        self._identity = dict[str, Any]()
        self.subcommand = None
        strict = {"exit_on_error": False, "allow_abbrev": False}
        try:
            super().__init__(
                RankerModule,
                RankingDataModule,
                trainer_class=MiningTrainer,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=0,
                trainer_defaults={
                    "max_epochs": 1,
                    "log_every_n_steps": 10,
                    "num_sanity_val_steps": -1,
                },
                save_config_callback=RunConfig,
                save_config_kwargs={"save_to_log_dir": False},
                parser_kwargs=strict | {command: strict for command in COMMANDS},
                args=args,
            )
        except Exception as error:  # names an option by its path in the configuration: data.batch_size for batch_size
            ours = input_error(error)
            if ours is not None and ours.option is not None and self.subcommand is not None:
                ours.option = path_of(ours, self.config[self.subcommand])
            raise

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return LightningCLI.subcommands() | {"mine": {"model", "datamodule"}}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)
        if self.config.subcommand == "mine":
            self._recipe = parser.parse_args(args, defaults=False).mine.get("recipe")
        check_keys(args, self._parser(self.config.subcommand))

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--model.help", action=ModelHelp)
        parser.add_class_arguments(Best, "best")
        parser.add_class_arguments(Last, "last")
        help = "Start a new run from the ranker's weights of another one: a run folder (its best weights) or a checkpoint."
        parser.add_argument("--init_from", type=str | None, default=None, help=help)
        help = "Weights & Biases project to log to; offline where there is no key or WANDB_MODE says so."
        parser.add_argument("--wandb", type=str | None, default=None, help=help)

    # The run folder and the checkpoint

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        check_options(config.trainer)
        plain = yaml.safe_load(self._parser(self.subcommand).dump(config, skip_unset=False))
        self._identity = identity(plain)
        folder = RunFolder(config.trainer.default_root_dir or _run_folder(config, plain))
        config.trainer.default_root_dir = str(folder.path)
        folder.check_writable()
        if _is_rank_0():
            self._held.enter_context(folder.owned())
        if self.subcommand == "fit":
            config.ckpt_path = self._to_resume(folder, config)
        else:
            config.ckpt_path = self._to_measure(folder, config.ckpt_path)
        config.weights_only = True  # a checkpoint is never code
        self._log_into(folder.log)

    def _to_resume(self, folder: RunFolder, config: jsonargparse.Namespace) -> str | None:
        """The checkpoint that ``fit`` resumes from; None begins a run."""
        asked = config.ckpt_path
        if asked is None:
            if folder.holds_weights() and _is_rank_0():
                raise InputError(
                    f"{folder.path} already holds a run; resume it (ltr fit {quote(str(folder.path))}), choose another folder "
                    "(--trainer.default_root_dir), or remove it"
                )
            return None
        found = (
            folder.checkpoint_to_resume()
            if asked == "last"
            else folder.checkpoint_to_measure("best")
            if asked == "best"
            else asked
        )
        if found is None and folder.holds_weights():
            hint = "to start from them: another folder, --init_from"
            raise InputError(f"{folder.path} holds weights that no run can resume from; {hint}")
        if found is None:
            log.info("%s holds no checkpoint yet; the run begins", folder.path)
            return None
        checkpoint = read_checkpoint(found)
        own = Path(found).resolve().parent == folder.checkpoints.resolve()
        hint = "to start a new run from its weights, take another folder and --init_from"
        if folder.holds_weights() and not own:
            raise InputError(f"--ckpt_path {found} is not of the run in {folder.path}; {hint}")
        if "optimizer_states" not in checkpoint:
            raise InputError(
                f"--ckpt_path {found} holds weights only, and no run can resume from it; {hint}"
            )
        check_same(self._identity, checkpoint.get("run", {}).get("identity", {}), str(found), hint)
        done = finished_message(
            checkpoint, config.trainer.max_epochs, config.trainer.max_steps, config.trainer.max_time
        )
        if done is not None and not own:
            raise InputError(f"--ckpt_path {found}: {done}, so nothing is left to train; {hint}")
        if done is not None:
            if (
                Path(found) == folder.best and not folder.last.is_file() and _is_rank_0()
            ):  # killed between the two files
                link_or_copy(folder.best, folder.last)
            raise NothingToDo(
                f"{folder.path}: {done}; nothing to do, nothing changed; next: ltr test {quote(str(folder.path))}"
            )
        log.info("resuming from %s, step %d", found, checkpoint["global_step"])
        return str(found)

    def _to_measure(self, folder: RunFolder, asked: str | None) -> str | None:
        """The checkpoint that is measured; None for the weights that the model starts from."""
        if asked is None:
            if folder.holds_weights():
                others = "choose another folder (--trainer.default_root_dir) for those that the model starts from"
                which = "say which to take (--ckpt_path best or last)"
                raise InputError(f"{folder.path} holds trained weights; {which}, or {others}")
            log.warning(
                "no --ckpt_path: the weights that the model starts from are used, not trained ones"
            )
            return None
        found = str(folder.checkpoint_to_measure(asked)) if asked in ("best", "last") else asked
        then = ranker_options(read_checkpoint(found).get("run", {}).get("identity", {}))
        check_same(
            ranker_options(self._identity),
            then,
            found,
            "take the configuration of its run: ltr test RUN",
        )
        return found

    def after_instantiate_classes(self) -> None:
        """Tell the data what the ranker reads. Take the weights of another run where the configuration
        asks for them and the run is new.
        """
        self.datamodule.reads = self.model.reads
        config = self.config[self.subcommand]
        if config.init_from is None or config.ckpt_path is not None:
            return
        file = take_weights(self.model, config.init_from, "--init_from")
        log.info("the ranker starts from the weights of %s", file)

    # The trainer

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config_init[self.subcommand]
        fits = self.subcommand == "fit"
        asked = config.trainer.callbacks or []
        given = list(asked) if isinstance(asked, list | tuple) else [asked]
        if self.subcommand == "mine":
            given = [one for one in given if isinstance(one, HardNegativeMining)]
            return super().instantiate_trainer(
                callbacks=given, logger=False, enable_progress_bar=False
            )
        check_callbacks(given, [f"val/{metric.measure}" for metric in self.model.measures])
        if config.trainer.logger in (None, True):
            kwargs["logger"] = build_loggers(
                Path(config.trainer.default_root_dir), config.wandb, fits, _parts(config)
            )
        if config.trainer.enable_progress_bar is None:
            kwargs["enable_progress_bar"] = sys.stdout.isatty()
        lines = fits and not kwargs.get("enable_progress_bar", config.trainer.enable_progress_bar)
        callbacks = [*given, RunWriter(config.init_from), *([Progress()] if lines else [])]
        if kwargs.get("logger") and fits:
            callbacks.append(LearningRateMonitor())
        callbacks.append(Checkpoints(config.best, config.last, self._identity))
        try:
            return super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except TypeError as error:
            if "devices" not in str(error):
                raise
            text = (
                f"devices must be a number of processes, or of GPUs, got {config.trainer.devices!r}"
            )
            raise InputError(text, option="trainer.devices") from None

    def before_fit(self) -> None:
        known = [f"val/{metric.measure}" for metric in self.model.measures]
        monitor = self.config.fit.best.monitor
        if monitor is not None and monitor not in known:
            raise InputError(
                f"best.monitor must be one of the measures {', '.join(known)}, got {monitor!r}"
            )

    def before_mine(self) -> None:
        """Take the recipe of the callback that mines while training, and change what the arguments
        say.
        """
        callback = mining_of(self.trainer)
        if callback is not None:
            self.config_init.mine.recipe = replace(
                callback.recipe, **vars(self._recipe or jsonargparse.Namespace())
            )

    def after_fit(self) -> None:
        folder = RunFolder(self.trainer.default_root_dir)
        if not is_trial(self.trainer):
            best = self.config_init.fit.best
            path = quote(str(folder.path))
            log.info(
                "%s; all of it lies in %s; next: ltr test %s",
                summary_line(folder, best),
                folder.path,
                path,
            )
            if worse := worse_than_start_warning(folder, best):
                log.warning("%s", worse)

    def after_validate(self) -> None:
        self._tell_ceiling("validate")

    def after_test(self) -> None:
        self._tell_ceiling("test")
        log.info(
            "test.run, per_query.tsv and metrics.json lie in %s", self.trainer.default_root_dir
        )

    def _tell_ceiling(self, command: str) -> None:
        if not sum(
            self.trainer.num_test_batches if command == "test" else self.trainer.num_val_batches
        ):
            text = (
                f"ltr {command} must read batches to measure anything, and has read none; raise it"
            )
            raise InputError(text, option=f"trainer.limit_{command.removesuffix('idate')}_batches")
        if is_trial(self.trainer) or not self.trainer.is_global_zero:  # which writes the results
            return
        report = read_metrics(RunFolder(self.trainer.default_root_dir).results)[command]
        if told := ceiling_line(report):
            log.info("%s", told)

    def after_predict(self) -> None:
        log.info("predict.run lies in %s", self.trainer.default_root_dir)

    def _parse_ckpt_path(self) -> None:
        """Nothing: the configuration at hand says the model; a checkpoint that does not fit it is
        an error, not a wish.
        """


class _Parsed(RankerCLI):
    """A command that is parsed and checked, and not run."""

    def _set_seed(self) -> None:
        """Not that of the one that only asks."""

    def before_instantiate_classes(self) -> None:
        check_options(self.config[self.subcommand].trainer)

    def instantiate_classes(self) -> None:
        """Nothing."""

    after_instantiate_classes = instantiate_classes

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


def metrics_of(args: list[str]) -> list[str]:
    """The metrics of a command, which is parsed alone: its parser and its checks of plain options
    have nothing against it.
    """
    cli = _Parsed(ExitStack(), lambda _: None, expanded(args))
    return list(cli.config[cli.subcommand].model.metrics or METRICS)


def _parts(config: jsonargparse.Namespace) -> list[str]:
    """The classes of ranker, loss, margin, in-batch policy and data, but for those that change
    nothing.
    """
    found = (
        config.model.ranker,
        config.model.loss,
        config.model.margin,
        config.model.in_batch,
        config.data,
    )
    return [type(one).__name__ for one in found if not isinstance(one, OwnLists | None)]


def _run_folder(config: jsonargparse.Namespace, plain: dict[str, Any]) -> Path:
    """The folder of the last --config where that is a run's own; else
    ``runs/<experiment>/seed=<n>``, named by its path.

    In a sweep of Weights & Biases each combination of options is an experiment,
    ``runs/<experiment>/sweep-<digest>/seed=<n>``.
    """
    parts: tuple[str, ...] = ("unnamed",)
    if config.config:
        file = Path(os.path.relpath(str(config.config[-1])))
        run = RunFolder(file.parent)
        if file.name == run.config.name and run.checkpoints.is_dir():
            return run.path
        parts = file.with_suffix("").parts
        parts = parts[parts.index("experiments") + 1 :] if "experiments" in parts else parts[-1:]
    if "WANDB_SWEEP_ID" in os.environ:
        options = json.dumps([plain[name] for name in ("model", "data", "trainer")])
        parts += (f"sweep-{hashlib.sha256(options.encode()).hexdigest()[:8]}",)
    return Path("runs", *parts, f"seed={config.seed_everything}")


def _is_rank_0() -> bool:
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]  # Lightning sets it without declaring it
