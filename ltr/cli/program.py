"""The program: runs a command and tells its exit code; imports nothing heavy."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from ltr.cli.commands import BY_NAME, Stdout, asks_for_usage, command_of, usage
from ltr.errors import ENDING_SIGNALS, InputError, Terminated
from ltr.run.signals import CLUSTER_SIGNALS, end_at_once


def main(args: list[str] | None = None) -> int:
    """Run a command and return the exit code: 0; 2 for bad input (one line on stderr); 130, 143,
    138, 140 or 129 after a signal; 141 where nobody reads the output any more.
    """
    args = sys.argv[1:] if args is None else args
    # None where the caller has closed it, as some schedulers do.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  # for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the life of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the life of the process
    is_in_main_thread = threading.current_thread() is threading.main_thread()
    # Python lets no other thread set handlers.
    has_rank_0 = not args or args[0] not in BY_NAME or BY_NAME[args[0]].has_rank_0
    if os.environ.get("LOCAL_RANK", "0") != "0" and has_rank_0 and is_in_main_thread:
        # Not rank 0: ignore the signals. Rank 0 gets them too, saves, and then ends this process;
        # it would wait for ever for one that has left by itself.
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    try:
        if asks_for_usage(args):
            print(usage(), end="", flush=True)
            return 0
        if args[0] == "--version":
            from ltr import __version__

            print(__version__, flush=True)
            return 0
        from ltr.data.console import printable_warnings

        with _ended_by_signals(), printable_warnings():
            run(args)
        sys.stdout.flush()  # here an error gets its line
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning catches a KeyboardInterrupt (Terminated is one) and exits with 1: the signal is
        # then the context of the SystemExit. rich does the same with a BrokenPipeError.
        cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__context__
        if isinstance(cause, KeyboardInterrupt):
            return _exit_code(cause)
        if isinstance(cause, BrokenPipeError):
            return 128 + signal.SIGPIPE
        raise
    except BrokenPipeError:  # a table in ltr … | head
        from ltr.run.log import silence

        silence(sys.stdout)
        return 128 + signal.SIGPIPE
    except Exception as error:
        # A signal that has come while a library was at work may have become an error of its own.
        interrupt = _interrupt_behind(error)
        if interrupt is not None:
            return _exit_code(interrupt)
        from ltr.data.console import say

        message = _message(error)
        if message is None or os.environ.get("LTR_DEBUG") == "1":
            raise
        rank = rank_of_launcher()
        speaker = "ltr:" if rank == "0" else f"ltr [rank {rank}]:"
        # A name may hold the end of a line.
        say(speaker, " ".join(message.splitlines()), to=sys.stderr)
        _flush_or_drop_output()
        return 2
    return 0


def run(args: list[str]) -> None:
    """Run a command; an InputError for what the user can mend.

    Args:
        args: the command with its arguments; not empty.
    """
    with suppress(FileNotFoundError):  # of a folder that was removed
        # A class of one's own in the working directory is found by the console script, too.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
    command = command_of(args)
    function = command.load()
    if command.parses_itself:
        function(args)
        return
    from ltr.cli.arguments import call_with

    words = args[len(command.name.split()) :]
    with _open_stdout(command.stdout):
        call_with(function, words, f"ltr {command.name}")


def _open_stdout(stdout: Stdout) -> AbstractContextManager[object]:
    """What is opened before a command runs. It stands around all, so that what collections and
    models log goes there, too.
    """
    if stdout is Stdout.OWN:
        return nullcontext()
    from ltr.run.log import progress_on_stderr, route_messages

    if stdout is Stdout.RESULTS:
        return progress_on_stderr()
    return route_messages(is_rank_0=True)


def _message(error: Exception) -> str | None:
    """What to tell the user of an error; None for a mistake of ours."""
    if isinstance(error, InputError):
        return str(error)
    from ltr.cli.messages import one_line

    return one_line(error)


def _interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """What a signal has raised, if the error came while that was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def _exit_code(interrupt: KeyboardInterrupt) -> int:
    return 128 + (interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT)


def _flush_or_drop_output() -> None:
    """On a full disk the interpreter would complain at its end, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        from ltr.run.log import drop_unwritten

        drop_unwritten(sys.stdout)


def rank_of_launcher() -> str:
    """The number of this process, as torchrun, Lightning or srun tells it."""
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name]
    return "0"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGHUP and the signals of a cluster end the program as Ctrl-C does, so that what it has opened
    is closed; a run that trains does more.
    """

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[signal.Signals, Any] = {}  # those of before: functions or numbers
    for number in (*CLUSTER_SIGNALS, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:  # under nohup, or not rank 0
            continue
        handlers[number] = signal.signal(number, end_at_once)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
