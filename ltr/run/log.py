"""What a run says: on the terminal only what is its own, in ``train.log`` everything."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.module import RankerModule

log = logging.getLogger(__name__)

OURS = "ltr"
OTHERS = (
    "py.warnings",
    "lightning.pytorch",
    "lightning.fabric",
    "pytorch_lightning",
    "lightning_utilities",
)
EVERY = 30.0  # seconds between two lines of progress


@contextmanager
def route_messages(is_rank_0: bool) -> Iterator[Callable[[Path], None]]:
    """Inside the block, messages of the project go to the terminal and to a file; those of other
    packages to the file alone.

    Args:
        is_rank_0: whether this process is the one that speaks for all.

    Yields:
        A function that names the file. Messages from before its call are kept, and written there
        too.
    """
    to_file = MemoryHandler(1000)
    to_stdout = _TerminalHandler(sys.stdout)
    to_stdout.addFilter(lambda record: record.levelno < logging.WARNING)
    to_stderr = _TerminalHandler(sys.stderr)
    to_stderr.setLevel(logging.WARNING)
    ours = logging.getLogger(OURS)
    others = [logging.getLogger(name) for name in OTHERS]
    handlers_before = {logger: logger.handlers[:] for logger in (ours, *others)}
    ours.setLevel(logging.INFO)
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

    logging.captureWarnings(True)
    try:
        yield log_into
    finally:
        logging.captureWarnings(False)
        for logger, handlers in handlers_before.items():
            logger.handlers = handlers
        if to_file.target is not None:
            to_file.target.close()


class _TerminalHandler(logging.StreamHandler):
    """Is silent once nobody reads any more, as in ``ltr … | head``; the command goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            silence(self.stream)
        else:
            super().handleError(record)


class _FileHandler(logging.FileHandler):
    """Goes silent on a full disk, and says so once; the command goes on, and fails at what it can't
    do without.
    """

    _is_silent = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_silent:
            self._is_silent = True
            self.addFilter(lambda _: False)
            print(
                f"ltr: {self.baseFilename} is not written any more: {error.strerror}",
                file=sys.stderr,
            )

    def close(self) -> None:
        with suppress(OSError):  # it writes what is left, which fails on a full disk
            super().close()


def silence(stream: TextIO) -> None:
    """Send what is still to be written to a stream, and what the interpreter flushes at its end, to
    nowhere.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Progress(Callback):
    """A line every half minute, for places without a terminal: the step, the rate, the loss and the
    time left.
    """

    def __init__(self) -> None:
        # When the last line was written, or training began, and the step of that moment.
        self._since = 0.0
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.monotonic()
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        seconds = time.monotonic() - self._since
        if seconds < EVERY or trainer.global_step == self._step or not trainer.is_global_zero:
            return
        rate = (trainer.global_step - self._step) / seconds
        total = trainer.estimated_stepping_batches
        assert isinstance(pl_module, RankerModule) and pl_module.last_step is not None
        of_total = ""
        time_left = ""
        if total != float("inf"):
            of_total = f" of {int(total):,}"
            time_left = f", {duration((total - trainer.global_step) / rate)} left"
        loss = pl_module.last_step.loss.item()
        place = f"step {trainer.global_step:,}{of_total}, epoch {trainer.current_epoch + 1}"
        log.info("%s: %.3g steps/s, loss %.4g%s", place, rate, loss, time_left)
        self._since = time.monotonic()
        self._step = trainer.global_step


def duration(seconds: float) -> str:
    """``41 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {seconds:02d} s"
    return f"{seconds} s"
