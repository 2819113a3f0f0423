"""Commands of ltr in processes of their own, which end with the one that started them."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait

from ltr.cli.program import main
from ltr.errors import ENDED_BY_RUN, InputError, Terminated
from ltr.run.signals import end_at_once, how_ended

PRELOADED = ["ltr.cli.training", "ltr.datamodules", "ltr.models", "ltr.losses"]


def run_one_of_many(args: list[str]) -> None:
    """Run a command in a process that has everything imported, and wait for it.

    Raises:
        InputError: if it fails; it has said why. Also if a signal to it alone has ended it.
        KeyboardInterrupt: if a signal came to this process.
    """
    _check_exit_code(_exit_code(args), args)


def run_in_process(args: list[str]) -> None:
    """As :func:`run_one_of_many`; but where the command refuses its input, this program ends with
    its exit code, and the command's line is the only one.
    """
    code = _exit_code(args)
    if code == 2:
        raise SystemExit(code)
    _check_exit_code(code, args)


def _check_exit_code(code: int, args: list[str]) -> None:
    """Raise an InputError for a command that has failed."""
    if code:
        raise InputError(
            f"ltr {args[0]} {how_ended(code)}, see above; called again, this goes on where it is"
        )


def _exit_code(args: list[str]) -> int:
    """The exit code of a command that runs in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_main, args=(args, sys.path))
    process.start()
    try:
        process.join()
    except KeyboardInterrupt as stop:
        # Ctrl-C reaches the child from the terminal. Other signals came to this process alone, so
        # they are passed on; where they came to the child too, it takes them for one. Either way
        # the child saves first.
        if isinstance(stop, Terminated) and process.pid is not None and process.is_alive():
            os.kill(process.pid, stop.number)
        process.join()
        raise
    return process.exitcode or 0


def _main(args: list[str], path: list[str]) -> None:
    sys.path[:] = path
    parent = multiprocessing.parent_process()
    assert parent is not None
    # A training saves first.
    code = _main_until(lambda: wait([parent.sentinel]), signal.SIGTERM, args)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main_of_child(args: list[str]) -> int:
    """Run a command for another program, which may be killed: ``python -m ltr.cli.process PID
    COMMAND …``. Returns the exit code.

    Args:
        args: the number of the process that started this one, and the command with its arguments.
    """
    parent = int(args[0])
    # It ends as by SIGTERM, which it does not hear itself: its parent has blocked it.
    signal.signal(ENDED_BY_RUN, lambda _, frame: end_at_once(signal.SIGTERM, frame))

    def wait_for_parent() -> None:
        while os.getppid() == parent:  # an orphan gets another one
            time.sleep(0.5)

    return _main_until(wait_for_parent, ENDED_BY_RUN, args[1:])


def _main_until(wait_for_parent: Callable[[], object], end: signal.Signals, args: list[str]) -> int:
    """Run a command. If the parent is gone before, a signal ends it."""

    def leave_with_parent() -> None:
        wait_for_parent()
        os.kill(os.getpid(), end)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    sys.argv[1:] = args  # by which Lightning starts the other processes of a run
    return main(args)


if __name__ == "__main__":
    sys.exit(main_of_child(sys.argv[1:]))
