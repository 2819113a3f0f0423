"""A run of several processes ends as a whole: what has ended one of them is known to all."""

import json
import os
import secrets
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed import PrefixStore, TCPStore

from ltr.processes import by_rank_0, rank, world_size
from ltr.run import lightning_internals as internals
from ltr.run.signals import how_ended, number_of

T = TypeVar("T")

# How long a process waits for another one in a collective operation. It is what torch takes for NCCL,
# and leaves a node the time to make a cache that another one has already.
LONGEST_WAIT = timedelta(minutes=10)
POLL_SECONDS = 0.5
# A roll call waits so long for the answers: each process looks for it every POLL_SECONDS.
ROLL_SECONDS = 4 * POLL_SECONDS
# The store may not answer, where the machine that holds it is gone.
STORE_SECONDS = 5.0
# So long a process may go on after another has ended: it writes what it has begun, and ends where it
# next needs the other.
GRACE_SECONDS = 30.0

# Names in the store, and who writes and reads them.
#
# * Who ends the run writes ENDED, which stays as the first one wrote it, and its KNOWN. The others
#   read it, write their KNOWN and end. Rank 0, with which the store may end, waits up to
#   STORE_SECONDS for all KNOWN.
# * A signal to another process than rank 0 is ASKED; rank 0 then gets it, too.
# * Who fails in a collective operation writes WAITS, calls the ROLL, and waits a while for the HERE
#   or WAITS of the others. Who writes neither is gone.
# * Who has come to its end by itself writes DONE. For one that was killed, the process that has
#   started it writes ENDED.
ENDED = "ended"  # the first ending
ASKED = "asked"  # the signal that has come to another process than rank 0
ROLL = "roll"
HERE = "here"  # this rank has heard it
WAITS = "waits"  # a collective operation has failed in this rank
KNOWN = "known"  # this rank knows the ending, or is gone
DONE = "done"  # this rank has come to its end by itself


class Ending(NamedTuple):
    """What has ended the run.

    Attributes:
        number: of the signal that ended it; 0 without one.
        line: what all processes say of it; empty for a signal.
    """

    number: int = 0
    line: str = ""

    def exit_code(self) -> int:
        """Of a process that ends by it."""
        return 128 + self.number if self.number else 2


class Roll(NamedTuple):
    """What the processes know of each other where a collective operation has failed.

    Attributes:
        gone: the ranks that don't answer.
        absent: those that answer, and are not in the operation.
    """

    gone: list[int]
    absent: list[int]


