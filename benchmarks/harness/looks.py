"""The steps of one side alone, and what one of them asks of the GPU."""

import multiprocessing
from multiprocessing.connection import Connection

from harness.meter import Meter, Step
from harness.pretended_gpu import Counts
from harness.profiled_gpu import ProfiledGPU
from harness.sides import Setting, Side


class LookingMeter(Meter):
    """A meter that on a GPU also counts the launches and waits of the last step of the warm-up. It
    adds some launches itself: ten for each time that texts are read.

    Attributes:
        counts: of that step; nothing on a CPU.
        gpu: counts, while it is open.
    """

    def __init__(self, pipe: Connection, device: str, warm_up: int) -> None:
        super().__init__(pipe, device, warm_up)
        self.counts = Counts()
        self.gpu = ProfiledGPU()
        self._looks = device == "cuda"
        self._before = warm_up - 1  # steps

    def step_ended(self, extra: float = 0.0) -> bool:
        self.gpu.counts = None
        goes_on = super().step_ended(extra)
        self._before -= 1
        if self._before == 0 and self._looks:
            self.gpu.counts = self.counts
        return goes_on


def steps_and_counts(side: Side, setting: Setting) -> tuple[list[Step], Counts]:
    """Let one side take its steps in this process: nobody else has the GPU."""
    ours, of_meter = multiprocessing.Pipe()
    for n_steps in (setting.steps, 0):
        ours.send(n_steps)
    meter = LookingMeter(of_meter, setting.device, setting.warm_up)
    with meter.gpu:
        side.run(meter, setting, side)
    turns = []
    while ours.poll():
        turns.append(ours.recv())
    _, steps = turns  # the first ones are the warm-up
    return steps, meter.counts
