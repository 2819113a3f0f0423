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
def speaking(leads: bool) -> Iterator[Callable[[Path], None]]:
    """Messages of the project go to the terminal and to a file; those of other packages to the file
    alone.

    Gives a function that names the file; what was said before is written there too.

    Args:
        leads: whether this process speaks: rank 0 does for all.
    """
    written = MemoryHandler(1000)
    out = _Terminal(sys.stdout)
    err = _Terminal(sys.stderr)
    out.addFilter(lambda record: record.levelno < logging.WARNING)
    err.setLevel(logging.WARNING)
    ours = logging.getLogger(OURS)
    others = [logging.getLogger(name) for name in OTHERS]
    before = {logger: logger.handlers[:] for logger in (ours, *others)}
    ours.setLevel(logging.INFO)
    ours.handlers += [written, out, err] if leads else [logging.NullHandler()]
    for logger in others:
        logger.handlers = [written] if leads else [logging.NullHandler()]

    def into(file: Path) -> None:
        if leads:
            file.parent.mkdir(parents=True, exist_ok=True)
            target = _File(file, encoding="utf-8")
            target.setFormatter(
                logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
            )
            written.setTarget(target)
            written.capacity = 0  # from here on every message is written at once
            written.flush()

    logging.captureWarnings(True)
    try:
        yield into
    finally:
        logging.captureWarnings(False)
        for logger, handlers in before.items():
            logger.handlers = handlers
        if written.target is not None:
            written.target.close()


class _Terminal(logging.StreamHandler):
    """Is silent once nobody reads any more, as in ``ltr … | head``; the command goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            nobody_reads(self.stream)
        else:
            super().handleError(record)


class _File(logging.FileHandler):
    """Goes silent on a full disk, and says so once; the command goes on, and fails at what it can't
    do without.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.filters:
            self.addFilter(lambda _: False)
            print(
                f"ltr: {self.baseFilename} is not written any more: {error.strerror}",
                file=sys.stderr,
            )

    def close(self) -> None:
        with suppress(OSError):  # as said
            super().close()


def nobody_reads(stream: TextIO) -> None:
    """Send what is still to be written, and what the interpreter flushes at its end, to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Progress(Callback):
    """A line every half minute, for places without a terminal: the step, the rate, the loss and the
    time left.
    """

    def __init__(self) -> None:
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
        of = ""
        left = ""
        if total != float("inf"):
            of = f" of {int(total):,}"
            left = f", {duration((total - trainer.global_step) / rate)} left"
        loss = pl_module.last_step.loss.item()
        at = f"step {trainer.global_step:,}{of}, epoch {trainer.current_epoch + 1}"
        log.info("%s: %.3g steps/s, loss %.4g%s", at, rate, loss, left)
        self._since = time.monotonic()
        self._step = trainer.global_step


def duration(seconds: float) -> str:
    """``41 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
