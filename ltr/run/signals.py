"""Ctrl-C, a closed terminal and the signals of a cluster while a run trains."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ltr.errors import ENDING_SIGNALS, Terminated

log = logging.getLogger(__name__)

# By these a cluster warns of the end of a job. SIGTERM says no more than that the run must end:
# SLURM also sends it for scancel.
WARN_OF_END = (signal.SIGUSR1, signal.SIGUSR2)
CLUSTER_SIGNALS = (signal.SIGTERM, *WARN_OF_END)
# Within so many seconds of the first signal those of a cluster repeat it: SLURM sends SIGTERM twice
# within 30 ms when it preempts a job or its time is up, and a launcher passes on what its processes
# got already.
REPEAT_SECONDS = 5.0


class Signals:
    """Keeps the first of ``ENDING_SIGNALS`` until the run can save; a second one ends it at once,
    unless it only repeats the first.

    Attributes:
        pending: the exception to end the run with; None as long as no signal has come, and on all
            ranks but 0.
        heard_on_other_rank: the same on the other ranks, which don't end by it. When rank 0 is gone, it says why.
    """

    def __init__(self) -> None:
        self.pending: KeyboardInterrupt | None = None
        self.heard_on_other_rank: KeyboardInterrupt | None = None
        # The handlers from before ``listen``, functions or numbers; empty while it does not listen.
        self._previous: dict[signal.Signals, Any] = {}

    def listen(self, *, is_rank_0: bool, on_signal: Callable[[], None]) -> None:
        """Take over ``ENDING_SIGNALS``, but for SIGHUP under ``nohup``.

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
        self.heard_on_other_rank = None
        owner = os.getpid()

        def hear(number: int, frame: FrameType | None) -> None:
            if os.getpid() == owner and self.heard_on_other_rank is None:
                self.heard_on_other_rank = exception_of(number)

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a data worker, which is forked with this handler
                return
            came_at = time.monotonic()

            def end_unless_repeated(number: int, frame: FrameType | None) -> None:
                if number in CLUSTER_SIGNALS and time.monotonic() < came_at + REPEAT_SECONDS:
                    return
                end_at_once(number, frame)

            for each in self._previous:
                # The next signal ends the run at once. Not so SIGHUP: closing a terminal sends it
                # twice, once by the terminal and once by the shell.
                is_hangup = each == signal.SIGHUP
                signal.signal(each, signal.SIG_IGN if is_hangup else end_unless_repeated)
            _write_to_terminal(
                f"\n{name_of(number)}: finishing this step, then saving last.ckpt; Ctrl-C, or SIGTERM after {REPEAT_SECONDS:g} s, to stop at once\n"
            )
            self.pending = exception_of(number)
            on_signal()

        for each in ENDING_SIGNALS:
            if each == signal.SIGHUP and signal.getsignal(each) == signal.SIG_IGN:
                continue  # nohup
            self._previous[each] = signal.signal(each, handle if is_rank_0 else hear)

    def release(self, *, leaves: bool = False) -> None:
        """Give the signals back to the handlers from before.

        If a signal has come, those of a cluster are ignored instead, since another one may only
        repeat the first. Lightning restores their handlers when the trainer ends.

        Args:
            leaves: an error ends this process, which is not rank 0. The signals of a cluster are
                ignored then, too: they would end it before it has told its error.
        """
        has_come = leaves or self.pending is not None or self.heard_on_other_rank is not None
        for each, handler in self._previous.items():
            is_ignored = each in CLUSTER_SIGNALS and has_come
            signal.signal(each, signal.SIG_IGN if is_ignored else handler)
        self._previous = {}


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler: raise what ends the program with the right exit code.

    After a signal of a cluster, others of it are ignored: they would break off what the program
    still closes.
    """
    if number in CLUSTER_SIGNALS:
        ignore_cluster_signals()
    raise exception_of(number)


def ignore_cluster_signals() -> None:
    """Ignore them from now on: this process ends by itself, and has still to say why. A launcher
    sends them to the others of a process that has failed.
    """
    if threading.current_thread() is threading.main_thread():
        for each in CLUSTER_SIGNALS:
            signal.signal(each, signal.SIG_IGN)


def exception_of(number: int) -> KeyboardInterrupt:
    """What ends a process as a signal does."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def number_of(stop: KeyboardInterrupt) -> int:
    """The number of the signal that an exception stands for."""
    return stop.number if isinstance(stop, Terminated) else signal.SIGINT


def name_of(number: int) -> str:
    """What a user calls a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


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
