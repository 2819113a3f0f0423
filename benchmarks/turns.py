"""Compare sides that do the same work: each in a process of its own, in turn, step by step.

Memory is the peak during a step above what was resident before it, with the inputs in place. Steps that other processes
slowed down are dropped, and sides that should agree are compared in value and gradient before anything is timed.
"""

import os
import re
import resource
import statistics
import sys
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

SECONDS = 6  # of measured steps per case, but at least MIN_STEPS of each side
MIN_STEPS, MAX_STEPS = 2, 41
REPEATS = 5  # at most, of the faster side in its turn
SHORTEST = 0.02  # seconds of one measurement: shorter steps are repeated within it
LIMIT = 14 << 30  # bytes that one side may hold: it fails instead of taking the machine down

Work = tuple[Tensor, Callable[[], Tensor]]  # the leaf that gets the gradient, and what computes the loss


class Side(NamedTuple):
    """One contestant: ``build(loss, *shape)`` makes its inputs and its work, the same inputs for every side of a case."""

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


def allocator() -> str:
    """Which malloc serves this process, and how it is set."""
    maps = Path("/proc/self/maps")
    found = re.search(r"jemalloc|tcmalloc|mimalloc", maps.read_text()) if maps.is_file() else None
    options = [f"{name}={os.environ[name]}" for name in ("MALLOC_CONF", "GLIBC_TUNABLES") if name in os.environ]
    return " ".join([found[0] if found else "the system's malloc", *options])


def resident(field: str) -> int:
    """Bytes: VmRSS is what is resident now, VmHWM its peak since the last reset."""
    with suppress(OSError):
        if line := re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return int(line[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)  # peak of a whole life


def step(leaf: Tensor, loss: Callable[[], Tensor]) -> float:
    """Forward and backward."""
    leaf.grad = None
    value = loss()
    value.backward()
    return value.item()


def serve(pipe: Connection, side: Side) -> None:
    """In the process of a side: answer with a First, then each number of steps with (seconds per step, share of a CPU)."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    try:
        torch.manual_seed(0)
        step(*side.build(side.loss, *(min(n, 8) for n in side.shape)))  # loads the code, which does not count
        torch.manual_seed(1)
        leaf, loss = side.build(side.loss, *side.shape)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before, start, start_cpu = resident("VmRSS"), time.perf_counter(), time.process_time()
        value = step(leaf, loss)
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        pipe.send(First(value, leaf.grad.numpy(), resident("VmHWM") - before, seconds, cpu / seconds))
        while n_steps := pipe.recv():
            start, start_cpu = time.perf_counter(), time.process_time()
            for _ in range(n_steps):
                step(leaf, loss)
            seconds = time.perf_counter() - start
            pipe.send((seconds / n_steps, (time.process_time() - start_cpu) / seconds))
    except ImportError as error:
        pipe.send(f"absent: {error}")
    except (MemoryError, RuntimeError) as error:
        pipe.send(f"cannot run: {str(error).splitlines()[0]}")


def check_agreement(case: Case, firsts: Sequence[First]) -> None:
    """Values within 1e-4. Gradients within 10% of their length: of two negatives equally far but for rounding, the sides may
    choose either. In float64 they choose the same one, and the gradients are equal.
    """
    value, gradient = firsts[0][:2]
    for first in firsts[1:]:
        error = abs(first.value - value) / abs(value)
        assert error < 1e-4, f"{case.name}: the values {value} and {first.value} differ"
        error = np.linalg.norm(first.gradient - gradient) / np.linalg.norm(gradient)
        assert error < 0.1, f"{case.name}: the gradients differ by {error:.1e} of their length"


def median(steps: list[tuple[float, float]]) -> tuple[float, str]:
    """Median seconds of the steps that had a CPU for themselves (of all steps if these are too few), and 'kept/taken'."""
    kept = [seconds for seconds, share in steps if share >= 0.9]
    if len(kept) < max(2, len(steps) / 3):
        kept = [seconds for seconds, _ in steps]
    return statistics.median(kept), f"{len(kept)}/{len(steps)}"


def measure(case: Case, preload: Sequence[str]) -> None:
    """Print the rows of a case; ``preload`` names modules that cost much to import."""
    context = get_context("forkserver")  # the server imports once: a process then starts in no time
    context.set_forkserver_preload(list(preload))
    pipes, firsts = {}, {}
    for name, side in case.sides.items():
        pipes[name], end = context.Pipe()
        context.Process(target=serve, args=(end, side), daemon=True).start()
        end.close()
        try:
            answer = pipes[name].recv()
        except EOFError:
            answer = "cannot run: its process died"
        if isinstance(answer, First):
            firsts[name] = answer
        else:
            print(f"| {case.name} | {name}: {answer} | | | | | |", flush=True)
    if case.agree:
        check_agreement(case, list(firsts.values()))

    n_steps = {name: max(1, round(SHORTEST / first.seconds)) for name, first in firsts.items()}
    turn = {name: n_steps[name] * first.seconds for name, first in firsts.items()}
    repeats = {name: min(REPEATS, max(1, int(min(max(turn.values()), SECONDS) / seconds))) for name, seconds in turn.items()}
    # A slow first step counts, since it is not the warm-up that makes it slow.
    steps = {name: [(first.seconds, first.share)] if first.seconds > SECONDS else [] for name, first in firsts.items()}
    end_of_case = time.perf_counter() + SECONDS
    while min(map(len, steps.values())) < MIN_STEPS or time.perf_counter() < end_of_case:
        for name in firsts:
            for _ in range(repeats[name]):
                pipes[name].send(n_steps[name])
                steps[name].append(pipes[name].recv())
        if max(map(len, steps.values())) >= MAX_STEPS and min(map(len, steps.values())) >= MIN_STEPS:
            break
    for name in firsts:
        pipes[name].send(0)

    base = next(iter(case.sides))
    for name, first in firsts.items():
        seconds, kept = median(steps[name])
        ratios = ["", ""]
        if base in firsts:
            ratios[0] = f"{seconds / median(steps[base])[0]:.2f}"
            if firsts[base].peak >= 1e6:  # below, the noise of the heap
                ratios[1] = f"{first.peak / firsts[base].peak:.1f}"
        print(
            f"| {case.name} | {name} | {seconds * 1e3:,.{1 if seconds > 0.01 else 3}f} | {kept} | {first.peak / 1e6:,.1f} | "
            f"{' | '.join(ratios)} |",
            flush=True,
        )
    if case.note:
        print(f"| | {case.note} | | | | | |", flush=True)
