"""Waits for processes, and what becomes of those that a failed test has left."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.child_processes import run_command, until

# A process that starts another one and loses it, and a test that fails before it ends them.
CONFTEST = """
from tests.conftest import nothing_is_left_by_a_test_that_fails, pytest_runtest_makereport
"""
TEST = """
import subprocess, sys
from pathlib import Path
import pytest
from tests.child_processes import until

SLEEPS = "import os, signal, sys; print(os.getpid(), flush=True); signal.pause()"
STARTS = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPS!r}])"

@pytest.mark.parametrize("fails", [False, True])
def test_leaves(fails):
    said = Path(f"said{int(fails)}")
    with open(said, "w") as output:
        subprocess.run([sys.executable, "-c", STARTS], stdout=output, start_new_session=True)
    until(said.read_text)
    assert not fails
"""


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_a_failed_test_has_started_is_killed(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaves.py").write_text(TEST)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_leaves.py"]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = run_command(words, cwd=tmp_path, env=environment)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    of_the_passed, of_the_failed = (int((tmp_path / f"said{n}").read_text()) for n in (0, 1))
    try:
        until(lambda: not is_running(of_the_failed))
        assert is_running(of_the_passed)
    finally:
        os.kill(of_the_passed, 9)


def test_a_wait_ends_with_the_process_that_is_waited_for():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(AssertionError, match="a process has ended with 3: its words"):
        until(lambda: False, process.poll, said=lambda: "its words")


def test_what_a_process_has_done_just_before_its_end_counts():
    asked = []
    until(lambda: asked or asked.append(1), lambda: 0)


@pytest.mark.long
def test_a_program_that_is_ended_while_it_begins_takes_no_warm_python_with_it(warm_python):
    """Whether it has said nothing yet, half of its words, or all of them."""
    for said in (b"", b"\0\0\1\0", b"\0\0\1\0{"):
        with socket.socket(socket.AF_UNIX) as program:
            program.connect(str(Path(warm_python).with_name("socket")))
            program.sendall(said)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for milliseconds in range(0, 120, 4):
            program = subprocess.Popen([warm_python, "-c", "import signal; signal.pause()"])
            time.sleep(milliseconds / 1000)
            program.send_signal(number)
            assert program.wait() == -number
    done = run_command([warm_python, "-c", "print('served')"])
    assert done.stdout == "served\n", done.stderr
