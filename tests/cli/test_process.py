"""Commands of ltr in processes of their own."""

import os
import signal
import subprocess
import sys

import pytest

from ltr.cli import process
from ltr.errors import InputError

# A parent that starts a command for itself. The command says that it runs, and then sleeps.
SLEEPING = """
import sys, time
from ltr.cli import process

def sleep(args):
    print(*args, sys.argv[1:] == args, flush=True)
    time.sleep(60)

process.main = sleep
process.main_of_child(sys.argv[1:])
"""
PARENT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid()), "mine", "--option"])
"""
# A run that starts it beside itself. It hears SIGTERM as a group does, and ends it a second later.
RUN = """
import signal, subprocess, sys, time
from pathlib import Path
import torch
from ltr.mining import side_process
popen = subprocess.Popen
side_process.subprocess.Popen = lambda command, **options: popen(
    [sys.executable, "-c", sys.argv[2], *command[3:5], "--option"], **options | {"stdout": None, "stderr": subprocess.DEVNULL}
)
asked = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: asked.append(number))
side = side_process.SideProcess()
folder = Path(sys.argv[1])
side.start(folder / "config.yaml", {}, 2, "2", folder / "negatives/step=2", torch.device("cpu"))
while len(asked) < 2:
    time.sleep(0.01)
time.sleep(1)
print("alive" if side._process.poll() is None else "gone", flush=True)
process = side._process
side.end()
print(process.returncode, flush=True)
"""


def test_a_command_for_another_program_ends_with_it():
    """The pipe is closed when both have ended."""
    command = [sys.executable, "-c", PARENT, SLEEPING]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "mine --option True\n"
    parent.send_signal(signal.SIGKILL)
    output, _ = parent.communicate()
    assert output == "" and parent.returncode == -signal.SIGKILL


@pytest.mark.long
def test_a_process_beside_a_run_outlives_the_signals_of_a_cluster_until_the_run_ends_it(tmp_path):
    """They come to the whole group; the run needs it until it has saved."""
    (tmp_path / "config.yaml").touch()
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), SLEEPING],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout.readline() == "mine --option True\n"
    os.killpg(run.pid, signal.SIGTERM)
    os.killpg(run.pid, signal.SIGUSR1)
    output, _ = run.communicate()
    assert output == "alive\n1\n" and run.returncode == 0


@pytest.mark.parametrize(("args", "code"), [(["--version"], 0), (["nothing"], 2)])
def test_a_command_for_another_program_has_its_own_exit_code(args, code):
    command = f"[sys.executable, '-m', 'ltr.cli.process', str(os.getpid()), *{args}]"
    this = f"import os, subprocess, sys; sys.exit(subprocess.run({command}).returncode)"
    assert subprocess.run([sys.executable, "-c", this]).returncode == code


def test_what_a_command_has_done_is_no_error(monkeypatch):
    monkeypatch.setattr(process, "_run_and_wait", lambda _: 0)
    process.run_in_process(["test"])
    process.run_in_process(["test"], refusal_ends_program=False)


@pytest.mark.parametrize(("code", "ends_by"), [(2, SystemExit), (1, InputError), (-9, InputError)])
def test_what_a_command_has_refused_is_said_once(monkeypatch, code, ends_by):
    """Its own line is on the terminal; after a kill it has said nothing."""
    monkeypatch.setattr(process, "_run_and_wait", lambda _: code)
    with pytest.raises(ends_by) as ended:
        process.run_in_process(["test"])
    if code == 2:
        assert ended.value.code == 2
    with pytest.raises(InputError, match="ltr test .*, see above; called again"):
        process.run_in_process(["test"], refusal_ends_program=False)
