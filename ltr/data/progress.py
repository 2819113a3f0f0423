"""What takes a while says how far it is: by a bar on a terminal, elsewhere by a line now and then."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Timer
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ltr.data.console import Console
from ltr.data.files import told_of_bytes

log = logging.getLogger(__name__)

Item = TypeVar("Item")

MEGABYTE = 10**6
EVERY = 30.0  # seconds between two lines
BEFORE_BAR = 0.5  # seconds: what takes less gets no bar

# Whether something is tracked now. What it consists of then says nothing itself.
_is_tracking = False


def track(sequence: Sequence[Item], verb: str, noun: str) -> Iterator[Item]:
    """Iterate, and say how far it is. Other processes than the first say nothing, nor does a
    sequence of one, or one that is iterated inside another.

    With the verb ``encoding`` and the noun ``batches of 512 texts`` a bar, which vanishes at the
    end, reads ``encoding ━━━━ 12/40 batches of 512 texts 0:00:03``, and a line of the log
    ``encoding: 12 of 40 batches of 512 texts, 9.5 batches/s, 3 s left``.
    """
    with tracking(len(sequence), verb, noun) as report:
        for done, item in enumerate(sequence, start=1):
            yield item
            report(done)


@contextmanager
def tracking(
    total: int, verb: str, noun: str, beside: Callable[[], str] | None = None
) -> Iterator[Callable[[int], None]]:
    """As :func:`track`, for what is no sequence. Yields a function that is told how much is done.

    Args:
        total: how much there is to do.
        verb: what is done.
        noun: what is counted, in the plural.
        beside: says more of it, behind a line of the log.
    """
    global _is_tracking
    if total < 2 or _is_tracking or _rank() > 0:
        yield lambda done: None
        return
    console = Console(stderr=True)
    shown: AbstractContextManager[Callable[[int], None]]
    if sys.stderr.isatty() or console.is_jupyter:
        shown = _bar(console, verb, noun, total)
    else:
        shown = nullcontext(LogLines(verb, noun, total, beside).report)
    _is_tracking = True
    try:
        with shown as report:
            yield report
    finally:
        _is_tracking = False


@contextmanager
def reading(files: Iterable[str | Path]) -> Iterator[None]:
    """Inside the block, say how much of some files is read; what is no file counts nothing. A block
    within another one of something that is tracked says nothing.

    Args:
        files: that are read, all of them once.
    """
    if _is_tracking:
        yield
        return
    n_bytes = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
    with tracking(n_bytes // MEGABYTE, "reading", "MB") as report:
        n_read = 0

        def note(n: int) -> None:
            nonlocal n_read
            n_read += n
            report(n_read // MEGABYTE)

        told_of_bytes.append(note)
        try:
            yield
        finally:
            told_of_bytes.remove(note)


def _rank() -> int:
    """The number of this process. One that has not loaded torch is alone, and need not load it to read
    a file.
    """
    if "torch" not in sys.modules:
        return 0
    from ltr.processes import rank

    return rank()


class Pace:
    """How fast something goes, told every half minute.

    Args:
        done: how much was done before.
    """

    def __init__(self, done: int = 0) -> None:
        # When it was last told, or began, and how much was done then.
        self._since = time.monotonic()
        self._done = done

    def leave_out(self, seconds: float) -> None:
        """Leave out time that went to something else."""
        self._since += seconds

    def rate_if_due(self, done: int) -> float | None:
        """How much was done in a second since this was last told; None where it was told just
        now, or nothing was done.
        """
        seconds = time.monotonic() - self._since
        if seconds < EVERY or done == self._done:
            return None
        rate = (done - self._done) / max(seconds, 1e-9)
        self._since = time.monotonic()
        self._done = done
        return rate


class LogLines:
    """Lines of the log now and then: ``scoring: 12 of 40 batches, 0.5 batches/s, 56 s left``.

    Args:
        verb: what is done.
        noun: what is counted, in the plural; a rate is told in its first word.
        total: how many there are.
        beside: says more of it, behind each line.
    """

    def __init__(
        self, verb: str, noun: str, total: int, beside: Callable[[], str] | None = None
    ) -> None:
        self._beside = beside
        self._verb = verb
        self._noun = noun
        self._total = total
        self._pace = Pace()

    def report(self, done: int) -> None:
        """Say how far it is, if it is time to, and not all is done."""
        rate = None if done >= self._total else self._pace.rate_if_due(done)
        if rate is None:
            return
        unit = self._noun.split()[0]
        time_left = duration((self._total - done) / rate)
        place = f"{done:,} of {self._total:,} {self._noun}"
        more = "" if self._beside is None else f"; {self._beside()}"
        log.info("%s: %s, %.3g %s/s, %s left%s", self._verb, place, rate, unit, time_left, more)


@contextmanager
def _bar(console: Console, verb: str, noun: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar, for as long as the block takes. Yields a function that is told how much is done."""
    columns = (
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(noun),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(verb, total=total)

    def report(done: int) -> None:
        bar.update(task, completed=done)

    start = Timer(BEFORE_BAR, bar.start)
    start.daemon = True
    start.start()
    try:
        yield report
    finally:
        start.cancel()
        start.join()  # it may be about to start the bar
        bar.stop()


def duration(seconds: float) -> str:
    """``41 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {seconds:02d} s"
    return f"{seconds} s"
