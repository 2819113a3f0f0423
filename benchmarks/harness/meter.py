"""Counts and times the steps of one side of a comparison, in the side's own process; see
compare.py.
"""

import inspect
import os
import time
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ltr.models.encoder.attention import Layout


class Step(NamedTuple):
    """What a step took.

    Attributes:
        seconds: from the end of the step before to its own, so that loading data counts.
        others: the share of all cores that other processes used.
        tokens: real ones, of texts that are cut to their longest length.
        squares: the squared lengths of the texts, summed up.
        with_padding: all that the encoder read, padding included.
    """

    seconds: float
    others: float
    tokens: float
    squares: float
    with_padding: float


class _Mark(NamedTuple):
    """The end of a step.

    Attributes:
        clock: seconds, or on a GPU an event that is recorded when the GPU is done with the step.
        wall: seconds.
        used: seconds that all processes together have used, of all cores.
        used_here: those of this process.
    """

    clock: Any
    wall: float
    used: float
    used_here: float


class Meter:
    """Counts and times the steps of a side, in the side's own process.

    Args:
        pipe: to the process that lets the sides take turns. After the last step of a turn the list
            of its steps is sent there, and the number of steps of the next turn is awaited, 0 for
            the end.
        device: ``cpu`` or ``cuda``. There, steps end when the GPU is done with them, and nobody
            waits for it meanwhile.
        warm_up: steps at the start that are not counted.
    """

    def __init__(self, pipe: Connection, device: str, warm_up: int) -> None:
        self._pipe = pipe
        self._cuda = device == "cuda"
        self._begin(warm_up)

    def watch(self, encoder: nn.Module) -> None:
        """Count what goes into an encoder of transformers, padded or packed."""
        base = encoder.base_model
        forward = encoder.base_model.forward
        signature = inspect.signature(forward)

        @wraps(forward)
        def counted(*args: Any, **options: Any) -> Any:
            # Within a backward pass activations are recomputed: those texts were counted before.
            is_in_backward = torch._C._current_graph_task_id() != -1
            if not is_in_backward:
                inputs = signature.bind(*args, **options).arguments
                self._count(inputs, options.get("packed_layout"))
            return forward(*args, **options)

        # A hook would miss those who call forward themselves, as sentence-transformers does.
        base.forward = counted

    def step_ended(self, extra: float = 0.0) -> bool:
        """Call at the end of each step: whether there is to be another one, perhaps after a wait.

        Args:
            extra: seconds to be added to the step.
        """
        self._marks.append(self._mark())
        self._extras.append(extra)
        self._calls.append([])
        if len(self._extras) < self._n_steps:
            return True
        self._pipe.send(self._steps())
        self._begin(self._pipe.recv())
        return self._n_steps > 0

    def _begin(self, n_steps: int) -> None:
        """Begin a turn. The inputs of a step are counted before it ends: ``_calls`` ends with the
        list of the step that runs, and ``_marks`` begins with the start of the first step.
        """
        self._n_steps = n_steps
        self._extras: list[float] = []
        self._calls: list[list[Tensor]] = [[]]
        self._marks = [self._mark()]

    def _mark(self) -> _Mark:
        clock: Any = time.perf_counter()
        if self._cuda:
            clock = torch.cuda.Event(enable_timing=True)
            clock.record()
        return _Mark(clock, time.perf_counter(), _used(), time.process_time())

    def _count(self, inputs: dict[str, Any], layout: "Layout | None") -> None:
        ids = inputs["input_ids"]
        if layout is not None:
            lengths = layout.offsets.diff().long()
            tokens = lengths.sum()
            squares = lengths.square().sum()
        elif inputs.get("position_ids") is not None:
            # Packed: the places in a text count up from 0, and 1 + 3 + 5 + ... over them is the
            # square of its length.
            place = inputs["position_ids"] - inputs["position_ids"].min()
            tokens = place.new_full((), ids.numel())
            squares = (2 * place + 1).sum()
        else:
            lengths = inputs["attention_mask"].sum(dim=1)
            tokens = lengths.sum()
            squares = lengths.square().sum()
        self._calls[-1].append(torch.stack([tokens, squares, torch.full_like(tokens, ids.numel())]))

    def _steps(self) -> list[Step]:
        if self._cuda:
            torch.cuda.synchronize()
        steps = []
        for i, extra in enumerate(self._extras):
            begin = self._marks[i]
            end = self._marks[i + 1]
            if self._cuda:
                seconds = begin.clock.elapsed_time(end.clock) / 1e3
            else:
                seconds = end.clock - begin.clock
            others = (end.used - begin.used) - (end.used_here - begin.used_here)
            # The kernel counts the use of each core in hundredths of a second: so much may be
            # rounding.
            others = max(0.0, others - 0.01 * _n_cores())
            share = others / (_n_cores() * (end.wall - begin.wall))
            counts = torch.stack(self._calls[i]).sum(dim=0).tolist()
            steps.append(Step(seconds + extra, share, *counts))
        return steps


# The columns of /proc/stat that are time in use: user, nice, system, irq, softirq, and steal, which
# other guests of the machine took. Column 0 is the name of the core.
IN_USE = (1, 2, 3, 6, 7, 8)


def _core_lines() -> list[list[str]]:
    """The columns of /proc/stat for all cores together, then for each; empty where there is no such
    file.
    """
    stat = Path("/proc/stat")
    if not stat.is_file():
        return []
    return [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]


def _used() -> float:
    """Seconds that all processes used, of all cores."""
    lines = _core_lines()
    if not lines:
        return 0.0
    ticks = sum(float(lines[0][column]) for column in IN_USE)
    return ticks / os.sysconf("SC_CLK_TCK")


def _n_cores() -> int:
    return max(1, len(_core_lines()) - 1)
