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


def test_reproduce_makes_every_published_run(tmp_path):
    for name in ("Makefile", "setup.cfg", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/ready").touch()
    (tmp_path / "runs/cross_encoder/wikiqa/seed=1/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/cross_encoder/wikiqa/seed=1/checkpoints/last.ckpt").touch()
    done = subprocess.run(
        ["make", "-n", "reproduce", f"DATA={tmp_path}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    commands = done.stdout.replace("\\\n", " ")
    for experiment, seed in (("medquad", 0), ("wikiqa", 0), ("wikiqa", 1), ("wikiqa", 2)):
        (fit,) = re.findall(rf"fit -c experiments/cross_encoder/{experiment}.yaml --seed_everything {seed}\b.*", commands)
        assert ("--ckpt_path last" in fit) == ((experiment, seed) == ("wikiqa", 1))
        assert f"test -c runs/cross_encoder/{experiment}/seed={seed}/config.yaml --ckpt_path best" in commands


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
