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


def described() -> str:
    """Processor, threads, versions and date: a line to print beside every table."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    values = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in reversed(lines) if ":" in line)
    name = values.get("model name", platform.processor())
    flags = values.get("flags", "")
    if "cpu family" in values:  # names of rented machines hide it
        name += f", family {values['cpu family']}, model {values['model']}"
    amx = ("with AVX512-BF16, " if "avx512_bf16" in flags else "") + (
        "with AMX" if "amx_tile" in flags else "without AMX"
    )
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "tokenizers"))
    return f"{name} ({amx}), {torch.get_num_threads()} threads; {packages}; {datetime.date.today()}"


def allocator() -> str:
    """Which malloc serves this process, and its settings."""
    maps = Path("/proc/self/maps")
    found = re.search(r"jemalloc|tcmalloc|mimalloc", maps.read_text()) if maps.is_file() else None
    options = [
        f"{name}={os.environ[name]}"
        for name in ("MALLOC_CONF", "GLIBC_TUNABLES")
        if name in os.environ
    ]
    return " ".join([found[0] if found else "the system's malloc", *options])


def resident(field: str) -> int:
    """Bytes of memory of this process: ``VmRSS`` in use now, ``VmHWM`` the peak since the last
    reset.
    """
    with suppress(OSError):
        if line := re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return int(line[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (
        0 if sys.platform == "darwin" else 10
    )  # the peak since the process started
