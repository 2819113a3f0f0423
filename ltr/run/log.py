"""What a run says: on the terminal only what is its own, in ``train.log`` everything."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Literal, TextIO

from lightning.fabric.plugins.environments import TorchElasticEnvironment

from ltr.data import progress
from ltr.data.console import say, without_controls
from ltr.processes import gather_objects

OURS = "ltr"
OTHERS = (
    "py.warnings",
    "lightning.pytorch",
    "lightning.fabric",
    "pytorch_lightning",
    "lightning_utilities",
)


@contextmanager
def route_messages(is_rank_0: bool) -> Iterator[Callable[[Path], None]]:
    """Inside the block, messages of the project go to the terminal and to a file; those of other
    packages, and what is said for the log alone (of the level DEBUG), to the file.

    Args:
        is_rank_0: whether this process is the one that speaks for all.

    Yields:
        A function that names the file. Messages from before its call are kept, and written there
        too.
    """
    to_file = MemoryHandler(1000)
    to_stdout = _TerminalHandler("stdout")
    to_stdout.setLevel(logging.INFO)
    to_stdout.addFilter(lambda record: record.levelno < logging.WARNING)
    to_stderr = _TerminalHandler("stderr")
    to_stderr.setLevel(logging.WARNING)
    ours = logging.getLogger(OURS)
    others = [logging.getLogger(name) for name in OTHERS]
    handlers_before = {logger: logger.handlers[:] for logger in (ours, *others)}
    ours.setLevel(logging.DEBUG)
    if is_rank_0:
        ours.handlers += [to_file, to_stdout, to_stderr]
    else:
        ours.handlers += [logging.NullHandler()]
    for logger in others:
        logger.handlers = [to_file if is_rank_0 else logging.NullHandler()]

    def log_into(file: Path) -> None:
        if is_rank_0:
            file.parent.mkdir(parents=True, exist_ok=True)
            target = _FileHandler(file, encoding="utf-8")
            target.setFormatter(
                logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
            )
            to_file.setTarget(target)
            to_file.capacity = 0  # from here on every message is written at once
            to_file.flush()
            to_stdout.log_file = file

    logging.captureWarnings(True)
    try:
        yield log_into
    finally:
        logging.captureWarnings(False)
        for logger, handlers in handlers_before.items():
            logger.handlers = handlers
        if to_file.target is not None:
            to_file.target.close()


@contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Inside the block, lines of progress go to stderr, for a command whose results go to stdout."""
    progress_log = logging.getLogger(progress.__name__)
    level_before = progress_log.level
    handler = _TerminalHandler("stderr")
    progress_log.setLevel(logging.INFO)
    progress_log.addHandler(handler)
    try:
        yield
    finally:
        progress_log.removeHandler(handler)
        progress_log.setLevel(level_before)


class _TerminalHandler(logging.StreamHandler):
    """Is silent once nobody reads any more, as in ``ltr … | head``; the command goes on. Texts in a
    message do not steer the terminal.

    Where stdout goes into a file, the disk may be full. If a log has the messages, too, the handler
    goes silent, and a line says so once. Else they are what the command is for: the error ends it.

    It writes to the stream of the moment: a bar puts another one in its place, which prints above the
    bar.

    Args:
        name: of the stream in ``sys``.

    Attributes:
        log_file: the log that has its messages, too; None without one.
    """

    log_file: Path | None = None

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        logging.Handler.__init__(self)  # that of StreamHandler would set the stream
        self._name = name

    @property
    def stream(self) -> TextIO:
        stream: TextIO = getattr(sys, self._name)
        return stream

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, BrokenPipeError):
            silence(self.stream)
            return
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        drop_unwritten(self.stream)
        if self._name == "stderr":  # nothing is left to say it by
            return
        if self.log_file is None:
            raise error
        self.addFilter(lambda _: False)
        say(
            f"ltr: the output is not written any more: {error.strerror}; what is said is in {self.log_file}",
            to=sys.stderr,
        )


class _FileHandler(logging.FileHandler):
    """Goes silent on a full disk, and says so once; the command goes on."""

    _is_silent = False

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_silent:
            self._is_silent = True
            self.addFilter(lambda _: False)
            say(
                f"ltr: {self.baseFilename} is not written any more: {error.strerror}",
                to=sys.stderr,
            )

    def close(self) -> None:
        with suppress(OSError):  # it writes what is left, which fails on a full disk
            super().close()


def silence(stream: TextIO) -> None:
    """Send what is still to be written to a stream, and what the interpreter flushes at its end, to
    nowhere.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def drop_unwritten(stream: TextIO) -> None:
    """Forget what a stream could not write and still holds, which it would try again at each write
    and at the end of the interpreter.
    """
    kept = os.dup(stream.fileno())
    silence(stream)
    stream.flush()  # to nowhere
    os.dup2(kept, stream.fileno())
    os.close(kept)


def gather_hosts() -> str:
    """Where the processes of a run are, by machine, process number and launcher: what tells the
    starts of a run apart in its log. Every process must ask.
    """
    hosts = gather_objects(socket.gethostname())
    number = "1 process" if len(hosts) == 1 else f"{len(hosts)} processes"
    parts = [f"{number} on {', '.join(dict.fromkeys(hosts))}"]
    parts.append(f"the first is process {os.getpid()} of {hosts[0]}")
    if TorchElasticEnvironment.detect():
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        parts.append(f"torchrun {os.environ['TORCHELASTIC_RUN_ID']}, restart {restarts}")
    if "SLURM_JOB_ID" in os.environ:
        requeues = os.environ.get("SLURM_RESTART_COUNT", "0")
        parts.append(f"job {os.environ['SLURM_JOB_ID']} of SLURM, restart {requeues}")
    return "; ".join(parts)
