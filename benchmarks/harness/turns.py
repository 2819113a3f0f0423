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

SECONDS = 6  # of measured steps per case, but at least MIN_STEPS of each side
MIN_STEPS = 2
MAX_STEPS = 41
REPEATS = 5  # at most, of the faster side in its turn
SHORTEST = 0.02  # seconds of one measurement: shorter steps are repeated within it
LIMIT = 14 << 30  # bytes that one side may hold: it fails instead of taking the machine down

Work = tuple[
    Tensor, Callable[[], Tensor]
]  # the leaf that gets the gradient, and what computes the loss


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
    share: float


def step(leaf: Tensor, loss: Callable[[], Tensor]) -> float:
    """Forward and backward."""
    leaf.grad = None
    value = loss()
    value.backward()
    return value.item()


def serve(pipe: Connection, side: Side) -> None:
    """In the process of a side: answer with a First, then each number of steps with (seconds per
    step, share of a CPU).
    """
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    try:
        torch.manual_seed(0)
        step(
            *side.build(side.loss, *(min(n, 8) for n in side.shape))
        )  # loads the code, which does not count
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
        pipe.send(
            First(value, leaf.grad.numpy(), resident("VmHWM") - before, seconds, cpu / seconds)
        )
        while n_steps := pipe.recv():
            start = time.perf_counter()
            start_cpu = time.process_time()
            for _ in range(n_steps):
                step(leaf, loss)
            seconds = time.perf_counter() - start
            pipe.send((seconds / n_steps, (time.process_time() - start_cpu) / seconds))
    except ImportError as error:
        pipe.send(f"absent: {error}")
    except (MemoryError, RuntimeError) as error:
        pipe.send(f"cannot run: {str(error).splitlines()[0]}")


def check_agreement(case: Case, firsts: Sequence[First]) -> None:
    """Values within 1e-4. Gradients within 10% of their length: of two negatives equally far but
    for rounding, the sides may choose either. In float64 they choose the same one, and the
    gradients are equal.
    """
    value, gradient = firsts[0][:2]
    for first in firsts[1:]:
        error = abs(first.value - value) / abs(value)
        assert error < 1e-4, f"{case.name}: the values {value} and {first.value} differ"
        error = np.linalg.norm(first.gradient - gradient) / np.linalg.norm(gradient)
        assert error < 0.1, f"{case.name}: the gradients differ by {error:.1e} of their length"


def median(steps: list[tuple[float, float]]) -> tuple[float, str]:
    """Median seconds of the steps that had a CPU for themselves (of all steps if these are too
    few), and 'kept/taken'.
    """
    kept = [seconds for seconds, share in steps if share >= 0.9]
    if len(kept) < max(2, len(steps) / 3):
        kept = [seconds for seconds, _ in steps]
    return statistics.median(kept), f"{len(kept)}/{len(steps)}"


def measure(case: Case, preload: Sequence[str], seconds: float = SECONDS) -> None:
    """Print the rows of a case.

    Args:
        case: what is compared.
        preload: modules that are slow to import; imported once, for the processes of all sides.
        seconds: of measured steps, but every side takes at least ``MIN_STEPS``.
    """
    pipes, firsts = _started(case, preload, seconds)
    if case.agree and firsts:
        check_agreement(case, list(firsts.values()))
    steps = _take_turns(pipes, firsts, seconds)
    _print_rows(case, firsts, {name: median(of_side) for name, of_side in steps.items()})


def _started(
    case: Case, preload: Sequence[str], seconds: float
) -> tuple[dict[str, Connection], dict[str, First]]:
    """A pipe to the process of every side that can run, and what its first step gave."""
    # A server imports once, and processes then start in no time. Tiny runs are forked from this
    # one.
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
            pipes[name], firsts[name] = pipe, answer
        else:
            print(f"| {case.name} | {name}: {answer} | | | | | |", flush=True)
    return pipes, firsts


def _take_turns(
    pipes: dict[str, Connection], firsts: dict[str, First], budget: float
) -> dict[str, list[tuple[float, float]]]:
    """(Seconds, share of a CPU) of the steps of each side, taken in turn until ``budget`` seconds
    are over.
    """
    n_steps = {name: max(1, round(SHORTEST / first.seconds)) for name, first in firsts.items()}
    turn = {name: n_steps[name] * first.seconds for name, first in firsts.items()}
    longest = min(max(turn.values(), default=0.0), budget)
    repeats = {name: min(REPEATS, max(1, int(longest / seconds))) for name, seconds in turn.items()}
    # A slow first step counts, since it is not the warm-up that makes it slow.
    steps = {
        name: [(first.seconds, first.share)] if first.seconds > SECONDS else []
        for name, first in firsts.items()
    }
    end = time.perf_counter() + budget

    def fewest() -> int:
        return min(map(len, steps.values()), default=MIN_STEPS)

    while pipes and (
        fewest() < MIN_STEPS
        or (time.perf_counter() < end and max(map(len, steps.values())) < MAX_STEPS)
    ):
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
        ratios = ["", ""]
        if base in firsts:
            ratios[0] = f"{seconds / medians[base][0]:.2f}"
            if firsts[base].peak >= 1e6:  # below, the noise of the heap
                ratios[1] = f"{first.peak / firsts[base].peak:.1f}"
        print(
            f"| {case.name} | {name} | {seconds * 1e3:,.{1 if seconds > 0.01 else 3}f} | {kept} | {first.peak / 1e6:,.1f} | "
            f"{' | '.join(ratios)} |",
            flush=True,
        )
    if case.note:
        print(f"| | {case.note} | | | | | |", flush=True)
