"""Commands with a configuration, parsed: their options are checked, and nothing is made or run yet."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import jsonargparse
import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from ltr.cli.addresses import refuse_addresses
from ltr.cli.commands import BY_NAME
from ltr.cli.configuration import full_command_line, refuse_unknown_empty_keys
from ltr.cli.messages import add_restarts, errors_with_paths, input_error_behind
from ltr.cli.mine import MiningTrainer
from ltr.cli.option_help import CommandHelp, arrange_help
from ltr.cli.part_help import ModelHelp, TrainerHelp
from ltr.cli.refused import refusal
from ltr.cli.strict_parser import StrictParser
from ltr.cli.write_config import WriteConfig
from ltr.datamodules import FeatureDataModule, RankingDataModule
from ltr.errors import InputError
from ltr.models import FeatureRanker
from ltr.module import RankerModule
from ltr.run.checkpoint_options import BestOptions, LastOptions
from ltr.run.precision import ChosenPrecision, chosen_precision
from ltr.run.run_folder import RunFolder
from ltr.run.trainer_checks import check_trainer_options
from ltr.run.wandb_place import entity_and_project

STRICT = {"exit_on_error": False, "allow_abbrev": False, "formatter_class": CommandHelp}


class ParsedCommand(LightningCLI):
    """A command of a configuration. LightningCLI does all that is to do in its constructor; this one
    only parses and checks, and whoever wants more calls :meth:`seed`, :meth:`make` and
    :meth:`run_subcommand`.

    Args:
        command_line: the command with its words; a run folder may stand for some of them.

    Raises:
        InputError: for what the parser or the checks of plain options have against the words.
    """

    def __init__(self, command_line: list[str]) -> None:
        self._command = command_line[0]
        self._command_line = full_command_line(command_line)
        try:
            super().__init__(
                RankerModule,
                RankingDataModule,
                parser_class=StrictParser,
                trainer_class=MiningTrainer,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=0,
                trainer_defaults={
                    "max_epochs": 1,
                    "log_every_n_steps": 10,
                    "num_sanity_val_steps": -1,
                    "enable_model_summary": False,  # ltr.run.progress_lines says a line
                },
                save_config_callback=WriteConfig,
                save_config_kwargs={"save_to_log_dir": False},
                parser_kwargs=STRICT | dict.fromkeys(self.subcommands(), STRICT),
                args=self._command_line,
            )
        except Exception as error:
            add_restarts(error)
            raise

    @property
    def options(self) -> jsonargparse.Namespace:
        """The options of the command, as they are configured."""
        return self.config[self._command]

    @property
    def made(self) -> jsonargparse.Namespace:
        """The same with the objects that :meth:`make` has made of them."""
        return self.config_init[self._command]

    @property
    def has_our_loggers(self) -> bool:
        """Whether no others are named, which would take the place of the CSV files and of --wandb."""
        return self.options.trainer.logger in (None, True)

    def plain_options(self) -> dict[str, Any]:
        """The options of the command as plain dicts, lists and values."""
        text = self._parser(self._command).dump(self.options, skip_unset=False)
        options: dict[str, Any] = yaml.safe_load(text)
        return options

    def settle_precision(self, folder: RunFolder | None = None) -> ChosenPrecision:
        """Let ``trainer.precision`` be what the trainer computes in, also where it is ``auto``.

        Args:
            folder: that ``best`` and ``last`` are looked for in; None for none.

        Raises:
            InputError: see :func:`ltr.run.precision.chosen_precision`.
        """
        named = self.options.ckpt_path
        checkpoint = None if named is None else Path(named)
        if folder is not None and named in ("best", "last"):
            checkpoint = folder.best if folder.best.is_file() else folder.last
        data = resolve_name(self.options.data.class_path)
        ranker = resolve_name(self.options.model.ranker.class_path)
        reads_features = issubclass(data, FeatureDataModule) or issubclass(ranker, FeatureRanker)
        trains = self._command == "fit"
        chosen = chosen_precision(self.options.trainer, reads_features, checkpoint, trains)
        self.options.trainer.precision = chosen.name
        return chosen

    def given(self, name: str) -> Any:
        """What the words and their configurations say of an option; None where they say nothing, and
        :attr:`options` has its default.
        """
        return self.parser.parse_args(self._command_line, defaults=False)[self._command].get(name)

    def callbacks(self) -> list[Callback]:
        """The callbacks that the configuration names, made."""
        callbacks = self.made.trainer.callbacks or []
        return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]

    # What the parser reads

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        left_out = LightningCLI.subcommands() | {"mine": {"model", "datamodule"}}
        for command in ("validate", "test"):
            left_out[command] = left_out[command] | {"verbose"}
        return left_out

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--model.help", action=ModelHelp)
        parser.add_argument("--help.trainer", action=TrainerHelp)
        parser.add_class_arguments(BestOptions, "best")
        parser.add_class_arguments(LastOptions, "last")
        parser.add_argument(
            "--init_from",
            type=str | None,
            default=None,
            help="Start a new run from the ranker's weights of another one: a run folder (its best weights) or a checkpoint.",
        )
        parser.add_argument(
            "--wandb",
            type=str | None,
            default=None,
            help="Weights & Biases project to log to, PROJECT or ENTITY/PROJECT; offline where there is no key or WANDB_MODE says so.",
        )
        parser.add_argument(
            "--wandb_model",
            type=bool,
            default=False,
            help="Whether fit also logs the best weights to that project, as an artifact.",
        )

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        if subcommand != self._command:  # its options take their time, and nobody asks for them
            return self.init_parser(**kwargs)
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "test":
            parser.add_argument(
                "--split",
                type=str,
                default="test",
                help="The split that is measured: any NAME with a file qrels/NAME.tsv; several names one after the other.",
            )
        parser.usage = (
            f"ltr {subcommand} --config FILE [options]\n       ltr {subcommand} RUN [options]"
        )
        parser.description = BY_NAME[subcommand].description
        arrange_help(parser, subcommand)
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            self.config = parser.parse_args(args)
        except jsonargparse.ArgumentError as error:
            if input_error_behind(error) is not None:
                raise
            raise InputError(refusal(error, args, self._parser(self._command))) from error
        refuse_addresses(self.options)
        refuse_unknown_empty_keys(args, self._parser(self._command))
        with errors_with_paths(self.options):
            self._take_n_features_of_data()

    def _take_n_features_of_data(self) -> None:
        """Give a feature ranker that has ``n_features: null`` as many as the data has. It is done
        before anything looks at the options: the run has the number in its configuration.
        """
        ranker = self.options.model.ranker
        data = self.options.data
        is_of_features = issubclass(resolve_name(ranker.class_path), FeatureRanker)
        if not is_of_features:
            return
        own = ranker.get("init_args") or {}  # a user's class may not have the option
        if "n_features" not in own or own["n_features"] is not None:
            return
        if not issubclass(resolve_name(data.class_path), FeatureDataModule):
            return  # refused later, as the data has no features
        options = data.get("init_args") or {}
        if "path" not in options:
            return
        module = FeatureDataModule(
            options["path"],
            options.get("fold"),
            first_feature=options.get("first_feature", 1),
        )
        splits = [module.split(name) for name in ("train", "dev", "test")]
        ranker.init_args.n_features = max(split.n_features for split in splits if split is not None)

    def _parse_ckpt_path(self) -> None:
        """Nothing. Lightning would take the model's options from the checkpoint; here those of the
        configuration hold, and a checkpoint that does not fit is an error.
        """

    # The steps of LightningCLI's constructor

    def _set_seed(self) -> None:
        """Not yet: see :meth:`seed`."""

    def _dump_config(self) -> None:
        """Nothing: :meth:`make` has done so."""

    def before_instantiate_classes(self) -> None:
        check_trainer_options(self.options.trainer)
        project = self.options.wandb
        if project is not None:
            entity_and_project(project)
        if self._command != "fit" or not self.options.wandb_model:
            return
        if project is None or not self.has_our_loggers:
            why = "trainer.logger takes its place"
            if project is None:
                why = "none is named (--wandb PROJECT)"
            raise InputError(
                f"wandb_model logs the best weights to the project of --wandb, and {why}; mend that, or leave it out",
                option="wandb_model",
            )

    def instantiate_classes(self) -> None:
        """Not yet: see :meth:`make`."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Not yet: see :meth:`run_subcommand`."""

    def seed(self) -> None:
        """Seed this process as the configuration says."""
        super()._set_seed()

    def make(self, plain: dict[str, Any] | None = None) -> None:
        """Make the data, the model, and what the trainer is given.

        Args:
            plain: :meth:`plain_options`, where they are known; Lightning hands them to the module and
                the data.
        """
        self.config_dump = self.plain_options() if plain is None else plain
        self.config_init = self.parser.instantiate(self.config)
        self.datamodule = self.made.data
        self.model = self.made.model

    def trainer_without_outputs(
        self, folder: str, callbacks: list[Callback], **options: Any
    ) -> Trainer:
        """A trainer of one process that writes and prints nothing.

        Args:
            folder: a temporary one; the caller removes it.
            callbacks: all that it has.
            options: others of the trainer that differ from those of the configuration.
        """
        return self.instantiate_trainer(
            callbacks=callbacks,
            default_root_dir=folder,
            devices=1,
            num_nodes=1,
            strategy="auto",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )

    def run_subcommand(self) -> None:
        """Call the method of the trainer that the command is named after."""
        super()._run_subcommand(self._command)


@contextmanager
def made_training(words: Sequence[str]) -> Iterator[ParsedCommand]:
    """A training that is parsed and made, and not run: for commands that look at one. Inside the block
    errors name options as the configuration has them.

    Args:
        words: the options of ``ltr fit``.
    """
    command = ParsedCommand(["fit", *words])
    command.seed()
    with errors_with_paths(command.options):
        command.settle_precision()
        command.make()
        command.datamodule.reads = command.model.reads
        yield command
