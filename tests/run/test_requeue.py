"""A job that was warned goes into the queue again; a real SLURM does so in test_cluster_fit.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ltr.run.requeue import requeue_if_warned
from ltr.run.signals import CLUSTER_SIGNALS

WARNED = 128 + signal.SIGUSR1


@pytest.fixture
def scontrol(monkeypatch, tmp_path) -> Path:
    """A SLURM that writes down what it is asked; it refuses the job 9."""
    program = tmp_path / "bin/scontrol"
    program.parent.mkdir()
    asked = tmp_path / "asked"
    asked.touch()
    program.write_text(
        f"#!/bin/sh\necho $@ >> {asked}\nif [ $2 = 9 ]; then echo not allowed >&2; exit 1; fi\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    return asked


@pytest.fixture(autouse=True)
def _handlers():
    before = {known: signal.getsignal(known) for known in CLUSTER_SIGNALS}
    yield
    for known, handler in before.items():
        signal.signal(known, handler)


@pytest.mark.parametrize("by", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warned_job_goes_into_the_queue_again(scontrol, monkeypatch, capsys, by):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeue_if_warned(128 + by)
    assert scontrol.read_text() == "requeue 7\n"
    assert capsys.readouterr().err == f"ltr: {by.name}, and SLURM puts job 7 into the queue again\n"


def test_an_element_of_an_array_goes_alone(scontrol, monkeypatch):
    """The last element has the number of the whole array: all of them would begin anew."""
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    requeue_if_warned(WARNED)
    assert scontrol.read_text() == "requeue 5_4\n"


@pytest.mark.parametrize("code", [0, 1, 2, 128 + signal.SIGTERM, 128 + signal.SIGINT])
def test_no_other_end_does(scontrol, monkeypatch, code):
    """SIGTERM may be scancel, and a preempted job is requeued by SLURM itself."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeue_if_warned(code)
    assert scontrol.read_text() == ""


def test_outside_of_a_job_nothing_is_asked(scontrol, capsys):
    requeue_if_warned(WARNED)
    assert scontrol.read_text() == "" and capsys.readouterr().err == ""


def test_a_line_says_why_a_job_is_not_requeued(scontrol, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    requeue_if_warned(WARNED)
    monkeypatch.setenv("PATH", "/nowhere")
    requeue_if_warned(WARNED)
    refused, missing = capsys.readouterr().err.splitlines()
    assert "job 9 is not put into the queue again (not allowed); submit it once more" in refused
    assert "No such file or directory: 'scontrol'" in missing


@pytest.mark.parametrize(("rank", "asked"), [("0", "requeue 7\n"), ("1", "")])
def test_the_first_process_asks_for_all(scontrol, monkeypatch, rank, asked):
    """The others may end earlier than it has saved. The program itself is warned."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", rank)
    warned = "import signal; signal.raise_signal(signal.SIGUSR1)"
    program = f"""
import sys, types
import ltr.cli.program
def run(args):
    {warned}
ltr.cli.program.run = run
sys.argv = ["ltr", "fit"]
from ltr.__main__ import program
program()
"""
    done = subprocess.run([sys.executable, "-c", program])
    assert done.returncode == WARNED
    assert scontrol.read_text() == asked
