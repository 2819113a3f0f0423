"""Commands of ltr in processes of their own, which have everything imported."""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

from ltr.cli.program import main
from ltr.errors import InputError, Terminated

PRELOADED = ["ltr.cli.training", "ltr.datamodules", "ltr.models", "ltr.losses"]


def run_in_process(args: list[str]) -> None:
    """Run a command and wait for it.

    Raises:
        InputError: if it fails; it has said why.
        KeyboardInterrupt: if a signal has ended it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_main, args=(args, sys.path))
    process.start()
    try:
        process.join()
    except KeyboardInterrupt as stop:
        # Ctrl-C reaches the child from the terminal. SIGTERM and SIGHUP came to this process alone,
        # so they are passed on. Either way the child saves first.
        if isinstance(stop, Terminated) and process.pid is not None and process.is_alive():
            os.kill(process.pid, stop.number)
        process.join()
        raise
    if process.exitcode and process.exitcode > 128:
        raise KeyboardInterrupt
    if process.exitcode:
        raise InputError(
            f"ltr {args[0]} ended with code {process.exitcode}, see above; called again, this goes on where it is"
        )


def _main(args: list[str], path: list[str]) -> None:
    sys.path[:] = path
    sys.argv[1:] = args  # by which Lightning starts the other processes of a run
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    code = main(args)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_with_parent() -> None:
    """End this process as SIGTERM does, which saves first, when the one that waits for it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
