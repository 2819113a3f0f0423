"""The program: finds the command and tells its exit code; imports nothing heavy."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ltr.errors import Terminated
from ltr.run.signals import NAMES, OF_CLUSTER, end_at_once

USAGE = """\
ltr: train, compare and understand text rankers.

usage: ltr COMMAND [RUN] [options]      (or python -m ltr COMMAND [RUN] [options])

commands
  fit        train a ranker               ltr fit --config experiments/cross_encoder/medquad.yaml
             resume a run                 ltr fit runs/EXPERIMENT/seed=0
  validate   measure it on the dev split  ltr validate runs/EXPERIMENT/seed=0
  test       measure it on the test split, and write test.run, per_query.tsv, metrics.json
             on several data sets         ltr test RUN --data.path A B suite:nanobeir
             on other splits              ltr test RUN --split test test.clean
  predict    rank the test candidates, and write predict.run
  rank       order texts for a query      ltr rank RUN --query "…" --documents FILE
  search     search a corpus              ltr search RUN --corpus PATH
  encode     a corpus, on any number of machines   ltr encode RUN --corpus PATH --output FOLDER
  export     for sentence-transformers, transformers or ONNX   ltr export RUN FOLDER
  verify     does a library or a server compute what an exported ranker does?   ltr verify FOLDER --with URL
  export-corpus  as Parquet or for faiss   ltr export-corpus ENCODED --format parquet --output FILE
  score      a teacher's scores, to distil  ltr score RUN --data PATH --output FOLDER
  check      before a run: leaks, judgements, cuts, what dev can show, what it takes   ltr check --config FILE
  compare    is their difference real?    ltr compare runs/EXPERIMENT runs/OTHER
  grid       a family of experiments      ltr grid experiments/grids/FILE
  reproduce  train and test a run again   ltr reproduce runs/EXPERIMENT/seed=0
  mine       mine hard negatives          ltr mine runs/EXPERIMENT/seed=0
  negatives  import SOURCE OUTPUT         make negatives of a TREC run, .npy or .parquet
             diff FOLDER FOLDER           compare two folders of negatives
             audit FOLDER --judge MODEL   list likely false negatives, and drop or relabel them
  doctor     check what this machine computes: kernels, search, processes   ltr doctor
  cache      what lies in the folder of derived data; --remove what no run uses   ltr cache

Options of a command: ltr COMMAND --help; its whole configuration: ltr COMMAND --config FILE --print_config.
A run lies in runs/EXPERIMENT/seed=N/: its configuration, its best and its last weights, its results.
Exit codes: 0 done, 2 for what you can mend (one line says what), 130 Ctrl-C, 143 SIGTERM, 138 SIGUSR1, 140 SIGUSR2 and 129 SIGHUP (all save first),
141 where nobody reads the output any more, 1 a mistake of ours, or wrong numbers found by ltr doctor or ltr verify.
LTR_DEBUG=1 shows the traceback of an error, LTR_CACHE sets the folder of derived data (else $XDG_CACHE_HOME/ltr or ~/.cache/ltr).
"""


HELP = {"-h", "--help", "help"}


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
    works_with_rank_0 = args[:1] != ["encode"]
    if os.environ.get("LOCAL_RANK", "0") != "0" and works_with_rank_0 and is_in_main_thread:
        # Not rank 0: ignore the signals. Rank 0 gets them too, saves, and then ends this process;
        # it would wait for ever for one that has left by itself.
        for number in NAMES:  # its keys are the signals
            signal.signal(number, signal.SIG_IGN)
    try:
        if not args or args[0] in HELP or (args[0] == "negatives" and set(args[1:2]) & HELP):
            print(USAGE, end="", flush=True)
            return 0
        if args[0] == "--version":
            from ltr import __version__

            print(__version__, flush=True)
            return 0
        from ltr.cli import run  # Lightning takes seconds to import: only where it is needed
        from ltr.data.console import shown_warnings

        with _ended_by_signals(), shown_warnings():
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
        from ltr.cli import one_line
        from ltr.data.console import say

        message = one_line(error)
        if message is None or os.environ.get("LTR_DEBUG") == "1":
            raise
        rank = rank_of_launcher()
        speaker = "ltr:" if rank == "0" else f"ltr [rank {rank}]:"
        # A name may hold the end of a line.
        say(speaker, " ".join(message.splitlines()), to=sys.stderr)
        _flush_or_drop_output()
        return 2
    return 0


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
    for number in (*OF_CLUSTER, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:  # under nohup, or not rank 0
            continue
        handlers[number] = signal.signal(number, end_at_once)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
