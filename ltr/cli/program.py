"""The program: runs a command and tells its exit code; imports nothing heavy."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from ltr.cli.commands import Stdout, asks_for_usage, command_of, find_command, usage
from ltr.errors import ENDING_SIGNALS, InputError
from ltr.run.signals import CLUSTER_SIGNALS, end_at_once, ignore_cluster_signals, number_of

NOBODY_READS = 128 + signal.SIGPIPE  # the exit code


def main(command_line: list[str] | None = None) -> int:
    """Run a command and return the exit code: 0; 2 for bad input (one line on stderr); 130, 143,
    138, 140 or 129 after a signal; 141 where nobody reads the output any more.
    """
    command_line = sys.argv[1:] if command_line is None else command_line
    _open_closed_streams()
    if os.environ.get("LOCAL_RANK", "0") != "0":
        _leave_signals_to_rank_0(command_line)
    with _ended_by_signals():
        try:
            return _exit_code(command_line)
        except KeyboardInterrupt as stop:  # between the end of the command and its line
            return 128 + number_of(stop)


def _exit_code(command_line: list[str]) -> int:
    """Run a command, and tell what has ended it."""
    try:
        if asks_for_usage(command_line):
            print(usage(), end="", flush=True)
            return 0
        if command_line[0] == "--version":
            from ltr import __version__

            print(__version__, flush=True)
            return 0
        from ltr.data.console import printable_warnings

        with printable_warnings():
            run(command_line)
        sys.stdout.flush()  # here an error gets its line
    except (KeyboardInterrupt, SystemExit) as stop:
        code = _code_of_stop(stop)
        if code is None:
            raise
        return code
    except BrokenPipeError:  # a table in ltr … | head
        from ltr.run.log import silence

        silence(sys.stdout)
        return NOBODY_READS
    except Exception as error:
        ignore_cluster_signals()
        # A signal that has come while a library was at work may have become an error of its own.
        interrupt = _interrupt_behind(error)
        if interrupt is not None:
            return 128 + number_of(interrupt)
        line = _line_for_user(error)
        if line is None or os.environ.get("LTR_DEBUG") == "1":
            raise
        _tell(line)
        return 2
    return 0


def _open_closed_streams() -> None:
    """A stream is None where the caller has closed it, as some schedulers do."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  # for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the life of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the life of the process


def _leave_signals_to_rank_0(command_line: list[str]) -> None:
    """Ignore the signals in a process that is not the first of its node. Rank 0 gets them too,
    saves, and then ends this one; it would wait for ever for one that has left by itself.
    """
    command = find_command(command_line)
    if command is not None and not command.acts_by_rank_0:
        return
    if threading.current_thread() is not threading.main_thread():
        return  # Python lets no other thread set handlers
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _code_of_stop(stop: BaseException) -> int | None:
    """The exit code after a signal or a closed pipe; None where a command has ended the program with
    a code of its own.
    """
    # Lightning catches a KeyboardInterrupt (Terminated is one) and exits with 1: the signal is
    # then the context of the SystemExit. rich does the same with a BrokenPipeError.
    cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__context__
    if isinstance(cause, KeyboardInterrupt):
        return 128 + number_of(cause)
    if isinstance(cause, BrokenPipeError):
        return NOBODY_READS
    return None


def _tell(line: str) -> None:
    """Print what the user can mend."""
    from ltr.data.console import say

    rank = rank_of_launcher()
    speaker = "ltr:" if rank == "0" else f"ltr [rank {rank}]:"
    # A name may hold the end of a line.
    say(speaker, " ".join(line.splitlines()), to=sys.stderr)
    _flush_or_drop_output()


def run(command_line: list[str]) -> None:
    """Run a command; an InputError for what the user can mend.

    Args:
        command_line: the command with its words; not empty.
    """
    with suppress(FileNotFoundError):  # of a folder that was removed
        # A class of one's own in the working directory is found by the console script, too.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
    command = command_of(command_line)
    function = command.load()
    if command.parses_itself:
        function(command_line)
        return
    from ltr.cli.arguments import call_with

    words = command_line[len(command.name.split()) :]
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


def _line_for_user(error: Exception) -> str | None:
    """As :func:`ltr.cli.messages.line_for_user`, whose file imports torch: an InputError may come
    before that, and is told at once.
    """
    if isinstance(error, InputError):
        return str(error)
    from ltr.cli.messages import line_for_user

    return line_for_user(error)


def _interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """What a signal has raised, if the error came while that was handled: the contexts lead there,
    whatever is named as a cause.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


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
