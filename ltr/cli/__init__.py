"""The command line: arguments, the run that they ask for, and what is told of an error."""

import importlib
import os
import sys
from contextlib import ExitStack, suppress

from ltr.errors import InputError

# The functions of all commands but grid and those of CONFIGURED, imported when they are called:
# Lightning takes seconds to import.
FUNCTIONS = {
    "rank": "ltr.cli.use:rank",
    "search": "ltr.cli.use:search",
    "export": "ltr.cli.use:export",
    "score": "ltr.cli.use:score",
    "compare": "ltr.cli.compare:compare",
    "reproduce": "ltr.cli.reproduce:reproduce",
    "negatives import": "ltr.cli.negatives:import_negatives",
    "negatives diff": "ltr.cli.negatives:diff",
    "negatives audit": "ltr.cli.negatives:audit",
    "doctor": "ltr.cli.doctor:doctor",
}
# The commands that LightningCLI runs. They take a configuration.
CONFIGURED = ("fit", "validate", "test", "predict", "mine")


def run(args: list[str]) -> None:
    """Run a command; an InputError for what the user can mend.

    Args:
        args: the command with its arguments; not empty.
    """
    with suppress(FileNotFoundError):  # of a folder that was removed
        # A class of one's own in the working directory is found by the console script, too.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
    if args[0] in CONFIGURED:
        from ltr.cli.training import run_configured

        run_configured(args)
        return
    if args[0] == "grid":
        from ltr.cli.grid import run_grid

        run_grid(args[1:])
        return
    n_words = 2 if " ".join(args[:2]) in FUNCTIONS else 1
    command = " ".join(args[:n_words])
    if command not in FUNCTIONS:
        commands = ", ".join([*CONFIGURED, "grid", *FUNCTIONS])
        given = " ".join(args[:2]) if args[0] == "negatives" else args[0]
        raise InputError(f"the command must be one of {commands}, got {given!r}; see ltr --help")
    from ltr.cli.arguments import call_with

    module, _, name = FUNCTIONS[command].partition(":")
    function = vars(importlib.import_module(module))[name]
    with ExitStack() as stack:
        if args[0] == "negatives":
            # These print through the log. Opened here, so that what collections and models log goes
            # to stdout, too.
            from ltr.run.log import route_messages

            stack.enter_context(route_messages(is_rank_0=True))
        call_with(function, args[n_words:], f"ltr {command}")


def one_line(error: BaseException) -> str | None:
    """What to tell the user of an error; None for a mistake of ours. See
    :func:`ltr.cli.messages.one_line`.
    """
    if isinstance(error, InputError):
        return str(error)
    from ltr.cli import messages

    return messages.one_line(error)