class EndWatch:
    """Watches from a thread whether another process of the run has ended, by the store through which
    the processes have met. This one then ends with it: by itself, where it needs the other next, or
    after ``GRACE_SECONDS``.

    A signal to another process than rank 0 is passed on to that one, which saves and ends the run.

    Args:
        signal_here: the signal that has come to this process while it trains; None without.

    Attributes:
        place: where the trainer was when an error ended it, in words.
        started: the other processes by rank from 1, where this one has started them. One that was
            killed can tell nobody.
    """

    def __init__(self, signal_here: Callable[[], KeyboardInterrupt | None]) -> None:
        self._signal_here = signal_here
        self.place = "before it began"
        self.started: Sequence[subprocess.Popen[bytes]] = []
        self._store: PrefixStore | None = None
        self._ending: Ending | None = None  # that the thread has found
        self._has_answered = False  # the call of the roll
        # Of a signal that came to another process than rank 0: whether that one has passed it on; on
        # rank 0, whether it has taken one.
        self._signal_is_handled = False
        self._over = threading.Event()
        self._working_thread = 0

    def begin(self) -> None:
        """Begin to watch, once the processes have met. Does nothing where they have not, or where it
        watches already.
        """
        if world_size() == 1 or self._store is not None:
            return
        token = by_rank_0(lambda: secrets.token_hex(4))  # a store may outlive several runs
        try:
            client = TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                timeout=timedelta(seconds=STORE_SECONDS),
            )
        except (KeyError, RuntimeError):  # the processes have met elsewhere
            return
        self._store = PrefixStore(f"ltr/{token}", client)
        self._working_thread = threading.get_ident()
        threading.Thread(target=self._watch, args=(self._store,), daemon=True).start()

    def finish(self) -> None:
        """Watch no more: the work of this process is done, or it fails and says so."""
        self._over.set()
        store = self._store
        if store is not None:
            _in_time(lambda: store.set(f"{DONE}/{rank()}", ""), None)

    def tell(self, ending: Ending, gone: Sequence[int] = ()) -> None:
        """Tell the others what ends the run, unless they know of an ending before.

        Args:
            ending: begins with this process, or is what it has found out.
            gone: the ranks that need not be told.
        """
        self.finish()
        store = self._store
        if store is None:
            return
        all_know = [f"{KNOWN}/{number}" for number in range(world_size())]

        def say() -> None:
            store.compare_set(ENDED, "", json.dumps(ending))
            for number in (rank(), *gone):
                store.set(f"{KNOWN}/{number}", "")
            # The store may end with rank 0.
            while rank() == 0 and not store.check(all_know):
                time.sleep(POLL_SECONDS / 5)

        _in_time(say, None)

    def rank_0_is_gone(self) -> bool:
        """Whether rank 0 has ended without a word: its store does not answer, and nothing
        was told before.
        """
        store = self._store
        if store is None or self._ending is not None or rank() == 0:
            return False
        # Whatever it says, it is there.
        is_silent = not _in_time(lambda: store.check([ENDED]) or True, False)
        return is_silent and self._ending is None  # the thread may have read one meanwhile

    def find_and_tell_ending(self, lost: str, error: Exception, limit: timedelta | None) -> Ending:
        """What ends the run, where a collective operation has failed in this process; the others are
        told, too.

        Args:
            lost: what the error says of the connection to another process.
            error: of the operation.
            limit: of waiting in it.
        """
        store = self._store
        # The thread may know it already, and the store may be gone with rank 0.
        ending = self._ending
        roll = Roll(gone=[], absent=[]) if ending is not None else self._call_roll()
        if ending is None and store is not None:
            ending = self._ending or _in_time(lambda: _read(store), None)
        if ending is None:
            me = f"process {rank()} of {world_size()}"
            if roll.absent and not roll.gone:
                line = f"{_named(roll.absent)} of {world_size()} did not come within {limit} to where {me} waited: {operation_of(error)}, {self.place}; one that is only slow needs a longer limit (timeout of trainer.strategy)"
            else:
                names = _named(roll.gone) if roll.gone else "another one"
                line = f"{me} lost the connection to {names} ({lost}), which has ended or can't be reached; its own output says why"
            ending = Ending(line=line)
        self.tell(ending, roll.gone)
        return ending

    def _call_roll(self) -> Roll:
        """Find out which processes are there, where a collective operation has failed here."""
        store = self._store
        others = [other for other in range(world_size()) if other != rank()]
        if store is None:
            return Roll(gone=[], absent=[])

        def ask() -> Roll:
            store.set(f"{WAITS}/{rank()}", "")
            store.set(ROLL, "")
            waiting: list[int] = []
            until = time.monotonic() + ROLL_SECONDS
            while time.monotonic() < until:
                waiting = [other for other in others if store.check([f"{WAITS}/{other}"])]
                if store.check([ENDED]):
                    return Roll(gone=[], absent=[])
                if len(waiting) == len(others):
                    break
                time.sleep(POLL_SECONDS / 5)
            here = [other for other in others if store.check([f"{HERE}/{other}"])]
            gone = [other for other in others if other not in {*here, *waiting}]
            return Roll(gone, absent=[other for other in here if other not in waiting])

        # Where the store does not answer, rank 0, which holds it, is gone.
        return _in_time(ask, Roll(gone=[0], absent=[]))

    def _watch(self, store: PrefixStore) -> None:
        fallback = Ending(line="process 0 has ended, or can't be reached; its own output says why")
        with suppress(RuntimeError):  # of a store that is gone
            while not store.check([ENDED]):
                if self._over.wait(POLL_SECONDS):
                    return
                if not self._has_answered and store.check([ROLL]):
                    store.set(f"{HERE}/{rank()}", "")
                    self._has_answered = True
                self._tell_for_started(store)
                if rank() == 0:
                    self._take_signal_of_others(store)
                else:
                    self._pass_signal_on(store)
            self._ending = _read(store)
            store.set(f"{KNOWN}/{rank()}", "")
        if not self._over.wait(GRACE_SECONDS):
            self._end_at_once(self._ending or fallback)

    def _pass_signal_on(self, store: PrefixStore) -> None:
        """Tell rank 0 of a signal that has come to this process, once."""
        signal_here = self._signal_here()
        if signal_here is not None and not self._signal_is_handled:
            store.set(ASKED, str(number_of(signal_here)))
            self._signal_is_handled = True

    def _take_signal_of_others(self, store: PrefixStore) -> None:
        """Let a signal that has come to another process come to this one, rank 0, too, once; unless
        one has come here already.
        """
        signal_here = self._signal_here()
        if not self._signal_is_handled and store.check([ASKED]):
            self._signal_is_handled = True
            if signal_here is None:
                os.kill(os.getpid(), int(store.get(ASKED)))

    def _tell_for_started(self, store: PrefixStore) -> None:
        """Tell all processes of a started one that could not tell its end itself: the system has
        killed it, as it does where memory runs out, or a library has.
        """
        for number, process in enumerate(self.started, start=1):
            code = process.poll()
            if code and not store.check([f"{DONE}/{number}"]):
                store.set(f"{KNOWN}/{number}", "")
                line = f"process {number} of {world_size()} {how_ended(code)}; its own output or the log of the system says why"
                store.compare_set(ENDED, "", json.dumps(Ending(line=line)))

    def _end_at_once(self, ending: Ending) -> NoReturn:
        """End this process, whatever it does. It may hang where no exception reaches it."""
        if not ending.number:
            place = _place_of(self._working_thread)
            line = f"ltr [rank {rank()}]: {ending.line}; process {rank()} was {place}, and ends"
            with suppress(OSError):
                os.write(2, f"{line}\n".encode())
        os._exit(ending.exit_code())


