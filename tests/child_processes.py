"""Processes that a test starts. A wait for one has an end: what hangs is killed, and its test
fails.
"""

import ctypes
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.multiprocessing import start_processes

import ltr

# Far more than any of them takes, also on a busy machine.
SECONDS = 300
PRELOADED = [
    "ltr.cli.training",
    "ltr.datamodules",
    "ltr.module",
    "sentence_transformers",
    "tests.run.kills",
]
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def forkserver() -> ForkServerContext:
    """Its processes are forked from one that has imported what is slow to import, and has done
    nothing with it. There is one such process for all tests, so they share one list of imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def run_ranks(
    function: Callable[..., object], *args: Any, n_ranks: int = 2, grace: float | None = None
) -> None:
    """Run ``function(rank, *args)`` in each of the processes of one job. All are killed where they
    are not done in time, or so many seconds after one has failed: each may wait for the others.
    """
    forkserver()
    job = start_processes(
        _run_rank,
        (function, dict(os.environ), args),
        n_ranks,
        join=False,
        start_method="forkserver",
    )
    latest = time.monotonic() + SECONDS
    try:
        while not job.join(timeout=1, grace_period=grace):
            assert time.monotonic() < latest, f"{function.__name__} is not done after {SECONDS} s"
    finally:
        for process in job.processes:
            process.kill()


def _run_rank(rank: int, function: Callable[..., object], environment: dict, args: tuple) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(rank, *args)


def run_command(
    words: Sequence[str], *, seconds: float = SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run``, with its output as text. It is killed with all that it has started
    where it is not done in time; ``subprocess.run`` would kill the first process alone, and wait for
    the output of those that it has left.
    """
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        print(*process.communicate(), sep="\n")
        raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def fork(function: Callable[[], object]) -> int:
    """Run a function in a fork of this process, and return the number of that.

    The fork does not come back, whatever happens in it: it would run the other tests, too, and send
    their results. It ends with this process, whose pipe to pytest it has open.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        torch.set_num_threads(1)  # a fork has none of the threads that OpenMP would wait for
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


# In a new process ltr is out of reach; a fork of this one has imported it, and loses it.
WITHOUT_LTR = """
import importlib.util, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "ltr"]:
    del sys.modules[name]
sys.path = [path for path in sys.path if path not in ("", {root!r})]
sys.meta_path = [one for one in sys.meta_path if "__editable__" not in str(one)]
assert importlib.util.find_spec("ltr") is None, "the process must not know ltr"
"""
Elsewhere = Literal["fork", "new process"]
# A fork needs no imports, which take 7 s; what ltr has registered in a library would show in a new
# process alone.
ELSEWHERE = ["fork", pytest.param("new process", marks=pytest.mark.long)]


def without_ltr(program: str, given: object, where: Elsewhere = "new process") -> Any:
    """What a program finds that does not know ltr.

    Args:
        program: gives ``found``, made of ``given``. Both are what JSON can say.
        given: to it.
        where: it runs.
    """
    begin = WITHOUT_LTR.format(root=str(Path(ltr.__file__).parents[1]))
    begin += "import json, pathlib\ngiven = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
    end = "\npathlib.Path(sys.argv[2]).write_text(json.dumps(found))\n"
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/given", f"{folder}/found"]
        Path(files[0]).write_text(json.dumps(given))
        if where == "new process":
            words = [
                sys.executable,
                "-P",
                "-W",
                "error::UserWarning:peft",
                "-c",
                begin + program + end,
            ]
            done = run_command([*words, *files], cwd="/")
            assert done.returncode == 0, done.stderr[-2000:]
        else:

            def run() -> None:
                sys.argv = ["", *files]
                sys.stdout = io.StringIO()
                os.chdir("/")
                exec(begin + program + end, {"__name__": "__main__"})

            _, status = os.waitpid(fork(run), 0)
            assert status == 0, "see the traceback on stderr"
        return json.loads(Path(files[1]).read_text())
