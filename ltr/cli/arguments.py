"""A command is a function: its positional parameters are words, its keyword-only ones options."""

import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import docstring_parser
import jsonargparse

from ltr.cli.near_names import did_you_mean, near_option
from ltr.errors import InputError, local_path

# The type of one word of a parameter that is a list, by the parameter's annotation.
WORD_TYPES: dict[Any, type] = {
    list[str]: str,
    list[str] | None: str,
    list[int] | None: int,
}

# The options whose values may be an address: what is asked, and what names a service.
MAY_BE_ADDRESS = (
    "query",
    "trainer.logger",
    "trainer.plugins",
    "trainer.profiler",
    "trainer.strategy",
    "with",
)

# Below these stand options of classes, which may be the user's own: one that tells a service, say,
# gets a web address. Where a class of ours needs a path, it refuses such an address itself.
OF_CLASSES = ("model.", "data.", "trainer.callbacks.")

LONGEST = 400  # letters of what the parser says
# A pattern in what the parser says, and what is said instead; applied in this order.
REWORDED = [
    (r"Does not validate against any of the Union subtypes Subtypes: \[.*?\] Errors: - ", ""),
    (
        r" - Expected a <class 'NoneType'> Given value type: <class '\w+'> Given value: (.*)",
        r", got \1",
    ),
    (r" - Expected a <class .*| Given value type:.*| - Not a valid subclass of .*", ""),
    (r"\. Got value: (.*)", r", got \1"),
    (r", got NestedArg\(.*", ""),
    (r"- Expected a path but \S+ either not accessible or invalid - ", ""),
    (r", got \{'class_path': .*", ""),
    (r'^Parser key "([^"]+)": ', r"\1: "),
    (r'^Parser key "([^"]+)" element \d+: ', r"\1: "),
    (
        r"Import path (\S+) does not correspond to a subclass of (\w+)",
        r"\1 is no \2; name a class that derives from it",
    ),
    (r"Expected a dot import path string: (\w+)", r"there is no \1"),
    (r"Problem with given class_path '([^']+)': ", r"\1: "),
    (r'^(\S+): \S+: Parser key "([^"]+)": ', r"\1.\2: "),
    (r"Expected a typing\.Literal\[([^\]]*)\]", r"must be one of \1"),
    (r"(?:\w+\.)+(\w+): module '[^']*' has no attribute '\w+'", r"there is no \1"),
    (r"typing\.Literal\[([^\]]*)\]", r"\1"),
    (r"<class '([^']*)'>", r"\1"),
    (r"Expected a (int|float|bool|str)\b", r"must be \1"),
    (r"Expected a list, got ([\w@/]+)$", r"must be a list, got \1; write [\1]"),
]


def call_with(function: Callable[..., Any], args: list[str], name: str, **given: Any) -> None:
    """Call a function with the arguments of a command line. The parser reads its signature, and the
    help its docstring.

    A positional parameter of the default None is a word that may be left out. A parameter that is a
    list takes one word or more (``--metric AP RR``); a ``bool`` is a switch (``--table``). One whose
    name is a word of Python has an underscore behind it, which the option has not: ``with_`` is
    ``--with``.

    Args:
        function: of the command.
        args: after the name of the command.
        name: of the command, such as ``ltr rank``.
        **given: arguments of the function that are not on the command line.

    Raises:
        InputError: for arguments that do not fit.
    """
    parser = _parser(function, name, skipped=given)
    values = _parse(parser, args, name)
    refuse_addresses(values)
    parameters = inspect.signature(function).parameters
    arguments = {
        option if option in parameters else f"{option}_": value for option, value in values.items()
    }
    function(**arguments, **given)


