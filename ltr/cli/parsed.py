"""Commands of a configuration that are parsed and checked, and not run: what they would measure."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import jsonargparse
import yaml

from ltr.cli.configuration import expanded
from ltr.cli.run_names import folder_by_name
from ltr.cli.training import RankerCLI
from ltr.data.splits import split_named
from ltr.datamodules import RankingDataModule
from ltr.module import METRICS
from ltr.run.identity import identity
from ltr.run.run_folder import RunFolder
from ltr.run.start import checkpoint_to_measure
from ltr.run.trainer_checks import check_options


class ParsedCommand(RankerCLI):
    """A command that is parsed and checked, and not run."""

    def _set_seed(self) -> None:
        """Nothing: the seeds of the process that only checks options stay as they are."""

    def before_instantiate_classes(self) -> None:
        check_options(self.config[self.subcommand].trainer)

    def instantiate_classes(self) -> None:
        """Nothing."""

    def after_instantiate_classes(self) -> None:
        """Nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


def checked_metrics(args: list[str]) -> list[str]:
    """Parse and check a command without running it, and return the metrics that it would measure.

    Raises:
        Exception: what the parser and the checks of plain options have against the arguments.
    """
    cli = ParsedCommand(ExitStack(), lambda _: None, expanded(args))
    return list(cli.config[cli.subcommand].model.metrics or METRICS)


class Measurement(NamedTuple):
    """What ``ltr test`` measures.

    Attributes:
        options: the whole configuration, as plain dicts, lists and values.
        folder: of the run; the results of other splits and data sets go below it.
        checkpoint: the weights; None for those that the model starts from.
    """

    options: dict[str, Any]
    folder: RunFolder
    checkpoint: str | None


def checked_test(args: list[str]) -> Measurement:
    """Parse and check ``ltr test`` without running it.

    Args:
        args: the command with its options.

    Raises:
        Exception: what the parser and the checks of plain options have against the arguments.
    """
    cli = ParsedCommand(ExitStack(), lambda _: None, expanded(args))
    config = cli.config.test
    config.split = split_named(config.split, "split")
    options = yaml.safe_load(cli._parser("test").dump(config, skip_unset=False))
    folder = RunFolder(config.trainer.default_root_dir or folder_by_name(config, options))
    checkpoint = checkpoint_to_measure(folder, config.ckpt_path, identity(options))
    return Measurement(options, folder, checkpoint)


def data_module(options: Mapping[str, Any], path: str | None = None) -> RankingDataModule:
    """The data module of a whole configuration.

    Args:
        options: the configuration, as :class:`Measurement` has it.
        path: of other data; None for that of the configuration.
    """
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(RankingDataModule, "data")
    init_args = dict(options["data"].get("init_args") or {})
    if path is not None:
        init_args["path"] = path
    config = parser.parse_object({"data": {**options["data"], "init_args": init_args}})
    data: RankingDataModule = parser.instantiate(config).data
    return data
