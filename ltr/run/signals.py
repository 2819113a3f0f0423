"""Ctrl-C, a closed terminal and the signals of a cluster while a run trains."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ltr.errors import Terminated

log = logging.getLogger(__name__)

NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGUSR1: "SIGUSR1",
    signal.SIGUSR2: "SIGUSR2",
    signal.SIGHUP: "SIGHUP",
}

# By these a cluster warns of the end of a job. SIGTERM says no more than that the run must end:
# SLURM also sends it for scancel.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
# The signals of a cluster. Within so many seconds of the first signal they repeat it: SLURM sends
# SIGTERM twice within 30 ms when it preempts a job or its time is up, and a launcher passes on what
# its processes got already.
OF_CLUSTER = (signal.SIGTERM, *WARNINGS)
REPEAT_SECONDS = 5.0


class Signals:
    """Keeps the first of these signals until the run can save; a second one ends it at once, unless
    it only repeats the first.

    Attributes:
        pending: the exception to end the run with; None as long as no signal has come, and on all
            ranks but the first.
        heard: the same on the other ranks, which don't end by it. When rank 0 is gone, it says why.
    """

    def __init__(self) -> None:
        self.pending: KeyboardInterrupt | None = None
        self.heard: KeyboardInterrupt | None = None
        # The handlers from before ``listen``, functions or numbers; empty while it does not listen.
        self._previous: dict[signal.Signals, Any] = {}

    def listen(self, *, is_rank_0: bool, on_signal: Callable[[], None]) -> None:
        """Take over these signals, but for SIGHUP under ``nohup``.

        Args:
            is_rank_0: whether this process saves. The other processes only hear the signals: rank 0
                can't finish its step without them. When it has saved, they end with it.
            on_signal: called when the first one has come. It runs in the handler, between any two
                lines of the program.
        """
        if threading.current_thread() is not threading.main_thread():
            if is_rank_0:
                log.warning(
                    "this run trains in a thread, where Python lets no signal be handled: what ends the program ends it as kill -9 does, and a resume goes on from the last.ckpt that is there (last.every_n_steps)"
                )
            return
        self.pending = None  # of a run before this one
        self.heard = None
        owner = os.getpid()

        def hear(number: int, frame: FrameType | None) -> None:
            if os.getpid() == owner and self.heard is None:
                self.heard = _exception_of(number)

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a data worker, which is forked with this handler
                return
            first = time.monotonic()

            def end_unless_repeated(number: int, frame: FrameType | None) -> None:
                if number in OF_CLUSTER and time.monotonic() < first + REPEAT_SECONDS:
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
            self.pending = _exception_of(number)
            on_signal()

        for known in NAMES:
            if known == signal.SIGHUP and signal.getsignal(known) == signal.SIG_IGN:
                continue  # nohup
            self._previous[known] = signal.signal(known, handle if is_rank_0 else hear)

    def release(self, *, leaves: bool = False) -> None:
        """Give the signals back to the handlers from before.

        If a signal has come, those of a cluster are ignored instead, since another one may only
        repeat the first. Lightning restores their handlers when the trainer ends.

        Args:
            leaves: an error ends this process, which is not the first one. The signals of a cluster
                are ignored then, too: they would end it before it has told its error.
        """
        has_come = leaves or self.pending is not None or self.heard is not None
        for known, handler in self._previous.items():
            is_ignored = known in OF_CLUSTER and has_come
            signal.signal(known, signal.SIG_IGN if is_ignored else handler)
        self._previous = {}


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler: raise what ends the program with the right exit code.

    After a signal of a cluster, others of it are ignored: they would break off what the program
    still closes.
    """
    if number in OF_CLUSTER:
        for known in OF_CLUSTER:
            signal.signal(known, signal.SIG_IGN)
    raise _exception_of(number)


def _exception_of(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


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


def how_ended(code: int) -> str:
    """What an exit code says: -9 was killed by signal 9, 143 has ended itself by signal 15."""
    number = -code if code < 0 else code - 128
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended with code {code}"
