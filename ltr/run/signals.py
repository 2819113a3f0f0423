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
            for known in self._previous:
                # The next signal ends the run at once. Not so SIGHUP: closing a terminal sends it
                # twice, once by the terminal and once by the shell.
                is_hangup = known == signal.SIGHUP
                signal.signal(known, signal.SIG_IGN if is_hangup else end_at_once)
            _write_to_terminal(
                f"\n{NAMES[signal.Signals(number)]}: finishing this step, then saving last.ckpt; once more to stop at once\n"
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
        """Give the signals back to the handlers from before."""
        if threading.current_thread() is threading.main_thread():
            for known, handler in self._previous.items():
                signal.signal(known, handler)
        self._previous = {}


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler: raise what ends the program with the right exit code."""
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
