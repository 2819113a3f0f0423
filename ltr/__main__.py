"""The program: ``python -m ltr`` or ``ltr``."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from ltr.cli.program import main, rank_of_launcher
from ltr.run.requeue import requeue_if_warned

__all__ = ["main", "program"]


def program() -> NoReturn:
    """Run a command, and end the process with its exit code."""
    # torch reads this when it is imported. Else a lost process makes it print a C++ stack of forty
    # frames; ours is one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    code = main()
    if rank_of_launcher() == "0":  # it has saved; the others may end earlier
        requeue_if_warned(code)
    if code != 0 and "torch" in sys.modules:
        # Threads of gloo or NCCL may still wait for a process that is gone. At the end of the
        # interpreter they would turn the code into that of SIGABRT.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk, or closed
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    program()
