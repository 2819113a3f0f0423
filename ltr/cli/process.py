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


def run_in_process(command_line: list[str], *, refusal_ends_program: bool = True) -> None:
    """Run a command in a process that has everything imported, and wait for it.

    Args:
        command_line: the command with its words.
        refusal_ends_program: where the command refuses its input, this program ends with its exit
            code, and the command's line is the only one.

    Raises:
        InputError: if it fails; it has said why. Also if a signal to it alone has ended it.
        KeyboardInterrupt: if a signal came to this process.
    """
    code = _run_and_wait(command_line)
    if code == 2 and refusal_ends_program:
        raise SystemExit(code)
    if code:
        raise InputError(
            f"ltr {command_line[0]} {how_ended(code)}, see above; called again, this goes on where it is"
        )


def _run_and_wait(command_line: list[str]) -> int:
    """The exit code of a command that runs in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_main, args=(command_line, sys.path))
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


def _main(command_line: list[str], path: list[str]) -> None:
    sys.path[:] = path
    parent = multiprocessing.parent_process()
    assert parent is not None
    # By SIGTERM, so that a training saves first.
    code = _main_unless_orphaned(lambda: wait([parent.sentinel]), signal.SIGTERM, command_line)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main_of_child(args: list[str]) -> int:
    """Run a command for another program, which may be killed: ``python -m ltr.cli.process PID
    COMMAND …``. Returns the exit code.

    Args:
        args: the number of the process that started this one, and the command with its words.
    """
    parent = int(args[0])
    # The parent has blocked SIGTERM here (mining/side_process.py), so it sends ENDED_BY_RUN.
    signal.signal(ENDED_BY_RUN, lambda _, frame: end_at_once(signal.SIGTERM, frame))

    def wait_until_orphaned() -> None:
        while os.getppid() == parent:  # an orphan gets another one
            time.sleep(0.5)

    return _main_unless_orphaned(wait_until_orphaned, ENDED_BY_RUN, args[1:])


def _main_unless_orphaned(
    wait_until_orphaned: Callable[[], object],
    signal_if_orphaned: signal.Signals,
    command_line: list[str],
) -> int:
    """Run a command. If the parent is gone before, a signal ends it."""

    def leave_with_parent() -> None:
        wait_until_orphaned()
        os.kill(os.getpid(), signal_if_orphaned)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    sys.argv[1:] = command_line  # by which Lightning starts the other processes of a run
    return main(command_line)


if __name__ == "__main__":
    sys.exit(main_of_child(sys.argv[1:]))