def _parser(
    function: Callable[..., Any], name: str, skipped: Collection[str]
) -> jsonargparse.ArgumentParser:
    """The parser of a command, without the parameters that are skipped."""
    docstring = docstring_parser.parse(function.__doc__ or "")
    parser = jsonargparse.ArgumentParser(
        prog=name,
        description=docstring.description,
        exit_on_error=False,
        allow_abbrev=False,
    )
    help_of = {parameter.arg_name: parameter.description for parameter in docstring.params}
    done = {*skipped}  # what add_function_arguments skips
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name in done:
            continue
        is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        option_name = parameter.name.removesuffix("_")
        flag = f"--{option_name}" if is_option else parameter.name
        options: dict[str, Any] = {"help": help_of.get(parameter.name)}
        if is_option:
            options["default"] = parameter.default
        if parameter.annotation is bool:
            parser.add_argument(flag, action="store_true", **options)
        elif parameter.annotation in WORD_TYPES:
            word_type = WORD_TYPES[parameter.annotation]
            parser.add_argument(flag, nargs="+", type=word_type, **options)
        elif not is_option and parameter.default is None:  # a word that may be left out
            parser.add_argument(flag, nargs="?", type=str, **options)
        elif option_name != parameter.name:
            parser.add_argument(flag, type=parameter.annotation, **options)
        else:
            continue
        done.add(parameter.name)
    # Keyword-only parameters stay options, even where they are required.
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip=done)
    return parser


def _parse(parser: jsonargparse.ArgumentParser, args: list[str], name: str) -> dict[str, Any]:
    """The values of the options and words of a command; an InputError for what does not fit."""
    try:
        return vars(parser.parse_args(args))
    except jsonargparse.ArgumentError as error:
        text = " ".join(str(error).split())
        reason = parser_reason(text)
        known = [action.dest for action in parser._actions if action.option_strings]
        unknown = unknown_words(text)
        # The parser takes --data.path for a part of --data.
        if not unknown:
            unknown = [word for word in args if re.match(r"--\w+\.", word)]
        if unknown:
            reason = "; ".join(_no_option(word, known) for word in unknown)
            raise InputError(f"{reason} (all options: {name} --help)") from error
        raise InputError(f"{reason}; see {name} --help") from error


def refuse_addresses(value: Any, option: str = "") -> None:
    """Raise an InputError for an address where a local path must be, see
    :func:`ltr.errors.local_path`.

    Args:
        value: of an option: a text, a list, or the options that it holds, by their names.
        option: its path in the configuration; empty for all options of a command.
    """
    if option in MAY_BE_ADDRESS:
        return
    if isinstance(value, str | Path):
        is_of_web = str(value).startswith(("http:", "https:"))
        if not (is_of_web and option.startswith(OF_CLASSES)):
            local_path(option, value)
    elif isinstance(value, list | tuple):
        for part in value:
            refuse_addresses(part, option)
    elif isinstance(value, dict | jsonargparse.Namespace):
        parts = value if isinstance(value, dict) else vars(value)
        for name, part in parts.items():
            local_path(option, name)  # negatives, with how many of each: the folders are the names
            is_level = name == "init_args"  # which the command line leaves out
            refuse_addresses(part, option if is_level else f"{option}.{name}".removeprefix("."))


def _no_option(word: str, known: Collection[str]) -> str:
    """What is said of an option that a command without a configuration does not have."""
    name = word.lstrip("-").partition("=")[0]
    # --data.path is --data here.
    near = near_option(name, known) or near_option(name.partition(".")[0], known)
    return f"there is no option {word.partition('=')[0]}{did_you_mean(f'--{option}' for option in near)}"


def unknown_words(text: str) -> list[str]:
    """The options, without their values, that the parser did not know; else the first word that it
    did not. None for another complaint.
    """
    match = re.search(r"unrecognized arguments: (.*)", text, re.IGNORECASE)
    if match is None:
        return []
    words = match[1].split()
    options = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
    return options or words[:1]


def parser_reason(text: str) -> str:
    """What the parser has against a value, without the other types that it has tried, and without
    the value again.
    """
    for pattern, better in REWORDED:
        text = re.sub(pattern, better, text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
