"""Time losses that do the same work: each side in a process of its own, the sides taking turns step
by step.

Memory is the peak during a step minus what was resident before it, inputs included. Steps that
other processes slowed down are dropped. Before anything is timed, the values and gradients of sides
that should agree are compared.
"""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.machine import resident
from harness.tables import row

SECONDS = 6  # of measured steps per case, but at least MIN_STEPS of each side
MIN_STEPS = 2
MAX_STEPS = 41
REPEATS = 5  # at most, of the faster side in its turn
SHORTEST = 0.02  # seconds of one measurement: shorter steps are repeated within it
LIMIT = 14 << 30  # bytes that one side may hold: it fails instead of taking the machine down

ENOUGH_OF_A_CPU = 0.9  # a step that had less of one is dropped

# The leaf that gets the gradient, and what computes the loss.
Work = tuple[Tensor, Callable[[], Tensor]]


class Side(NamedTuple):
    """One contestant: ``build(loss, *shape)`` makes its inputs and its work, the same inputs for
    every side of a case.
    """

    build: Callable[..., Work]
    loss: str
    shape: tuple[int, ...]


class Case(NamedTuple):
    """Sides by their names; the others are compared with the first."""

    name: str
    sides: dict[str, Side]
    agree: bool = True
    note: str = ""


class First(NamedTuple):
    """What the first step of a side gave."""

    value: float
    gradient: Any
    peak: int
    seconds: float
    share: float  # of a CPU


class Steps(NamedTuple):
    """A measurement of one or several steps."""

    seconds: float  # of each
    share: float  # of a CPU


def step(leaf: Tensor, loss: Callable[[], Tensor]) -> float:
    """Forward and backward."""
    leaf.grad = None
    value = loss()
    value.backward()
    return value.item()


def serve(pipe: Connection, side: Side) -> None:
    """In the process of a side: send a First; then await a number of steps, take them and send
    their Steps, again and again until it is 0. A side that cannot run sends a line instead.
    """
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    try:
        # A tiny step first: it loads the code, which does not count.
        torch.manual_seed(0)
        tiny_shape = [min(n, 8) for n in side.shape]
        step(*side.build(side.loss, *tiny_shape))
        torch.manual_seed(1)
        leaf, loss = side.build(side.loss, *side.shape)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = resident("VmRSS")
        start = time.perf_counter()
        start_cpu = time.process_time()
        value = step(leaf, loss)
        seconds = time.perf_counter() - start
        cpu = time.process_time() - start_cpu
        peak = resident("VmHWM") - before
        pipe.send(First(value, leaf.grad.numpy(), peak, seconds, cpu / seconds))
        while n_steps := pipe.recv():
            start = time.perf_counter()
            start_cpu = time.process_time()
            for _ in range(n_steps):
                step(leaf, loss)
            seconds = time.perf_counter() - start
            cpu = time.process_time() - start_cpu
            pipe.send(Steps(seconds / n_steps, cpu / seconds))
    except ImportError as error:
        pipe.send(f"absent: {error}")
    except (MemoryError, RuntimeError) as error:
        pipe.send(f"cannot run: {str(error).splitlines()[0]}")


def check_agreement(case: Case, firsts: Sequence[First]) -> None:
    """Values within 1e-4. Gradients within 10% of their length: of two negatives equally far but
    for rounding, the sides may choose either. In float64 they choose the same one, and the
    gradients are equal.
    """
    value = firsts[0].value
    gradient = firsts[0].gradient
    for first in firsts[1:]:
        error = abs(first.value - value) / abs(value)
        assert error < 1e-4, f"{case.name}: the values {value} and {first.value} differ"
        error = np.linalg.norm(first.gradient - gradient) / np.linalg.norm(gradient)
        assert error < 0.1, f"{case.name}: the gradients differ by {error:.1e} of their length"


def median(steps: list[Steps]) -> tuple[float, str]:
    """Median seconds of the steps that had a CPU for themselves (of all steps if these are too
    few), and 'kept/taken'.
    """
    kept = [measured.seconds for measured in steps if measured.share >= ENOUGH_OF_A_CPU]
    if len(kept) < max(2, len(steps) / 3):
        kept = [measured.seconds for measured in steps]
    return statistics.median(kept), f"{len(kept)}/{len(steps)}"


