"""The path of an option: ``model.ranker.max_length``. In a configuration ``init_args`` stands before
the options of a class; the command line leaves it out.
"""

from collections.abc import Iterator
from typing import Any


def without_init_args(path: str) -> str:
    """The path as the command line takes it."""
    return ".".join(name for name in path.split(".") if name != "init_args")


def value_at(config: Any, path: str) -> Any:
    """The value of an option in a configuration of plain dicts; None where there is none.

    Args:
        config: the whole of it.
        path: as the command line takes it.
    """
    for name in path.split("."):
        if isinstance(config, dict) and name not in config:
            config = config.get("init_args")
        config = config.get(name) if isinstance(config, dict) else None
    return config


def beginnings(path: str) -> Iterator[str]:
    """The paths of all that an option stands in, and its own: ``a``, ``a.b`` and ``a.b.c``."""
    names = path.split(".")
    for end in range(1, len(names) + 1):
        yield ".".join(names[:end])


def is_at_or_below(path: str, other: str) -> bool:
    """Whether an option is another one, or stands in it."""
    return other in beginnings(path)
