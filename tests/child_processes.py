"""Processes that a test starts. No wait for one has a bound in seconds, which a busy machine would
break: it ends where the process has ended, and pytest ends a test that hangs (setup.cfg). What a
test that failed has left running is killed (conftest.py).
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import forkserver as forkserver_of_python
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

import ltr
import ltr.cli.process

# In the environment of all that tests start: the first process of pytest, and the worker.
MARK = "LTR_TESTS"
PRELOADED = [
    "ltr.cli.training",
    "ltr.datamodules",
    "ltr.module",
    "sentence_transformers",
    "tests.run.kills",
]
ltr.cli.process.PRELOADED[:] = PRELOADED  # the package's commands fork from the same server
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
    """Run ``function(rank, *args)`` in each of the processes of one job. All are killed so many
    seconds after one has failed: each may wait for the others.
    """
    from torch.multiprocessing import start_processes

    forkserver()
    given = (function, dict(os.environ), args)
    job = start_processes(_run_rank, given, n_ranks, join=False, start_method="forkserver")
    try:
        while not job.join(timeout=1, grace_period=grace):
            pass
    finally:
        for process in job.processes:
            process.kill()


def _run_rank(rank: int, function: Callable[..., object], environment: dict, args: tuple) -> None:
    import torch

    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(rank, *args)


def until(
    is_so: Callable[[], object],
    *exit_codes: Callable[[], int | None],
    said: Callable[[], str] = str,
) -> None:
    """Return when something is so that other processes bring about.

    Args:
        is_so: asked again and again.
        exit_codes: of these processes, None while they run. One that ends before fails the test.
        said: what they have said, for the error.
    """
    while not is_so():
        ended = [code for exit_code in exit_codes if (code := exit_code()) is not None]
        # What a process has done just before its end counts.
        assert not ended or is_so(), f"a process has ended with {ended[0]}: {said()}"
        time.sleep(0.02)


def started_processes(since: float) -> set[psutil.Process]:
    """What this process has started since a time of :func:`seconds_since_boot`, with what that has
    started.
    """
    running = set(psutil.Process().children(recursive=True))
    # What has lost the process that started it is known by its environment.
    running |= {
        process for process in psutil.process_iter() if mark_of(process) == os.environ[MARK]
    }
    started = set()
    for process in running - {psutil.Process()}:
        with suppress(psutil.Error):  # it has ended meanwhile
            # Told in hundredths of a second.
            if process.create_time() - psutil.boot_time() >= since - 0.02:
                started.add(process)
    return started


def seconds_since_boot() -> float:
    """By the clock that tells when processes began, where there is one."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - psutil.boot_time()


def left_by_workers() -> list[psutil.Process]:
    """What the workers of this process of pytest have started and still runs."""
    ours = f"{os.getpid()}."
    return [process for process in psutil.process_iter() if mark_of(process).startswith(ours)]


def mark_of(process: psutil.Process) -> str:
    """The mark in a process's environment; empty where it has none or is another user's."""
    with suppress(psutil.Error):
        return process.environ().get(MARK, "")
    return ""


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """Kill those that tests have left, but for the servers that later tests in this process use."""
    kept = {
        forkserver_of_python._forkserver._forkserver_pid,
        resource_tracker._resource_tracker._pid,
    }
    for process in processes:
        with suppress(psutil.Error):
            if process.pid not in kept and process.name() != "wandb-core":
                process.kill()


def run_command(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run``, with its output as text. Where it is interrupted, it is killed with all
    that it has started; ``subprocess.run`` would kill the first process alone, and wait for the
    output of those that it has left.
    """
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, start_new_session=True, **options)
    try:
        output, errors = process.communicate()
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
    import torch

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
            words = [sys.executable, "-P", "-W", "error::UserWarning:peft", "-c"]
            done = run_command([*words, begin + program + end, *files], cwd="/")
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
