"""A command is a function: its positional parameters are words, its keyword-only ones options."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import docstring_parser
import jsonargparse

from ltr.errors import InputError

# The type of one word of a parameter that is a list, by the parameter's annotation.
WORD_TYPES: dict[Any, type] = {
    list[str]: str,
    list[str] | None: str,
    list[int] | None: int,
}

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
    (r'^Parser key "([^"]+)": ', r"\1: "),
    (r'^Parser key "([^"]+)" element \d+: ', r"\1: "),
    (
        r"Import path (\S+) does not correspond to a subclass of (\w+)",
        r"\1 is no \2; name a class that derives from it",
    ),
    (r"Expected a dot import path string: (\w+)", r"there is no \1"),
    (r"Problem with given class_path '([^']+)': ", r"\1: "),
    (r"Expected a typing\.Literal\[([^\]]*)\]", r"must be one of \1"),
    (r"typing\.Literal\[([^\]]*)\]", r"\1"),
    (r"<class '([^']*)'>", r"\1"),
    (r"Expected a (int|float|bool|str)\b", r"must be \1"),
]


def call_with(function: Callable[..., Any], args: list[str], name: str, **given: Any) -> None:
    """Call a function with the arguments of a command line. The parser reads its signature, and the
    help its docstring.

    A parameter that is a list takes one word or more (``--metric AP RR``); a ``bool`` is a switch
    (``--table``).

    Args:
        function: of the command.
        args: after the name of the command.
        name: of the command, such as ``ltr rank``.
        **given: arguments of the function that are not on the command line.

    Raises:
        InputError: for arguments that do not fit.
    """
    for word in args:
        option = word.partition("=")[0]
        if option.startswith("--") and "." in option:
            raise InputError(
                f"{name} has no configuration, and so no option {option}; see {name} --help"
            )
    docstring = docstring_parser.parse(function.__doc__ or "")
    parser = jsonargparse.ArgumentParser(
        prog=name,
        description=docstring.description,
        exit_on_error=False,
        allow_abbrev=False,
    )
    help_of = {parameter.arg_name: parameter.description for parameter in docstring.params}
    # What add_function_arguments skips: what the caller has given, and what this loop adds.
    skipped = {*given}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name in skipped:
            continue
        is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        flag = f"--{parameter.name}" if is_option else parameter.name
        options: dict[str, Any] = {"help": help_of.get(parameter.name)}
        if is_option:
            options["default"] = parameter.default
        if parameter.annotation is bool:
            parser.add_argument(flag, action="store_true", **options)
        elif parameter.annotation in WORD_TYPES:
            word_type = WORD_TYPES[parameter.annotation]
            parser.add_argument(flag, nargs="+", type=word_type, **options)
        else:
            continue
        skipped.add(parameter.name)
    # Keyword-only parameters stay options, even where they are required.
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip=skipped)
    try:
        arguments = parser.parse_args(args)
    except jsonargparse.ArgumentError as error:
        reason = parser_reason(" ".join(str(error).split()))
        raise InputError(f"{reason}; see {name} --help") from error
    function(**vars(arguments), **given)


def parser_reason(text: str) -> str:
    """What the parser has against a value, without the other types that it has tried, and without
    the value again.
    """
    for pattern, better in REWORDED:
        text = re.sub(pattern, better, text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
