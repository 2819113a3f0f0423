"""The command line: ``python -m ltr`` or ``ltr``."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ltr.errors import Terminated

USAGE = """\
ltr: train, compare and understand text rankers.

usage: ltr COMMAND [RUN] [options]      (or python -m ltr COMMAND [RUN] [options])

commands
  fit        train a ranker               ltr fit --config experiments/cross_encoder/medquad.yaml
             resume a run                 ltr fit runs/EXPERIMENT/seed=0
  validate   measure it on the dev split  ltr validate runs/EXPERIMENT/seed=0
  test       measure it on the test split, and write test.run, per_query.tsv, metrics.json
  predict    rank the test candidates, and write predict.run

Options of a command: ltr COMMAND --help; its whole configuration: ltr COMMAND --config FILE --print_config.
A run lies in runs/EXPERIMENT/seed=N/: its configuration, its best and its last weights, its results.
Exit codes: 0 done, 2 for what you can mend (one line says what), 130 Ctrl-C, 143 SIGTERM (both save first), 1 a mistake of ours.
LTR_DEBUG=1 shows the traceback of an error, LTR_CACHE sets the folder of derived data (now ~/.cache/ltr).
"""


def main(args: list[str] | None = None) -> int:
    """Run a command and return the exit code: 0; 2 for bad input (one line on stderr); 130 after Ctrl-C; 143 after SIGTERM."""
    args = sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if args[0] == "--version":
        from ltr import __version__

        print(__version__)
        return 0
    try:
        from ltr.cli import run  # Lightning takes seconds to import: only where it is needed

        with _ended_by_sigterm():
            run(args)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning turns both signals into exit code 1.
        cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__context__
        if isinstance(cause, KeyboardInterrupt):
            return 143 if isinstance(cause, Terminated) else 130
        raise
    except Exception as error:
        from ltr.cli import one_line

        message = one_line(error)
        if message is None or os.environ.get("LTR_DEBUG") == "1":
            raise
        rank = os.environ.get("LOCAL_RANK", "0")
        print("ltr:" if rank == "0" else f"ltr [rank {rank}]:", message, file=sys.stderr)
        return 2
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, so that what it has opened is closed; a run that trains does more."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
