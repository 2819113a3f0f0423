"""Real faults for the command line: named by class path in a test's configuration. ``step`` is how
many optimiser steps were done before, and ``seconds`` how long a fault takes, at most.
"""

import atexit
import os
import pkgutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Callback

from ltr.callbacks import HardNegativeMining
from ltr.data import artefact
from ltr.errors import InputError
from ltr.mining import miner, refresh
from ltr.run import together
from ltr.run.checkpoints import Checkpoints
from ltr.search import embed_texts, encoding_worker


class WaitAt(Callback):
    """Writes a file when a moment has come, ``within`` a ``step``, ``validation`` or ``test``, and
    takes its time there until a signal ends it.
    """

    def __init__(
        self, file: str, step: int = 0, within: str = "step", seconds: float = 2.0
    ) -> None:
        self.file = Path(file)
        self.step = step
        self.within = within
        self.seconds = seconds

    def on_after_backward(self, trainer, pl_module) -> None:
        self._wait(trainer, "step")

    def on_validation_batch_end(self, trainer, *args) -> None:
        self._wait(trainer, "validation")

    def on_test_batch_end(self, trainer, *args) -> None:
        self._wait(trainer, "test")

    def _wait(self, trainer, where: str) -> None:
        if self.within == where and trainer.global_step == self.step and not self.file.exists():
            self.file.write_text("")
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                time.sleep(0.01)


class AskedInValidation(Callback):
    """Gets SIGTERM in the validation after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_validation_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGTERM)


class SignalAt(Callback):
    """Sends its own process a signal so many ``times``, without a pause: ``within`` a ``step``, or in
    ``setup``, before training.
    """

    def __init__(
        self, within: str = "step", step: int = 0, by: str = "SIGTERM", times: int = 1
    ) -> None:
        self.within = within
        self.step = step
        self.by = by
        self.left = times

    def setup(self, trainer, pl_module, stage) -> None:
        self._send(trainer, "setup")

    def on_after_backward(self, trainer, pl_module) -> None:
        self._send(trainer, "step")

    def _send(self, trainer, where: str) -> None:
        while self.within == where and trainer.global_step == self.step and self.left:
            self.left -= 1
            signal.raise_signal(signal.Signals[self.by])


class SlowRefresh(Callback):
    """Takes its time in each refresh of negatives, while embeddings lie on the disk and in the midst
    of writing. A file is there as long as a refresh goes on.
    """

    def __init__(self, file: str, seconds: float = 0.3) -> None:
        self.file = Path(file)
        self.seconds = seconds

    def on_fit_start(self, trainer, pl_module) -> None:
        refreshed = refresh.RefreshFolders.mine_or_open
        encode = miner.encode_everywhere
        folder_once = artefact.folder_once

        def marked(*args, **options):
            self.file.write_text("")
            found = refreshed(*args, **options)
            self.file.unlink(missing_ok=True)  # of several processes the first one does
            return found

        def slow_encode(*args):
            time.sleep(self.seconds)
            return encode(*args)

        def slow_folder(path, build):
            return folder_once(path, lambda temporary: (build(temporary), time.sleep(self.seconds)))

        refresh.RefreshFolders.mine_or_open = marked
        miner.encode_everywhere = slow_encode
        artefact.folder_once = slow_folder


class WaitingMiner(HardNegativeMining):
    """``ltr mine`` says by a file that it has begun, and waits a minute, until a signal ends it. If
    the file is there already, it does not wait.
    """

    def __init__(self, file: str, **options) -> None:
        super().__init__(**options)
        self.file = Path(file)

    def on_predict_start(self, trainer, pl_module) -> None:
        if not self.file.exists():
            self.file.write_text("")
            time.sleep(60)


class Watched(Callback):
    """Writes what each process has encoded and trained on: a file per rank, with how many texts,
    and the batches. On the rank of a ``fault`` every encoding fails.
    """

    def __init__(self, folder: str, fault: int | None = None) -> None:
        self.folder = Path(folder)
        self.fault = fault
        self.n_texts = 0
        self.batches = []

    def on_fit_start(self, trainer, pl_module) -> None:
        real = embed_texts.encode_batches

        def watched(*args):
            if trainer.global_rank == self.fault:
                raise InputError("a fault")
            for places, found in real(*args):
                self.n_texts += len(places)
                yield places, found

        embed_texts.encode_batches = encoding_worker.encode_batches = watched

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        rows = batch.query_rows.tolist(), batch.doc_rows.tolist()
        self.batches.append((trainer.global_step, *rows))

    def on_train_end(self, trainer, pl_module) -> None:
        torch.save((self.n_texts, self.batches), self.folder / f"{trainer.global_rank}.pt")


class WaitFor(Callback):
    """Waits for a file after a step."""

    def __init__(self, file: str, step: int) -> None:
        self.file = Path(file)
        self.step = step

    def on_train_batch_end(self, trainer, *args) -> None:
        while trainer.global_step == self.step and not self.file.exists():
            time.sleep(0.1)


class SlowSteps(Callback):
    """Takes its time behind each step: a kill then meets a step, and seldom the start or the end."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_batch_end(self, trainer, *args) -> None:
        time.sleep(self.seconds)


