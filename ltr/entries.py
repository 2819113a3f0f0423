"""Objects of JSON and YAML files, and of checkpoints, with the type that each entry must have.

What the entries are is declared as a ``TypedDict`` or as a dataclass. Files may have been damaged or changed by hand:
what does not fit is refused, so whoever reads an entry can rely on its type.
"""

import json
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from ltr.errors import InputError

WORDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    NoneType: "null",
}
LARGEST = 2**63  # of whole numbers: arrays and other libraries hold none that are larger


def read_json(file: Path, mend: str, option: str | None = None) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        file: to be read.
        mend: what to do where it can't, for errors.
        option: the option that names it, for errors.

    Raises:
        InputError: if there is no such file, or it holds something else.
    """
    try:
        content = parse_json(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file}: the file can't be read ({error.strerror}); {mend}", option=option
        ) from None
    except ValueError as error:
        raise InputError(f"{file}: the file is damaged ({error}); {mend}", option=option) from None
    if not isinstance(content, dict):
        raise InputError(
            f"{file}: the file is damaged, it must hold an object, got {shown(content)}; {mend}",
            option=option,
        )
    return content


def parse_json(text: str | bytes) -> Any:
    """What JSON holds that others have written.

    Raises:
        ValueError: for what is no UTF-8 or no JSON, or is nested too deep.
    """
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError(f"nested too deep: {error}") from None


def check_entries(
    entries: Any,
    expected: Any,
    where: str | Path,
    mend: str,
    *,
    path: str = "",
    option: str | None = None,
) -> None:
    """Check that entries have the types that are declared.

    Args:
        entries: to be checked.
        expected: a ``TypedDict`` or a dataclass, whose entries of other names may be anything; or a
            ``dict``. In the place of the entries of a dataclass may stand one.
        where: the file they come from, for errors.
        mend: what to do otherwise, for errors.
        path: of the entries in the file, where they are not all of it.
        option: the option that names the file, for errors.

    Raises:
        InputError: names the first entry of another type, by its path, as ``test.evaluated``.
    """
    misfit = _misfit(entries, expected, path)
    if misfit is not None:
        raise InputError(f"{where}: the file is damaged, {misfit}; {mend}", option=option)


def fits(value: Any, expected: Any) -> bool:
    """Whether a value has a type that is declared, see :func:`check_entries`."""
    return _misfit(value, expected, "") is None


def _misfit(value: Any, expected: Any, path: str) -> str | None:
    """What is wrong with a value, at a path with dots, in words; None where it has the expected
    type: a ``TypedDict``, a dataclass, a ``Literal``, a plain type, a union, or a list or dict of
    these.
    """
    if expected is Any:
        return None
    origin = get_origin(expected)
    choices = get_args(expected)
    if origin in (Union, UnionType):
        misfits = [_misfit(value, choice, path) for choice in choices]
        if None in misfits:
            return None
        # Where one of the choices has entries of its own, say which of them is wrong.
        within = [
            misfit
            for choice, misfit in zip(choices, misfits, strict=True)
            if (is_typeddict(choice) or get_origin(choice) in (dict, list))
            and isinstance(value, get_origin(choice) or dict)
        ]
        return within[0] if within else _must_be(expected, value, path)
    if isinstance(expected, type) and is_dataclass(expected) and isinstance(value, expected):
        return None  # it was read before
    if is_typeddict(expected) or is_dataclass(expected):
        if not isinstance(value, dict):
            return _must_be(dict, value, path)
        required = _required_names(expected)
        for name, type_of_entry in get_type_hints(expected).items():
            below = f"{path}.{name}" if path else name
            if name in value:
                misfit = _misfit(value[name], type_of_entry, below)
            elif name in required:
                misfit = f"{below} must be there, and is not"
            else:
                misfit = None
            if misfit is not None:
                return misfit
        return None
    if origin in (dict, list):
        if not isinstance(value, origin):
            return _must_be(expected, value, path)
        if origin is list:
            places = enumerate(value)
            type_of_entry = choices[0]
        else:
            places = value.items()
            key_type, type_of_entry = choices
            for key in value:
                if not _is_a(key, key_type):
                    return f"{path} must have keys that are {WORDS[key_type]}, got {shown(key)}"
        for place, entry in places:
            misfit = _misfit(entry, type_of_entry, f"{path}.{place}")
            if misfit is not None:
                return misfit
        return None
    if origin is Literal:
        return None if value in choices else _must_be(expected, value, path)
    return None if _is_a(value, expected) else _must_be(expected, value, path)


def _required_names(expected: Any) -> frozenset[str]:
    """The entries of a ``TypedDict`` or a dataclass that must be there."""
    if is_typeddict(expected):
        names: frozenset[str] = expected.__required_keys__
        return names
    return frozenset(field.name for field in fields(expected) if field.default is MISSING)


def _is_a(value: Any, expected: Any) -> bool:
    """Whether a value is of a plain type. A bool is no number here; a whole number is a float, too."""
    if expected is None:
        return value is None
    if expected is int:
        return type(value) is int and -LARGEST <= value < LARGEST
    if expected is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return isinstance(value, expected)


def _must_be(expected: Any, value: Any, path: str) -> str:
    return f"{path or 'the content'} must be {_in_words(expected)}, got {shown(value)}"


def _in_words(expected: Any) -> str:
    """A type in words, as ``a text or null``."""
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return " or ".join(_in_words(choice) for choice in get_args(expected))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(expected))
    if is_typeddict(expected):
        return WORDS[dict]
    return WORDS.get(origin or expected, "null")


def shown(value: Any) -> str:
    """The beginning of a value; of what is nested too deep to be shown, its type."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}…"
