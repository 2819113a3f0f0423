"""Ctrl-C, SIGTERM and a closed terminal while a run trains."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ltr.errors import Terminated

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}

# A SIGTERM within so many seconds of the first one repeats it: SLURM sends two within 30 ms when it
# preempts a job or its time is up, and a launcher passes on what its processes got already.
REPEAT_SECONDS = 5.0


class Signals:
    """Keeps the first of these signals until the run can save; a second one ends it at once, unless
    it only repeats the first.

    Attributes:
        pending: the exception to end the run with; None as long as no signal has come.
    """

    def __init__(self) -> None:
        self.pending: KeyboardInterrupt | None = None
        # The handlers from before ``listen``, functions or numbers; empty while it does not listen.
        self._previous: dict[signal.Signals, Any] = {}

    def listen(self, *, is_rank_0: bool, on_signal: Callable[[], None]) -> None:
        """Take over these signals, but for SIGHUP under ``nohup``.

        Args:
            is_rank_0: whether this process saves. The other processes ignore the signals: rank 0
                can't finish its step without them. When it has saved, it ends them.
            on_signal: called when the first one has come. It runs in the handler, between any two
                lines of the program.
        """
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets no other thread set handlers
        self.pending = None  # of a run before this one
        owner = os.getpid()

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a data worker, which is forked with this handler
                return
            first = time.monotonic()

            def end_unless_repeated(number: int, frame: FrameType | None) -> None:
                if number == signal.SIGTERM and time.monotonic() < first + REPEAT_SECONDS:
                    return
                end_at_once(number, frame)

            for known in self._previous:
                # The next signal ends the run at once. Not so SIGHUP: closing a terminal sends it
                # twice, once by the terminal and once by the shell.
                is_hangup = known == signal.SIGHUP
                signal.signal(known, signal.SIG_IGN if is_hangup else end_unless_repeated)
            _write_to_terminal(
                f"\n{NAMES[signal.Signals(number)]}: finishing this step, then saving last.ckpt; Ctrl-C, or SIGTERM after {REPEAT_SECONDS:g} s, to stop at once\n"
            )
            if number == signal.SIGINT:
                self.pending = KeyboardInterrupt()
            else:
                self.pending = Terminated(number)
            on_signal()

        for known in NAMES:
            if known == signal.SIGHUP and signal.getsignal(known) == signal.SIG_IGN:
                continue  # nohup
            self._previous[known] = signal.signal(known, handle if is_rank_0 else signal.SIG_IGN)

    def release(self) -> None:
        """Give the signals back to the handlers from before.

        If a signal has come, SIGTERM is ignored instead, since another one may only repeat the
        first. Lightning restores its handler when the trainer ends.
        """
        if threading.current_thread() is threading.main_thread():
            for known, handler in self._previous.items():
                is_ignored = known == signal.SIGTERM and self.pending is not None
                signal.signal(known, signal.SIG_IGN if is_ignored else handler)
        self._previous = {}


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler: raise what ends the program with the right exit code.

    Another SIGTERM is ignored from then on: it would break off what the program still closes.
    """
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _write_to_terminal(text: str) -> None:
    """Write from within a handler: not by ``print``, which the signal may have interrupted. Where
    the terminal is gone, all that the program writes from now on goes nowhere.
    """
    try:
        os.write(1, text.encode())
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
