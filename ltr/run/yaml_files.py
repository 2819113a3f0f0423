"""Configurations and grids: YAML files, read strictly."""

from pathlib import Path
from typing import Any

import yaml

from ltr.errors import InputError


class _Strict(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                where = f"{self.name}:{key.start_mark.line + 1}"
                raise InputError(
                    f"{where}: a key must be given once, got {key.value!r} again; remove one of them"
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path, what: str = "a configuration") -> dict[str, Any] | None:
    """The options in a file, or None if it holds nothing.

    Raises:
        InputError: for another encoding, no YAML, a key that is given twice, or something else than
            options.
    """
    try:
        with open(file, encoding="utf-8") as opened:
            found = yaml.load(opened, _Strict)  # noqa: S506  # a SafeLoader
    except UnicodeDecodeError as error:
        hint = "save the file as UTF-8"
        raise InputError(
            f"{file}: {what} must be UTF-8, got byte 0x{error.object[error.start]:02x}; {hint}"
        ) from None
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where, problem = (
            (f"{file}:{mark.line + 1}", error.problem)
            if mark
            else (str(file), " ".join(str(error).split())[:100])
        )
        raise InputError(f"{where}: {what} must be YAML: {problem}") from None
    if found is not None and not isinstance(found, dict):
        raise InputError(
            f"{file}: {what} must be options with their values, got {str(found)[:40]!r}"
        )
    return found
