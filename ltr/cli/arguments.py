"""The arguments of a command, and its configuration files, before the parser sees them."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonargparse

import ltr.models
from ltr.errors import InputError
from ltr.module import RankerModule
from ltr.run.folder import RunFolder
from ltr.run.results import read_metrics
from ltr.run.yaml_files import read_yaml

CONFIG = ("--config", "-c")
COMMANDS = ("fit", "validate", "test", "predict", "mine")


def expanded(args: list[str]) -> list[str]:
    """The arguments, with a run folder after the command spelt out: ``ltr test RUN`` takes its
    configuration and best weights.

    Raises:
        InputError: for an unknown command, a folder that holds no run, or a configuration file that
            can't be read.
    """
    command, *rest = args
    if command not in COMMANDS:
        raise InputError(
            f"the first argument must be one of {', '.join(COMMANDS)}, negatives, got {command!r}; see ltr --help"
        )
    if rest and not rest[0].startswith("-"):
        folder = RunFolder(rest[0])
        if not folder.config.is_file():
            raise InputError(
                f"{folder.path} must be a run folder, but there is no {folder.config}; or name a file by --config"
            )
        own = ["--config", str(folder.config), "--trainer.default_root_dir", str(folder.path)]
        if not any(option.partition("=")[0] == "--ckpt_path" for option in rest):
            found = (
                (folder.checkpoint_to_resume() or "last")
                if command == "fit"
                else folder.checkpoint_to_measure("best")
            )
            own += ["--ckpt_path", str(found)]
        rest = own + data_elsewhere(folder) + rest[1:]
    checked = list(_checked(rest))
    check_names(checked)
    return [command, *checked]


def data_elsewhere(folder: RunFolder) -> list[str]:
    """The option of the data, where its path counts from the working directory that the run was
    started in.
    """
    path = ((read_yaml(folder.config) or {}).get("data", {}).get("init_args") or {}).get("path")
    before = read_metrics(folder.results).get("directory")
    if (
        path is None
        or before is None
        or Path(before) == Path.cwd()
        or not Path(before, path).exists()
    ):
        return []
    return ["--data.path", str(Path(before, path))]


def _checked(args: Iterable[str]) -> Iterator[str]:
    """The arguments without configuration files that hold nothing, which the parser would refuse."""
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in CONFIG:
            yield word
            continue
        file = value if equals else next(words, "")
        if (
            not Path(file).is_file() or read_yaml(Path(file)) is not None
        ):  # the parser says what is wrong with a name
            yield from (name, file)


# Options of the data that have moved into a part.
MOVED = {
    "candidates": "evaluation.candidates",
    "depth": "evaluation.depth",
    "index": "evaluation.index",
    "num_workers": "loading.num_workers",
    "persistent_workers": "loading.persistent_workers",
    "bucket_window": "loading.bucket_window",
    "seed": "loading.seed",
    "unscored": "labels.unscored",
    "label_deviation": "labels.deviation",
}


def check_names(args: Iterable[str]) -> None:
    """Raise an InputError for an option of the data by a name that it had before.

    Args:
        args: of a command, with its configuration files.
    """
    words = list(args)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name in CONFIG:
            file = value or following
            if not Path(file).is_file():  # the parser says what is wrong with a name
                continue
            data = (read_yaml(Path(file)) or {}).get("data")
            if isinstance(data, dict):
                given = data.get("init_args") or {}
                _refuse_old_names(given, f"{file}: ", data.get("class_path", ""))
        elif name.startswith("--data."):
            option = name.removeprefix("--data.").removeprefix("init_args.")
            _refuse_old_names({option: value or following}, "--", "")


def _refuse_old_names(given: dict[str, Any], where: str, kind: str) -> None:
    moved = dict(MOVED)
    if kind and not kind.endswith("FeatureDataModule"):
        moved["eval_batch_size"] = "evaluation.batch_size"
    for name, value in given.items():
        if name == "labels" and isinstance(value, str) and value.startswith("scores:"):
            folder = value.removeprefix("scores:")
            raise InputError(
                f"{where}data.labels is now data.labels.scores; write {folder!r} there"
            )
        if name in moved:
            raise InputError(f"{where}data.{name} is now data.{moved[name]}; rename it")


def check_keys(args: Iterable[str], parser: jsonargparse.ArgumentParser) -> None:
    """Raise an InputError for a key with nothing below it that is no option: the parser drops such
    keys unseen.
    """
    known = {
        ".".join(parts[:end])
        for action in parser._actions
        for parts in [action.dest.split(".")]
        for end in range(9)
    }
    words = list(args)
    for name, file in zip(words, words[1:], strict=False):
        for key in _empty(read_yaml(Path(file)) or {}) if name in CONFIG else ():
            if key not in known and "class_path" not in key and "init_args" not in key:
                raise InputError(f"{file}: {key!r} is no option, and holds nothing; remove it")


def _empty(options: dict, path: str = "") -> Iterator[str]:
    """The paths of mappings that hold nothing."""
    for name, value in options.items():
        if value == {}:
            yield f"{path}{name}"
        elif isinstance(value, dict):
            yield from _empty(value, f"{path}{name}.")


class ModelHelp(argparse.Action):
    """``--model.help [RANKER]``: the options of the model alone, with those of a ranker such as
    ``DualEncoder``.
    """

    def __init__(self, option_strings: list[str], dest: str, **_: Any) -> None:
        help = "Show the options of the model, and of a ranker if one is named, and exit."
        super().__init__(
            option_strings, dest, nargs="?", metavar="RANKER", default=argparse.SUPPRESS, help=help
        )

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, value: Any, option: str | None = None
    ) -> None:
        shown = jsonargparse.ArgumentParser(
            add_help=False, usage="ltr COMMAND --config FILE [--model.OPTION VALUE …]"
        )
        name = (value or "").rpartition(".")[2]
        if value is not None and name not in ltr.models.__all__:
            raise InputError(
                f"--model.help takes one of {', '.join(ltr.models.__all__)}, got {value!r}"
            )
        shown.add_class_arguments(
            RankerModule, "model", skip=set() if value is None else {"ranker"}
        )
        if value is not None:
            shown.add_class_arguments(vars(ltr.models)[name], "model.ranker")
        shown.print_help()
        parser.exit()
