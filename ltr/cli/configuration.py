"""What stands among the words of a command for a configuration: a run folder, and files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonargparse

from ltr.cli.option_paths import beginnings
from ltr.cli.run_paths import data_path_option, refuse_paths_from_elsewhere
from ltr.cli.words import option_names, values_of_option
from ltr.errors import InputError, local_path
from ltr.run.run_folder import RunFolder
from ltr.run.shipped_recipes import RECIPE, configuration_file
from ltr.run.yaml_files import read_yaml

CONFIG = ("--config", "-c")


def full_command_line(command_line: list[str]) -> list[str]:
    """The command line, with a run folder after the command spelt out: ``ltr test RUN`` takes its
    configuration and best weights. A recipe is named by its file, and configuration files that hold
    nothing are left out.

    Raises:
        InputError: for a folder that holds no run, a recipe that there is not, or a configuration file
            that can't be read.
    """
    command, *words = command_line
    if words and not words[0].startswith("-"):
        words = _options_of_run(words[0], command, words[1:]) + words[1:]
    return [command, *_with_files_that_hold_options(words)]


def _options_of_run(word: str, command: str, words: list[str]) -> list[str]:
    """The options that a run folder stands for, beside words that are given."""
    folder = RunFolder(word)
    if word.startswith(RECIPE) or folder.path.is_file():
        raise InputError(
            f"ltr {command} takes a run folder as its first word, got a file; name a configuration by --config {word}"
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
    if "--ckpt_path" not in option_names(words):
        if command == "fit":
            # A run without a checkpoint begins under "last". Without --ckpt_path its folder would be
            # refused, since it is there already.
            checkpoint = folder.file_to_resume() or "last"
        else:
            checkpoint = folder.file_named("best")
        options += ["--ckpt_path", str(checkpoint)]
    refuse_paths_from_elsewhere(folder, command, words)
    return options + data_path_option(folder)


def configuration_files(words: Sequence[str]) -> Iterator[str]:
    """The files that the words name by ``--config``, as far as they are there: the parser says what
    is wrong with the others.
    """
    for file in values_of_option(words, CONFIG):
        if Path(file).is_file():
            yield file


def _with_files_that_hold_options(words: Iterable[str]) -> Iterator[str]:
    """The words, in which a recipe is named by its file. Configuration files that hold nothing, which
    the parser would refuse, are left out. An InputError for an address, an unknown recipe, and where
    no file is named.
    """
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name not in CONFIG:
            yield word
            continue
        file = value if equals else next(remaining, "")
        local_path(name, file)  # raises for an address
        if file == "":
            raise InputError(f"{name} must be followed by a file, and nothing is there")
        file = configuration_file(file, name)
        is_empty = Path(file).is_file() and read_yaml(Path(file)) is None
        if not is_empty:
            yield name
            yield file


def refuse_unknown_empty_keys(words: Sequence[str], parser: jsonargparse.ArgumentParser) -> None:
    """Raise an InputError for an unknown key whose value is an empty mapping (``foo: {}``): the
    parser would ignore it without a word.
    """
    known = set[str]()
    for action in parser._actions:
        known.update(beginnings(action.dest))
    for file in configuration_files(words):
        for key in _empty_keys(read_yaml(Path(file)) or {}):
            is_of_a_class = "class_path" in key or "init_args" in key
            if key not in known and not is_of_a_class:
                raise InputError(f"{file}: {key!r} is no option, and holds nothing; remove it")


def _empty_keys(options: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in options.items():
        if value == {}:
            yield f"{path}{name}"
        elif isinstance(value, dict):
            yield from _empty_keys(value, f"{path}{name}.")
