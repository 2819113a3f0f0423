"""Runs each side in a process of its own: a malloc is chosen before a program starts, and peak
memory belongs to a process.

A callback tells a :class:`harness.meter.Meter` of every step, and waits there while the other sides
have their turn. So all sides see the same machine, and none has a quiet hour for itself.
"""

import logging
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from harness.machine import allocator, resident
from harness.meter import Meter
from harness.sides import Result, Setting, Side

JEMALLOC = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"


def serve(pipe: Connection, side: Side, setting: Setting) -> None:
    """In the process of a side: send the steps of the warm-up and of each turn, then the peak
    memory and the malloc.
    """
    _quiet()
    try:
        side.run(Meter(pipe, setting.device, setting.warm_up), setting, side)
        peak = torch.cuda.max_memory_allocated() if setting.device == "cuda" else resident("VmHWM")
        pipe.send((peak, allocator().partition(" MALLOC_CONF")[0]))
    except Exception as error:  # whatever a side may raise is a line of the table
        pipe.send(_one_line(error))


def answer(pipe: Connection, function: Callable, args: tuple) -> None:
    """In a process of its own: send what a function returns."""
    _quiet()
    try:
        pipe.send(("", function(*args)))
    except (AssertionError, ImportError, OSError, RuntimeError, ValueError) as error:
        pipe.send((_one_line(error), None))


def apart(function: Callable, *args: Any) -> Any:
    """Run a function in a process of its own, so that its memory and threads are gone afterwards."""
    error, value = _started(answer, function, args).recv()
    if error:
        sys.exit(error)
    return value


def _started(target: Callable, *args: Any, malloc: str | None = None) -> Connection:
    pipe, end = multiprocessing.Pipe()
    with environment(LD_PRELOAD=malloc, MALLOC_CONF=JEMALLOC if malloc else None):
        multiprocessing.Process(target=target, args=(end, *args), daemon=True).start()
    end.close()
    return pipe


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set variables for the processes that start meanwhile; None removes one."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _quiet() -> None:
    """Silence everything but the table."""
    from transformers.utils.logging import disable_progress_bar

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    disable_progress_bar()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def take_turns(sides: Sequence[Side], setting: Setting) -> dict[Side, "Result | str"]:
    """Let the sides run in turn; one that fails is left out, and its reason is returned.

    Args:
        sides: the contestants.
        setting: has the number of turns, and of steps of each.
    """
    pipes = {}
    steps = {side: [] for side in sides}
    failures = {}

    def receive(side: Side) -> Any:
        try:
            got = pipes[side].recv()
        except EOFError:
            got = "its process died"
        if isinstance(got, str):
            failures[side] = got
            del pipes[side]
        return got

    for side in sides:
        pipes[side] = _started(serve, side, setting, malloc=side.malloc)
        receive(side)  # the warm-up
    for _ in range(setting.turns):
        for side in list(pipes):
            pipes[side].send(setting.steps)
            if isinstance(got := receive(side), list):
                steps[side] += got
    results = {}
    for side in list(pipes):
        pipes[side].send(0)
        if isinstance(got := receive(side), tuple):
            results[side] = Result(steps[side], *got)
    return {side: results.get(side) or failures[side] for side in sides}
