"""Time and memory of a function or a command, in a process of its own."""

import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

EVERY = 0.01  # seconds between two looks at the memory


class Watched(NamedTuple):
    """What a function took.

    Attributes:
        seconds: of the function alone, without the start of its process.
        busy: of them those that it had a core, of all its threads: what others take of the machine
            is not counted.
        peak: bytes of memory at most, pages of mapped files among them.
        peak_own: bytes at most without those pages, which the system takes back when it needs them.
    """

    seconds: float
    busy: float
    peak: int
    peak_own: int


def watched(function: Callable, *args: Any) -> Watched:
    """Run a function in a process that is forked from this one, and watch its memory. What this
    one has imported is there at once, and counts.
    """
    context = multiprocessing.get_context("fork")
    pipe, end = context.Pipe()
    process = context.Process(target=_timed, args=(end, function, args), daemon=True)
    process.start()
    end.close()
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    peak_own = 0
    while not pipe.poll(EVERY):
        text = status.read_text()
        peak = max(peak, _bytes(text, "VmHWM"))
        peak_own = max(peak_own, _bytes(text, "RssAnon"))
    try:
        seconds, busy = pipe.recv()
    except EOFError:
        sys.exit(f"{function.__name__} failed")
    process.join()
    return Watched(seconds, busy, peak, peak_own)


class WatchedCommand(NamedTuple):
    """What a command took.

    Attributes:
        seconds: from its start to its end.
        busy: of them those that it had a core, of all its threads.
        peak: bytes of memory at most, pages of mapped files among them.
    """

    seconds: float
    busy: float
    peak: int


def watched_command(words: list[str]) -> WatchedCommand:
    """Run a command, and ask the system what it took. What it prints is shown where it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(words)} failed\n{output.read()}")
    # macOS counts bytes, Linux kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return WatchedCommand(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def _timed(pipe: Connection, function: Callable, args: tuple) -> None:
    start = time.perf_counter()
    start_of_busy = time.process_time()
    function(*args)
    busy = time.process_time() - start_of_busy
    seconds = time.perf_counter() - start
    time.sleep(2 * EVERY)  # for a last look at the peak
    pipe.send((seconds, busy))


def _bytes(status: str, field: str) -> int:
    """A field of /proc/PID/status; 0 where a process that ends has it no more."""
    line = re.search(rf"{field}:\s+(\d+) kB", status)
    return 1024 * int(line[1]) if line else 0
