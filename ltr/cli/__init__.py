"""The command line: arguments, the run that they ask for, and what is told of an error."""

import importlib
import os
import sys
from contextlib import suppress

from ltr.errors import InputError


def run(args: list[str]) -> None:
    """Run a command; an InputError for what the user can mend."""
    with suppress(FileNotFoundError):  # of a folder that was removed
        if (
            os.getcwd() not in sys.path
        ):  # a class of one's own in the working directory, also for the console script
            sys.path.insert(0, os.getcwd())
    if args[0] in (
        "compare",
        "grid",
        "reproduce",
        "doctor",
    ):  # without the others: Lightning takes seconds to import
        return importlib.import_module(f"ltr.cli.{args[0]}").run(args[1:])
    if args[0] in ("rank", "search", "export", "score"):
        from ltr.cli import use

        return use.run(args[0], args[1:])
    from ltr.cli import command

    return command.run(args)


def one_line(error: BaseException) -> str | None:
    """What to tell the user of an error; None for a mistake of ours. See
    :func:`ltr.cli.messages.one_line`.
    """
    if isinstance(error, InputError):
        return str(error)
    from ltr.cli import messages

    return messages.one_line(error)
