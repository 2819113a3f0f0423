"""Programs in a Python of their own."""

import os
import subprocess
import sys


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start what imports this folder's ltr, with pipes to its input and from its output."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
