"""What the parser has against the arguments of a command that takes a configuration, with the name
that was probably meant.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import jsonargparse

import ltr.callbacks
import ltr.datamodules
import ltr.in_batch
import ltr.losses
import ltr.margins
import ltr.models
from ltr.cli.configuration import configuration_files
from ltr.cli.near_names import did_you_mean, near_class, near_option, no_option
from ltr.cli.option_paths import is_at_or_below, value_at
from ltr.cli.parser_texts import parser_reason, unknown_words
from ltr.cli.words import values_of_option
from ltr.run.yaml_files import read_yaml

# Where the classes of a part are, by its path. Those of a path below are looked for in the same
# package.
PACKAGE_OF_PART = {
    "model.ranker": ltr.models,
    "model.miner": ltr.models,
    "model.loss": ltr.losses,
    "model.margin": ltr.margins,
    "model.in_batch": ltr.in_batch,
    "data": ltr.datamodules,
    "trainer.callbacks": ltr.callbacks,
}
EXAMPLE = "recipe:cross_encoder"


def refusal(
    error: Exception, command_line: Sequence[str], parser: jsonargparse.ArgumentParser
) -> str:
    """One line on what the parser has refused.

    Args:
        error: of the parser.
        command_line: the command with its words.
        parser: of the command.
    """
    command = command_line[0]
    text = " ".join(str(error).split())
    reason = parser_reason(text)
    words = unknown_words(text)
    if words:
        known = list(_options(parser, command_line))
        reason = "; ".join(_no_option(word, known, "--") for word in words)
    elif match := re.search(r"does not accept option '([^']+)'", reason):
        reason = _no_option(match[1], list(_options(parser, command_line)), "")
    elif match := re.match(r"(\S+): (\S+): Option '([^']+)' is not accepted", reason):
        path, class_path, name = match.groups()
        known = [*_options_of_class(path, class_path), *_options(parser, command_line)]
        near = did_you_mean(near_option(f"{path}.{name}", known))
        reason = f"{class_path} has no option {path}.{name}{near}"
    elif match := re.match(r"(\S+): there is no (\w+)", reason):
        reason = _no_class(*match.groups())
    elif match := re.match(r"(\S+): Unable to load config '([^']*)'", reason):
        reason = f"{match[1]} is a group of options, such as {match[1]}.NAME, or a YAML file of them, got {match[2]!r}"
    elif re.match(r"data\.path: must be str .*, not list", reason):
        reason = "data.path: this data module takes one path, and not several sources; take TripletDataModule, ListDataModule or GroupDataModule"
    elif match := re.match(r"the following arguments are required: (.*)", reason):
        missing = match[1].replace(f"{command}.", "")
        return f"ltr {command} needs {missing}, and finds them in a configuration: ltr {command} --config {EXAMPLE} --data.path PATH (ltr recipes lists others), or in a run: ltr {command} RUN"
    return f"{reason} (all options: ltr {command} --help, and with --config FILE --print_config)"


def _no_option(word: str, known: Sequence[str], dashes: str) -> str:
    """The dashes stand before an option on the command line, and not before one in a file."""
    name = word.lstrip("-").partition("=")[0]
    return no_option(word, [f"{dashes}{option}" for option in near_option(name, known)])


def _no_class(path: str, name: str) -> str:
    package = _package_of(path)
    near: list[str] = []
    if package is not None:
        kinds = [kind for kind in package.__all__ if isinstance(vars(package)[kind], type)]
        near = near_class(name, kinds)
    if path == "data" and not near:
        return f"data: there is no data module {name}; the folder or file of the data is an option of its own, --data.path"
    return f"{path}: there is no {name}{did_you_mean(near)}"


def _package_of(path: str) -> ModuleType | None:
    for part, package in PACKAGE_OF_PART.items():
        if is_at_or_below(path, part):
            return package
    return None


def _options(parser: jsonargparse.ArgumentParser, command_line: Sequence[str]) -> Iterator[str]:
    """The options that there are: of the parser, and of the classes that the words name."""
    for action in parser._actions:
        if action.dest not in ("help", "print_config"):
            yield action.dest
    for path in PACKAGE_OF_PART:
        for class_path in _class_paths_named(command_line, path):
            yield from _options_of_class(path, class_path)


def _class_paths_named(words: Sequence[str], path: str) -> Iterator[str]:
    """The classes of a part, as configuration files and options name them."""
    for file in configuration_files(words):
        value = value_at(read_yaml(Path(file)), path)
        if isinstance(value, dict):
            value = value.get("class_path")
        if isinstance(value, str):
            yield value
    yield from values_of_option(words, (f"--{path}",))


def _options_of_class(path: str, class_path: str) -> list[str]:
    """The options of a part of this class; none where there is no such class."""
    module, _, name = class_path.rpartition(".")
    try:
        package = importlib.import_module(module) if module else _package_of(path)
    except (ImportError, TypeError):  # the latter of a relative path, .package.Name
        return []
    if package is None:
        return []
    found = vars(package).get(name)
    if not isinstance(found, type):
        return []
    parser = jsonargparse.ArgumentParser(add_help=False)
    parser.add_class_arguments(found, path)
    return [action.dest for action in parser._actions]
