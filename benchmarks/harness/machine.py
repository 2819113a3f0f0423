"""Where a number was measured: the machine, the versions, the allocator, and the memory in use."""

import datetime
import os
import platform
import re
import resource
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch


def machine_line() -> str:
    """Processor, threads, versions and date: a line to print beside every table."""
    packages = [f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")]
    return (
        f"{_processor()}, {torch.get_num_threads()} threads; "
        f"{', '.join(packages)}; {datetime.date.today()}"
    )


def _processor() -> str:
    """Its name, and whether it has the instructions that multiply bfloat16."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    values: dict[str, str] = {}
    for line in lines:
        if ":" in line:
            name, value = re.split(r"\s*:\s*", line, maxsplit=1)
            values.setdefault(name, value)  # of the first core: all are alike
    processor = values.get("model name", platform.processor())
    if "cpu family" in values:  # names of rented machines hide it
        processor += f", family {values['cpu family']}, model {values['model']}"
    flags = values.get("flags", "")
    bfloat16 = "with AMX" if "amx_tile" in flags else "without AMX"
    if "avx512_bf16" in flags:
        bfloat16 = f"with AVX512-BF16, {bfloat16}"
    return f"{processor} ({bfloat16})"


def allocator() -> str:
    """Which malloc serves this process, and its settings."""
    words = ["the system's malloc"]
    maps = Path("/proc/self/maps")
    if maps.is_file():
        preloaded = re.search(r"jemalloc|tcmalloc|mimalloc", maps.read_text())
        if preloaded:
            words = [preloaded[0]]
    for name in ("MALLOC_CONF", "GLIBC_TUNABLES"):
        if name in os.environ:
            words.append(f"{name}={os.environ[name]}")
    return " ".join(words)


def resident(field: str) -> int:
    """Bytes of memory of this process: ``VmRSS`` in use now, ``VmHWM`` the peak since the last
    reset. Where there is no /proc, the peak since the process started.
    """
    with suppress(OSError):
        line = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if line:
            return 1024 * int(line[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak  # macOS counts bytes, Linux kilobytes
    return 1024 * peak
