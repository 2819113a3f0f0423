"""Ctrl-C and SIGTERM while a run trains."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from ltr.errors import Terminated

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Signals:
    """Keeps the first Ctrl-C or SIGTERM until the run can save; a second one ends it at once.

    Attributes:
        asked: the exception to end with; None as long as nobody asked.
    """

    def __init__(self) -> None:
        self.asked: type[KeyboardInterrupt] | None = None
        self._previous: dict[signal.Signals, Any] = {}  # handlers: functions or numbers

    def listen(self, *, leads: bool, came: Callable[[], None]) -> None:
        """Take over both signals.

        Args:
            leads: whether this process saves. The others ignore the signals, since a step needs all of them until the leader has
                saved; it ends them.
            came: called when one arrived.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        self.asked, owner = None, os.getpid()

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a data worker, which is forked with this handler
                return
            for known in NAMES:
                signal.signal(known, end_at_once)
            name = NAMES[signal.Signals(number)]
            told = f"\n{name}: finishing this step, then saving last.ckpt; once more to stop at once\n"
            with suppress(OSError):  # whoever read it may be gone, as `| tee` is after Ctrl-C
                os.write(1, told.encode())  # not print: it may have been interrupted itself
            self.asked = Terminated if number == signal.SIGTERM else KeyboardInterrupt
            came()

        for known in NAMES:
            self._previous[known] = signal.signal(known, handle if leads else signal.SIG_IGN)

    def release(self) -> None:
        """Give both signals back."""
        if threading.current_thread() is threading.main_thread():
            for known, handler in self._previous.items():
                signal.signal(known, handler)
        self._previous = {}


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler: raise what ends the program with the right exit code."""
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
