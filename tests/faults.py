"""Real faults for the command line: named by class path in a test's configuration."""

import os
import signal
import time

from lightning.pytorch import Callback


class KillAt(Callback):
    """``kill -9`` of the own process: in the middle of a step (the gradient is there, the weights have not moved), or of a
    validation.

    Args:
        step: optimiser steps done before.
        within: ``step`` or ``validation``.
    """

    def __init__(self, step: int, within: str = "step") -> None:
        self.step, self.within = step, within

    def on_after_backward(self, trainer, pl_module) -> None:
        if trainer.global_step == self.step and self.within == "step":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step and self.within == "validation":
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(Callback):
    """Each step takes at least 0.2 s, and says so.

    Args:
        seconds: to sleep.
    """

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds = seconds

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        print(f"step {trainer.global_step}", flush=True)
        time.sleep(self.seconds)
