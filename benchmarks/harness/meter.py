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
        seen: tokens with padding.
    """

    seconds: float
    others: float
    tokens: float
    squares: float
    seen: float


class _Mark(NamedTuple):
    """A moment: seconds (or an event of CUDA), of the cores in use, and of this process's share in
    it.
    """

    clock: Any
    wall: float
    busy: float
    own: float


class Meter:
    """Counts and times the steps of a side, in the side's own process.

    Args:
        pipe: takes the number of steps of the next turn, 0 for none, and gives the list of them.
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
            if (
                torch._C._current_graph_task_id() == -1
            ):  # within a backward pass texts are only read again
                self._count(
                    signature.bind(*args, **options).arguments, options.get("packed_layout")
                )
            return forward(*args, **options)

        # a hook would miss those who call forward themselves, as sentence-transformers does
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
        self._n_steps = n_steps
        self._extras: list[float] = []
        self._calls: list[list[Tensor]] = [[]]
        self._marks = [self._mark()]

    def _mark(self) -> _Mark:
        clock: Any = time.perf_counter()
        if self._cuda:
            clock = torch.cuda.Event(enable_timing=True)
            clock.record()
        return _Mark(clock, time.perf_counter(), _busy(), time.process_time())

    def _count(self, inputs: dict[str, Any], layout: "Layout | None") -> None:
        ids = inputs["input_ids"]
        if layout is not None:
            lengths = layout.offsets.diff().long()
            tokens = lengths.sum()
            squares = lengths.square().sum()
        elif (
            inputs.get("position_ids") is not None
        ):  # packed: 1 + 3 + 5 + … is the square of a length
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
        for begin, end, extra, calls in zip(
            self._marks[:-1], self._marks[1:], self._extras, self._calls[:-1], strict=True
        ):
            seconds = (
                begin.clock.elapsed_time(end.clock) / 1e3 if self._cuda else end.clock - begin.clock
            )
            others = (end.busy - begin.busy) - (end.own - begin.own)
            # The kernel counts the use of each core in hundredths of a second.
            share = max(0.0, others - 0.01 * _cores()) / (_cores() * (end.wall - begin.wall))
            steps.append(Step(seconds + extra, share, *torch.stack(calls).sum(dim=0).tolist()))
        return steps


def _stat() -> list[list[str]]:
    """Lines of /proc/stat about the cores, the sum of all first; none where there is no such file."""
    stat = Path("/proc/stat")
    return (
        [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        if stat.is_file()
        else []
    )


def _busy() -> float:
    """Seconds that all processes used, of all cores: user, nice, system, irq, softirq, and what
    other guests took.
    """
    lines = _stat()
    return (
        sum(float(lines[0][i]) for i in (1, 2, 3, 6, 7, 8)) / os.sysconf("SC_CLK_TCK")
        if lines
        else 0.0
    )


def _cores() -> int:
    return max(1, len(_stat()) - 1)
