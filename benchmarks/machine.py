"""Where a measurement was taken: one line to stand beside it."""

import datetime
import platform
from importlib.metadata import version
from pathlib import Path

import torch


def described() -> str:
    """Processor, cores, versions and date."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line for line in lines if line.startswith("flags")), "")
    amx = "with AMX" if "amx_tile" in flags else "without AMX"
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "tokenizers"))
    return f"{name} ({amx}), {torch.get_num_threads()} threads; {packages}; {datetime.date.today()}"
