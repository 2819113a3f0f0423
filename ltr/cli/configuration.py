"""The arguments of the commands that take a configuration, before the parser sees them."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import jsonargparse

import ltr.models
from ltr.cli.words import option_names, values_of_option
from ltr.errors import InputError, local_path
from ltr.module import RankerModule
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder
from ltr.run.yaml_files import read_yaml

CONFIG = ("--config", "-c")
SOURCES = ("candidates", "bm25", "random", "mined")  # of negatives, which are no folders


def expanded(args: list[str]) -> list[str]:
    """The arguments, with a run folder after the command spelt out: ``ltr test RUN`` takes its
    configuration and best weights.

    Raises:
        InputError: for a folder that holds no run, or a configuration file that can't be read.
    """
    command, *words = args
    if words and not words[0].startswith("-"):
        words = _options_of_run(RunFolder(words[0]), command, words[1:]) + words[1:]
    return [command, *_without_empty_files(words)]


def _options_of_run(folder: RunFolder, command: str, others: list[str]) -> list[str]:
    """The options that a run folder stands for, beside others that are given."""
    if folder.path.is_file():
        raise InputError(
            f"ltr {command} takes a run folder as its first word, got a file; name a configuration by --config {folder.path}"
        )
    if not folder.config.is_file():
        raise InputError(
            f"{folder.path} must be a run folder, but there is no {folder.config}; or name a file by --config"
        )
    if not read_yaml(folder.config):
        raise InputError(
            f"{folder.config}: the file must hold the configuration of a run, and holds nothing; restore it"
        )
    options = ["--config", str(folder.config), "--trainer.default_root_dir", str(folder.path)]
    if "--ckpt_path" not in option_names(others):
        if command == "fit":
            # A run without a checkpoint begins under "last". Without --ckpt_path its folder would be
            # refused, since it is there already.
            checkpoint = folder.file_to_resume() or "last"
        else:
            checkpoint = folder.file_to_measure("best")
        options += ["--ckpt_path", str(checkpoint)]
    refuse_paths_from_elsewhere(folder, command, others)
    return options + data_path_option(folder)


def data_path_option(folder: RunFolder) -> list[str]:
    """``--data.path`` with the data's path as seen from here, where the run was started in another
    working directory; else nothing.
    """
    path = init_args_of_data(folder.config).get("path")
    started_in = _started_elsewhere(folder)
    if started_in is None:
        return []
    if isinstance(path, list):
        return ["--data.path", json.dumps([_source_then(source, started_in) for source in path])]
    if not isinstance(path, str):  # the parser says what is wrong with any other
        return []
    path_then = started_in / path
    return ["--data.path", str(path_then)] if path_then.exists() else []


def _source_then(source: Any, started_in: Path) -> Any:
    """One of several sources with its path as seen from here, where it is there."""
    if isinstance(source, dict):
        return source | {"path": _source_then(source.get("path"), started_in)}
    is_there = isinstance(source, str) and (started_in / source).exists()
    return str(started_in / source) if is_there else source


def data_of_run(folder: RunFolder) -> Any:
    """Where the data of a run lies, seen from here: as its configuration names it, or None."""
    option = data_path_option(folder)  # where the run was started elsewhere
    return option[1] if option else init_args_of_data(folder.config).get("path")


def refuse_paths_from_elsewhere(folder: RunFolder, command: str, words: Sequence[str]) -> None:
    """Refuse a configuration whose run was started in another working directory, where the command
    would read a path of it that counts from there. (``data.path`` is found from there.)

    Args:
        folder: of the run.
        command: what is done.
        words: the options that are given beside the configuration.
    """
    started_in = _started_elsewhere(folder)
    if started_in is None:
        return
    given = [name.replace("init_args.", "") for name in option_names(words)]
    for option, value in _paths_read(folder, command):
        is_given = any(f"--{option}.".startswith(f"{name}.") for name in given)
        path_then = started_in / value
        is_same = path_then.exists() and Path(value).exists() and path_then.samefile(value)
        if path_then.exists() and not is_given and not is_same:
            raise InputError(
                f"{folder.path}: {option} is {value!r}, a path from where the run was started; run the command there: cd {quote(str(started_in))}"
            )


def _started_elsewhere(folder: RunFolder) -> Path | None:
    """The working directory in which a run was started, if it is another one than this."""
    started_in = read_metrics(folder.results).get("directory")
    if started_in is None or Path(started_in) == Path.cwd():
        return None
    return Path(started_in)


def _paths_read(folder: RunFolder, command: str) -> Iterator[tuple[str, str]]:
    """The options beside ``data.path`` that name a file or a folder in the configuration of a run,
    with their values, as far as the command reads them. Other texts may be among them, such as the
    name of a model or of a source of negatives.
    """
    names = ["model.ranker.backbone", "model.ranker.doc_backbone"]
    if command == "fit":
        names += ["data.negatives", "data.labels.scores"]
        if folder.file_to_resume() is None:
            names.append("init_from")
    config = read_yaml(folder.config)
    for name in names:
        value = _entry(config, name)
        for text in value if isinstance(value, dict) else [value]:
            if isinstance(text, str) and text and text not in SOURCES:
                yield name, text


def _entry(config: Any, path: str) -> Any:
    """The value of an option by its path; None where there is none."""
    for name in path.split("."):
        if isinstance(config, dict) and name not in config:
            config = config.get("init_args")
        config = config.get(name) if isinstance(config, dict) else None
    return config


def init_args_of_data(file: Path) -> dict[str, Any]:
    """The options of the data module in a configuration; none where they have another form, which
    the parser refuses.
    """
    data = (read_yaml(file) or {}).get("data")
    init_args = data.get("init_args") if isinstance(data, dict) else None
    return init_args if isinstance(init_args, dict) else {}


def configuration_files(words: Sequence[str]) -> Iterator[str]:
    """The files that the words name by ``--config``, as far as they are there: the parser says what
    is wrong with the others.
    """
    for file in values_of_option(words, CONFIG):
        if Path(file).is_file():
            yield file


def _without_empty_files(args: Iterable[str]) -> Iterator[str]:
    """The arguments without configuration files that hold nothing, which the parser would refuse."""
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in CONFIG:
            yield word
            continue
        file = value if equals else next(words, "")
        local_path(name, file)
        if file == "":
            raise InputError(f"{name} must be followed by a file, and nothing is there")
        is_empty = Path(file).is_file() and read_yaml(Path(file)) is None
        if not is_empty:
            yield name
            yield file


def refuse_unknown_empty_keys(words: Sequence[str], parser: jsonargparse.ArgumentParser) -> None:
    """Raise an InputError for an unknown key whose value is an empty mapping (``foo: {}``): the
    parser would ignore it without a word.
    """
    known = set()
    for action in parser._actions:
        parts = action.dest.split(".")
        known |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    for file in configuration_files(words):
        for key in _empty_keys(read_yaml(Path(file)) or {}):
            is_of_a_class = "class_path" in key or "init_args" in key
            if key not in known and not is_of_a_class:
                raise InputError(f"{file}: {key!r} is no option, and holds nothing; remove it")


def _empty_keys(options: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of mappings that hold nothing."""
    for name, value in options.items():
        if value == {}:
            yield f"{path}{name}"
        elif isinstance(value, dict):
            yield from _empty_keys(value, f"{path}{name}.")


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
        help_parser = jsonargparse.ArgumentParser(
            add_help=False, usage="ltr COMMAND --config FILE [--model.OPTION VALUE …]"
        )
        if value is None:
            help_parser.add_class_arguments(RankerModule, "model")
        else:
            name = value.rpartition(".")[2]
            if name not in ltr.models.__all__:
                raise InputError(
                    f"--model.help takes one of {', '.join(ltr.models.__all__)}, got {value!r}"
                )
            help_parser.add_class_arguments(RankerModule, "model", skip={"ranker"})
            help_parser.add_class_arguments(vars(ltr.models)[name], "model.ranker")
        help_parser.print_help()
        parser.exit()
