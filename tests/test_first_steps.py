"""Every command of docs/first-steps.md is run, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/first-steps.md"
NUMBER = re.compile(r"-?\d+\.\d+")


def blocks(page: str) -> list[tuple[str, str]]:
    """Each block of commands with the output that stands under it, or nothing."""
    return re.findall(r"```sh\n(.*?)```\n(?:\n```\n(.*?)```\n)?", page, flags=re.DOTALL)


def alike(printed: str, shown: str) -> bool:
    """Equal but for seconds, and for numbers that machines round differently."""
    ours, theirs = (
        re.sub(r"in \d+ s|in \d+ min \d+ s", "in T", text).strip() for text in (printed, shown)
    )
    if NUMBER.sub("N", ours) != NUMBER.sub("N", theirs):
        return False
    pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True)
    return all(float(a) == pytest.approx(float(b), abs=0.02) for a, b in pairs)


def run_page(folder: Path) -> list[tuple[str, str, str]]:
    """Commands, what they print, and what the page shows."""
    for name in ("experiments",):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv/bin").mkdir(parents=True)
    for name, code in (
        ("ltr", "from ltr.__main__ import main\nsys.exit(main())"),
        ("python", None),
    ):
        target = folder / ".venv/bin" / name
        if code is None:
            target.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        else:
            target.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
        target.chmod(0o755)
    # Without the mode of wandb that make sets: importing sentence_transformers tells of it.
    env = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"} | {
        "PYTHONPATH": str(ROOT)
    }
    found = []
    for commands, shown in blocks(PAGE.read_text()):
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, commands + done.stderr[-2000:]
        found.append((commands, done.stdout, shown))
    return found


@pytest.mark.long
def test_the_page_is_what_happens(tmp_path):
    found = run_page(tmp_path)
    assert len(found) == 6
    for commands, printed, shown in found:
        assert alike(printed, shown), f"{commands}\nprints\n{printed}"


def test_another_word_or_number_is_noticed():
    assert alike("AP 0.751 in 3 s", "AP 0.752 in 41 s")
    assert (
        not alike("AP 0.751", "AP 0.851")
        and not alike("AP 0.751", "RR 0.751")
        and not alike("AP 1", "AP 2")
    )