def measure(case: Case, preload: Sequence[str], seconds: float = SECONDS) -> None:
    """Print the rows of a case.

    Args:
        case: what is compared.
        preload: modules that are slow to import; imported once, for the processes of all sides.
        seconds: of measured steps, but every side takes at least ``MIN_STEPS``.
    """
    pipes, firsts = _start(case, preload, seconds)
    if case.agree and firsts:
        check_agreement(case, list(firsts.values()))
    steps = _take_turns(pipes, firsts, seconds)
    _print_rows(case, firsts, {name: median(of_side) for name, of_side in steps.items()})


def _start(
    case: Case, preload: Sequence[str], seconds: float
) -> tuple[dict[str, Connection], dict[str, First]]:
    """A pipe to the process of every side that can run, and what its first step gave."""
    # A server imports once, and processes then start in no time. Tiny runs, of 0 seconds, are
    # forked from this one.
    context = get_context("forkserver" if seconds else "fork")
    context.set_forkserver_preload(list(preload))
    pipes = {}
    firsts = {}
    for name, side in case.sides.items():
        pipe, end = context.Pipe()
        context.Process(target=serve, args=(end, side), daemon=True).start()
        end.close()
        try:
            answer = pipe.recv()
        except EOFError:
            answer = "cannot run: its process died"
        if isinstance(answer, First):
            pipes[name] = pipe
            firsts[name] = answer
        else:
            print(f"| {case.name} | {name}: {answer} | | | | | |", flush=True)
    return pipes, firsts


def _take_turns(
    pipes: dict[str, Connection], firsts: dict[str, First], budget: float
) -> dict[str, list[Steps]]:
    """The measurements of each side, taken in turn until ``budget`` seconds are over."""
    n_steps = {}  # of a measurement
    turn = {}  # seconds of a measurement
    for name, first in firsts.items():
        n_steps[name] = max(1, round(SHORTEST / first.seconds))
        turn[name] = n_steps[name] * first.seconds
    # In its turn a fast side measures several times, for about as long as the slowest side.
    longest = min(max(turn.values(), default=0.0), budget)
    repeats = {}
    for name, seconds in turn.items():
        repeats[name] = min(REPEATS, max(1, int(longest / seconds)))

    steps: dict[str, list[Steps]] = {}
    for name, first in firsts.items():
        steps[name] = []
        # A slow first step counts, since it is not the warm-up that makes it slow.
        if first.seconds > SECONDS:
            steps[name].append(Steps(first.seconds, first.share))

    end = time.perf_counter() + budget

    def is_enough() -> bool:
        counts = [len(of_side) for of_side in steps.values()]
        if min(counts) < MIN_STEPS:
            return False
        return time.perf_counter() >= end or max(counts) >= MAX_STEPS

    while pipes and not is_enough():
        for name, pipe in pipes.items():
            for _ in range(repeats[name]):
                pipe.send(n_steps[name])
                steps[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(0)
    return steps


def _print_rows(
    case: Case, firsts: dict[str, First], medians: dict[str, tuple[float, str]]
) -> None:
    base = next(iter(case.sides))
    for name, first in firsts.items():
        seconds, kept = medians[name]
        time_ratio = ""
        memory_ratio = ""
        if base in firsts:
            time_ratio = f"{seconds / medians[base][0]:.2f}"
            if firsts[base].peak >= 1e6:  # below, the noise of the heap
                memory_ratio = f"{first.peak / firsts[base].peak:.1f}"
        digits = 1 if seconds > 0.01 else 3
        milliseconds = f"{seconds * 1e3:,.{digits}f}"
        megabytes = f"{first.peak / 1e6:,.1f}"
        print(
            row([case.name, name, milliseconds, kept, megabytes, time_ratio, memory_ratio]),
            flush=True,
        )
    if case.note:
        print(f"| | {case.note} | | | | | |", flush=True)
