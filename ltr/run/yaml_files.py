"""Configurations, grids and suites: YAML files, read strictly."""

import copy
import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ltr.errors import InputError


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML takes the last."""

    # Checks the keys as they stand in the text. construct_mapping sees them after "<<" was expanded,
    # where a key that overrides another rightly stands twice.
    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            # "<<" takes in the options of an anchor, and may stand there several times.
            is_merge = key.tag == "tag:yaml.org,2002:merge"
            is_list = not isinstance(key, yaml.ScalarNode)  # refused later
            if is_merge or is_list:
                continue
            typed_key = (key.tag, key.value)  # 1 and "1" are two keys
            if typed_key in seen:
                line = key.start_mark.line + 1
                raise InputError(
                    f"{self.name}:{line}: a key must be given once, got {key.value!r} again; remove one of them"
                )
            seen.add(typed_key)
        return node


# A command reads its configuration several times, and each takes a hundredth of a second.
@lru_cache(maxsize=8)
def _loaded(text: str, name: str) -> Any:
    """What the text of a file holds, whose name is for errors."""
    stream = io.StringIO(text)
    stream.name = name
    return yaml.load(stream, _StrictLoader)  # noqa: S506  # a SafeLoader


def read_yaml(file: Path, what: str = "a configuration") -> dict[str, Any] | None:
    """The options in a file, or None if it holds nothing.

    Args:
        file: to be read.
        what: what to call the file in errors.

    Raises:
        InputError: for another encoding, no YAML, a key that is given twice, or something else than
            options.
    """
    try:
        options = copy.deepcopy(_loaded(file.read_text(encoding="utf-8"), str(file)))
    except InputError:  # it is a ValueError, and needs no other words
        raise
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{file}: {what} must be UTF-8, got byte 0x{byte:02x}; save the file as UTF-8"
        ) from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise InputError(f"{file}{line}: {what} must be YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a date as 2001-99-99
        problem = " ".join(str(error).split())[:100]
        raise InputError(f"{file}: {what} must be YAML: {problem}") from None
    except RecursionError:
        raise InputError(
            f"{file}: {what} must be YAML, got lists that are nested too deep"
        ) from None
    if options is not None and not isinstance(options, dict):
        raise InputError(
            f"{file}: {what} must be options with their values, got {str(options)[:40]!r}"
        )
    _check_ends(options, file, what)
    return options


def _check_ends(options: dict[str, Any] | None, file: Path, what: str) -> None:
    """Refuse options within themselves, as ``a: &here {b: *here}``: no walk of them ends."""
    try:
        json.dumps(options, default=str, skipkeys=True)
    except (ValueError, RecursionError):
        raise InputError(
            f"{file}: {what} must be options with an end, got an anchor (&) that holds itself"
        ) from None
