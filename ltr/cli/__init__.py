"""The command line: arguments, the run that they ask for, and what is told of an error."""

import importlib
import os
import sys
from contextlib import ExitStack, suppress

from ltr.cli.near_names import near_command, question
from ltr.errors import InputError

# The functions of all commands but grid and those of CONFIGURED, imported when they are called:
# Lightning takes seconds to import.
FUNCTIONS = {
    "rank": "ltr.cli.use:rank",
    "search": "ltr.cli.use:search",
    "encode": "ltr.cli.encode:encode",
    "export": "ltr.cli.use:export",
    "verify": "ltr.cli.verify:verify",
    "export-corpus": "ltr.cli.export_corpus:export_corpus",
    "score": "ltr.cli.use:score",
    "check": "ltr.cli.check:check",
    "compare": "ltr.cli.compare:compare",
    "reproduce": "ltr.cli.reproduce:reproduce",
    "negatives import": "ltr.cli.negatives:import_negatives",
    "negatives diff": "ltr.cli.negatives:diff",
    "negatives audit": "ltr.cli.negatives:audit",
    "doctor": "ltr.cli.doctor:doctor",
    "cache": "ltr.cli.cache:cache",
}
# Those whose stdout is for results: what they say beside goes to stderr.
RESULTS_ON_STDOUT = ("rank", "search", "encode", "export", "verify", "export-corpus", "score")
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
    if args[0] == "test":
        from ltr.cli.benchmark import measure_sets, split_sets
        from ltr.cli.configuration import words_of_option
        from ltr.cli.measured_splits import measure_splits

        options, words = words_of_option(args, ("--split",))
        if len(words) > 1:
            measure_splits(options, words)
            return
        options, words = split_sets(args)
        if words:
            measure_sets(options, words)
            return
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
        raise InputError(_no_command(args))
    from ltr.cli.arguments import call_with

    module, _, name = FUNCTIONS[command].partition(":")
    function = vars(importlib.import_module(module))[name]
    with ExitStack() as stack:
        if args[0] == "negatives":
            # These print through the log. Opened here, so that what collections and models log goes
            # to stdout, too.
            from ltr.run.log import route_messages

            stack.enter_context(route_messages(is_rank_0=True))
        elif args[0] in RESULTS_ON_STDOUT:
            from ltr.run.log import progress_on_stderr

            stack.enter_context(progress_on_stderr())
        call_with(function, args[n_words:], f"ltr {command}")


def _no_command(args: list[str]) -> str:
    given = args[0]
    what = "the command"
    group = ""  # the word before the one that is no command
    known = [*CONFIGURED, "grid", *FUNCTIONS]
    if given == "negatives":
        what = "the word after ltr negatives"
        group = "negatives "
        given = args[1] if len(args) > 1 else ""
        known = [each.removeprefix(group) for each in known if each.startswith(group)]
    choices = f"{what} must be one of {', '.join(known)}"
    if given == "" or given.startswith("-"):
        return f"{choices}; see ltr --help"
    near = near_command(given, known)
    if near:
        return f"there is no command '{group}{given}'{question(f'ltr {group}{each}' for each in near)} (all commands: ltr --help)"
    return f"{choices}, got {given!r}; see ltr --help"


def one_line(error: BaseException) -> str | None:
    """What to tell the user of an error; None for a mistake of ours. See
    :func:`ltr.cli.messages.one_line`.
    """
    if isinstance(error, InputError):
        return str(error)
    from ltr.cli import messages

    return messages.one_line(error)