class WaitForSignal(Callback):
    """Says by files ``step=N`` that steps have come, and waits in each of them until the run has got
    a signal. A step whose file is there already is not waited in.
    """

    def __init__(self, folder: str, steps: list[int], seconds: float = 300.0) -> None:
        self.folder = Path(folder)
        self.steps = steps
        self.seconds = seconds

    def on_after_backward(self, trainer, pl_module) -> None:
        file = self.folder / f"step={trainer.global_step}"
        if trainer.global_step not in self.steps or not trainer.is_global_zero or file.exists():
            return
        file.touch()
        (checkpoints,) = (one for one in trainer.callbacks if isinstance(one, Checkpoints))
        until = time.monotonic() + self.seconds
        while checkpoints._signals.pending is None and time.monotonic() < until:
            time.sleep(0.05)


class FailsAlone(Callback):
    """One process of a run fails ``within`` a ``step`` or the ``sanity check``, the others do not.

    Args:
        by: ``hang``, ``memory``, ``error``, or the name of a signal.
        grace: seconds that a process which hangs has until it is ended.
        hanging: ranks that wait meanwhile where no exception reaches them, as in an operation of
            NCCL.
        signalled_in: a function, by its dotted name. Where another rank calls it after that, SIGTERM
            comes to it, as from a launcher that ends the others.
    """

    def __init__(
        self,
        by: str,
        rank: int = 1,
        within: str = "step",
        step: int = 3,
        grace: float = 2.0,
        hanging: Sequence[int] = (),
        signalled_in: str | None = None,
    ) -> None:
        self.signalled_in = signalled_in
        self.by = by
        self.hanging = hanging
        self.rank = rank
        self.within = within
        self.step = step
        together.GRACE_SECONDS = grace

    def on_sanity_check_start(self, trainer, pl_module) -> None:
        if self.within == "sanity check":
            self._fail(trainer)

    def on_train_batch_start(self, trainer, *args) -> None:
        if self.within == "step" and trainer.global_step == self.step:
            self._fail(trainer)

    def _fail(self, trainer) -> None:
        if trainer.global_rank in self.hanging:
            time.sleep(600)
        if trainer.global_rank != self.rank:
            if self.signalled_in is not None:
                _send_sigterm_in(self.signalled_in)
            return
        if self.by == "hang":
            time.sleep(600)
        elif self.by == "memory":
            torch.empty(2**60, dtype=torch.uint8)
        elif self.by == "error":
            raise RuntimeError("a mistake of my own")
        else:
            signal.raise_signal(signal.Signals[self.by])


def _send_sigterm_in(name: str) -> None:
    """Let SIGTERM come to this process wherever it calls a function."""
    place, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(place)
    function = getattr(owner, attribute)

    def signalled(*args, **options):
        signal.raise_signal(signal.SIGTERM)
        return function(*args, **options)

    setattr(owner, attribute, signalled)


class CrashesAtExit(Callback):
    """The second process of a run writes a file and crashes when its work is done and its program
    ends; the first one has work left.
    """

    def __init__(self, file: str) -> None:
        self.file = Path(file)
        together.GRACE_SECONDS = 1.0

    def teardown(self, trainer, pl_module, stage) -> None:
        if trainer.global_rank == 1:
            atexit.register(self._crash)
        else:
            time.sleep(10)

    def _crash(self) -> None:
        self.file.write_text("")
        os.abort()


class FillsDisk(Callback):
    """After a step, the disk of a folder has no room left but for a few kilobytes: a file has it."""

    def __init__(self, file: str, step: int) -> None:
        self.file = Path(file)
        self.step = step

    def on_train_batch_start(self, trainer, *args) -> None:
        if trainer.global_step == self.step and trainer.is_global_zero:
            free = os.statvfs(self.file.parent)
            with open(self.file, "wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, (free.f_bavail - 2) * free.f_frsize)


class OtherClock(Callback):
    """The clock of one process, by its rank of SLURM, is ahead."""

    def __init__(self, seconds: float, rank: int = 1) -> None:
        if os.environ["SLURM_PROCID"] == str(rank):
            right = time.time
            time.time = lambda: right() + seconds
