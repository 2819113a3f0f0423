"""The README's examples are run as they stand."""

import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_command import metrics

ROOT = Path(__file__).parents[1]


def test_the_tables_are_filled():
    assert "_TABLE" not in (ROOT / "README.md").read_text()


def test_reproduce_makes_every_published_run(tmp_path):
    for name in ("Makefile", "setup.cfg", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/ready").touch()
    done = subprocess.run(
        ["make", "-n", "reproduce", f"DATA={tmp_path}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    commands = done.stdout.replace("\\\n", " ")
    for experiment, seed in (("medquad", 0), ("wikiqa", 0), ("wikiqa", 1), ("wikiqa", 2)):
        (fit,) = re.findall(rf"fit -c experiments/cross_encoder/{experiment}.yaml --seed_everything {seed}\b.*", commands)
        assert fit.endswith("--ckpt_path last")  # begins the run, or resumes it
        assert f"ltr test runs/cross_encoder/{experiment}/seed={seed}\n" in commands


def example(name: str, language: str) -> str:
    """The block of the README behind this mark."""
    page = (ROOT / "README.md").read_text()
    return re.search(rf"<!-- example: {name} -->\n```{language}\n(.*?)```", page, re.DOTALL).group(1)


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loss_in_three_lines(tmp_path):
    """Pairs 1 > 2 and 3 > 1 and 3 > 2: log(1 + e^-1.5), log(1 + e^1), log(1 + e^-0.5); their mean is 0.663."""
    block = example("loss", "python")
    assert len([line for line in block.splitlines() if line]) == 3
    (tmp_path / "three.py").write_text(block)
    expected = statistics.mean(math.log(1 + math.exp(x)) for x in (-1.5, 1.0, -0.5))
    printed = run(f"{sys.executable} three.py", tmp_path)
    assert float(re.search(r"[\d.]+", printed).group()) == pytest.approx(expected, abs=1e-4)
    assert printed.strip() == re.search(r"# (tensor.*)", block).group(1)


@pytest.mark.slow
def test_the_five_lines_of_your_own_data_and_the_loss_of_your_own(tmp_path):
    """The loss is found in the working directory, also by the console script, which does not look there by itself."""
    lines, loss = example("data", "sh"), example("own loss", "python")
    assert len(lines.strip().splitlines()) == 5 and len([line for line in loss.splitlines() if line]) <= 8
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    # As the console script: the first entry of the path is the script's folder, not the working directory.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ltr").write_text(f"#!{sys.executable}\nimport sys\nfrom ltr.__main__ import main\nsys.exit(main())\n")
    (tmp_path / "bin/ltr").chmod(0o755)
    run(lines.replace(".venv/bin/ltr", "bin/ltr"), tmp_path)
    assert metrics(tmp_path / "runs/cross_encoder/own/seed=0")["test"]["queries"] == 1
    (tmp_path / "my_losses.py").write_text(loss)
    command = re.search(r"`(ltr fit [^`]*my_losses.Gap)`", (ROOT / "README.md").read_text().replace("\n", " ")).group(1)
    run(f"bin/{command} --trainer.default_root_dir own", tmp_path)
    assert metrics(tmp_path / "own")["fit"]["steps"] > 0
