"""The README's example is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import metrics

ROOT = Path(__file__).parents[1]


def test_the_tables_are_filled():
    assert "_TABLE" not in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_five_lines_of_your_own_data(tmp_path):
    block = re.search(r"<!-- example -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    assert len(block.strip().splitlines()) == 5
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    script = block.replace(".venv/bin/ltr", f"{sys.executable} -m ltr")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "runs/cross_encoder/own/seed=0")["test"]["queries"] == 1
