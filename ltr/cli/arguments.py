"""A command is a function: its positional parameters are words, its keyword-only ones options."""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

import docstring_parser
import jsonargparse

from ltr.cli.addresses import refuse_addresses
from ltr.cli.near_names import near_option, no_option
from ltr.cli.parser_texts import parser_reason, unknown_words
from ltr.errors import InputError

# The type of one word of a parameter that is a list, by the parameter's annotation.
WORD_TYPES: dict[Any, type] = {
    list[str]: str,
    list[str] | None: str,
    list[int] | None: int,
}


def call_with(function: Callable[..., Any], words: list[str], prog: str, **given: Any) -> None:
    """Call a function with the words of a command line. The parser reads its signature, and the
    help its docstring.

    A positional parameter of the default None is a word that may be left out. A parameter that is a
    list takes one word or more (``--metric AP RR``); a ``bool`` is a switch (``--table``). One whose
    name is a word of Python has an underscore behind it, which the option has not: ``with_`` is
    ``--with``.

    Args:
        function: of the command.
        words: behind the command.
        prog: what is called, such as ``ltr rank``.
        **given: arguments of the function that are not on the command line.

    Raises:
        InputError: for arguments that do not fit.
    """
    parser = _parser(function, prog, skipped=given)
    values = _parse(parser, words)
    refuse_addresses(values)
    parameters = inspect.signature(function).parameters
    arguments = {
        option if option in parameters else f"{option}_": value for option, value in values.items()
    }
    function(**arguments, **given)


def _parser(
    function: Callable[..., Any], prog: str, skipped: Collection[str]
) -> jsonargparse.ArgumentParser:
    """The parser of a command, without the parameters that are skipped."""
    docstring = docstring_parser.parse(function.__doc__ or "")
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description=docstring.description,
        exit_on_error=False,
        allow_abbrev=False,
    )
    help_of = {parameter.arg_name: parameter.description for parameter in docstring.params}
    by_hand = set[str]()  # what add_function_arguments would not make as call_with promises
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name in skipped:
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
        by_hand.add(parameter.name)
    # Keyword-only parameters stay options, even where they are required.
    parser.add_function_arguments(
        function, as_group=False, as_positional=True, skip={*skipped, *by_hand}
    )
    return parser


def _parse(parser: jsonargparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    """The values of the options and words of a command; an InputError for what does not fit."""
    try:
        return vars(parser.parse_args(words))
    except jsonargparse.ArgumentError as error:
        text = " ".join(str(error).split())
        reason = parser_reason(text)
        known = [action.dest for action in parser._actions if action.option_strings]
        unknown = unknown_words(text)
        # The parser takes --data.path for a part of --data, and complains of --data. No option of
        # these commands has a dot, so it is said of --data.path.
        if not unknown:
            unknown = [word for word in words if re.match(r"--\w+\.", word)]
        if unknown:
            reason = "; ".join(_no_option(word, known) for word in unknown)
            raise InputError(f"{reason} (all options: {parser.prog} --help)") from error
        raise InputError(f"{reason}; see {parser.prog} --help") from error


def _no_option(word: str, known: Collection[str]) -> str:
    """What is said of an option that a command without a configuration does not have."""
    name = word.lstrip("-").partition("=")[0]
    # --data.path is --data here.
    near = near_option(name, known) or near_option(name.partition(".")[0], known)
    return no_option(word.partition("=")[0], [f"--{option}" for option in near])
