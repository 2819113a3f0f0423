"""Commands of ltr in processes of their own."""

import signal
import subprocess
import sys

import pytest

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


def test_a_command_for_another_program_ends_with_it():
    """The pipe is closed when both have ended."""
    command = [sys.executable, "-c", PARENT, SLEEPING]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "mine --option True\n"
    parent.send_signal(signal.SIGKILL)
    output, _ = parent.communicate(timeout=20)
    assert output == "" and parent.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("args", "code"), [(["--version"], 0), (["nothing"], 2)])
def test_a_command_for_another_program_has_its_own_exit_code(args, code):
    this = f"import os, subprocess, sys; sys.exit(subprocess.run([sys.executable, '-m', 'ltr.cli.process', str(os.getpid()), *{args}]).returncode)"
    assert subprocess.run([sys.executable, "-c", this], timeout=60).returncode == code
