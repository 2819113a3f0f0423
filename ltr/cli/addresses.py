"""Addresses such as ``s3://…`` among options: refused where a local path must be."""

from pathlib import Path
from typing import Any

import jsonargparse

from ltr.cli.option_paths import without_init_args
from ltr.errors import local_path

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
            local_path(option, name)  # the keys of data.negatives are folders
            path = without_init_args(f"{option}.{name}").removeprefix(".")
            refuse_addresses(part, path)