class EndWatchCallback(Callback):
    """Begins the watch once a trainer has let the processes meet. Where an error ends the trainer,
    it notes the place.
    """

    def __init__(self, end_watch: EndWatch) -> None:
        self._end_watch = end_watch

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end_watch.begin()
        if world_size() > 1:
            internals.leave_endings_to_us(trainer)
            self._end_watch.started = internals.started_processes(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._end_watch.place = internals.place(trainer)


def operation_of(error: BaseException) -> str:
    """The collective operation that has failed with an error."""
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if Path(code.co_filename).name == "distributed_c10d.py" and code.co_name != "wrapper":
            name = code.co_name
    return name or "the sum of gradients"


def _named(ranks: Sequence[int]) -> str:
    """Processes by their numbers."""
    word = "process" if len(ranks) == 1 else "processes"
    return f"{word} {', '.join(map(str, ranks))}"


def _place_of(thread: int) -> str:
    """Where a thread is."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "at its end"
    code = frame.f_code
    return f"in {code.co_name} ({code.co_filename}:{frame.f_lineno})"


def _read(store: PrefixStore) -> Ending | None:
    if not store.check([ENDED]):
        return None
    return Ending(*json.loads(store.get(ENDED)))


def _in_time(ask: Callable[[], T], otherwise: T) -> T:
    """What a question to the store gives; ``otherwise`` where the store is gone or is too slow."""
    answer = otherwise

    def answered() -> None:
        nonlocal answer
        with suppress(RuntimeError):  # of a store that is gone
            answer = ask()

    thread = threading.Thread(target=answered, daemon=True)
    thread.start()
    thread.join(STORE_SECONDS)
    return answer
