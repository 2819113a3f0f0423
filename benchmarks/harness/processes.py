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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from harness.machine import allocator, resident
from harness.meter import Meter, Step
from harness.sides import Result, Setting, Side

JEMALLOC = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"


class End(NamedTuple):
    """What a side sends when it has taken all its steps: peak memory in bytes, and its malloc."""

    peak: int
    malloc: str


def serve(pipe: Connection, side: Side, setting: Setting) -> None:
    """In the process of a side: send the steps of the warm-up and of each turn, then the peak
    memory and the malloc.
    """
    _quiet()
    try:
        side.run(Meter(pipe, setting.device, setting.warm_up), setting, side)
        peak = torch.cuda.max_memory_allocated() if setting.device == "cuda" else resident("VmHWM")
        malloc = allocator().partition(" MALLOC_CONF")[0]  # the settings are the same for all
        pipe.send(End(peak, malloc))
    except Exception as error:  # whatever a side may raise is a line of the table
        pipe.send(_one_line(error))


def _answer(pipe: Connection, function: Callable, args: tuple) -> None:
    """In a process of its own: send what a function returns."""
    _quiet()
    try:
        pipe.send(("", function(*args)))
    except (AssertionError, ImportError, OSError, RuntimeError, ValueError) as error:
        pipe.send((_one_line(error), None))


def run_apart(function: Callable, *args: Any) -> Any:
    """Run a function in a process of its own: its memory and threads are gone afterwards."""
    error, value = _start(_answer, function, args).recv()
    if error:
        sys.exit(error)
    return value


def _start(target: Callable, *args: Any, malloc: str | None = None) -> Connection:
    """Start a process that calls ``target(pipe, *args)``; returns the other end of the pipe."""
    pipe, end = multiprocessing.Pipe()
    with environment(LD_PRELOAD=malloc, MALLOC_CONF=JEMALLOC if malloc else None):
        multiprocessing.Process(target=target, args=(end, *args), daemon=True).start()
    end.close()
    return pipe


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set variables for the processes that start meanwhile; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    _set_variables(values)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
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
    pipes = {}  # of the sides that have not failed
    steps: dict[Side, list[Step]] = {side: [] for side in sides}
    results: dict[Side, Result | str] = {}

    def receive(side: Side) -> Any:
        """Steps of a turn, or the End; None if the side has failed."""
        try:
            message = pipes[side].recv()
        except EOFError:
            message = "its process died"
        if isinstance(message, str):
            results[side] = message
            del pipes[side]
            return None
        return message

    for side in sides:
        pipes[side] = _start(serve, side, setting, malloc=side.malloc)
        receive(side)  # the warm-up
    for _ in range(setting.turns):
        for side in list(pipes):
            pipes[side].send(setting.steps)
            steps[side] += receive(side) or []
    for side in list(pipes):
        pipes[side].send(0)
        end = receive(side)
        if end is not None:
            results[side] = Result(steps[side], end.peak, end.malloc)
    return {side: results[side] for side in sides}
