"""Ctrl-C, SIGTERM and a closed terminal while a run trains."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ltr.errors import Terminated

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class Signals:
    """Keeps the first of these signals until the run can save; a second one ends it at once.

    Attributes:
        asked: the exception to end with; None as long as nobody asked.
    """

    def __init__(self) -> None:
        self.asked: KeyboardInterrupt | None = None
        self._previous: dict[signal.Signals, Any] = {}  # handlers: functions or numbers

    def listen(self, *, leads: bool, came: Callable[[], None]) -> None:
        """Take over these signals, but for SIGHUP under ``nohup``.

        Args:
            leads: whether this process saves. The others ignore the signals, since a step needs all
                of them until the leader has saved; it ends them.
            came: called when one arrived.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        self.asked = None
        owner = os.getpid()

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a data worker, which is forked with this handler
                return
            for known in self._previous:
                # Terminal and shell both say that the terminal was closed.
                signal.signal(known, signal.SIG_IGN if known == signal.SIGHUP else end_at_once)
            _tell(
                f"\n{NAMES[signal.Signals(number)]}: finishing this step, then saving last.ckpt; once more to stop at once\n"
            )
            self.asked = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
            came()

        for known in NAMES:
            if known != signal.SIGHUP or signal.getsignal(known) != signal.SIG_IGN:
                self._previous[known] = signal.signal(known, handle if leads else signal.SIG_IGN)

    def release(self) -> None:
        """Give the signals back."""
        if threading.current_thread() is threading.main_thread():
            for known, handler in self._previous.items():
                signal.signal(known, handler)
        self._previous = {}


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler: raise what ends the program with the right exit code."""
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _tell(text: str) -> None:
    """Not by print, which may have been interrupted itself. Where nobody reads any more, from now
    on nothing is said.
    """
    try:
        os.write(1, text.encode())
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
