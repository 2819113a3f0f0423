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
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    main = "import sys\nfrom ltr.__main__ import main\nsys.exit(main())\n"
    (programs / "ltr").write_text(f"#!{sys.executable}\n{main}")
    for program in programs.iterdir():
        program.chmod(0o755)
    # Without the mode of wandb that make sets: importing sentence_transformers tells of it.
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    env.pop("WANDB_MODE", None)
    found = []
    for commands, shown in blocks(PAGE.read_text()):
        words = ["bash", "-ec", commands]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
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
    for printed, shown in (("AP 0.751", "AP 0.851"), ("AP 0.751", "RR 0.751"), ("AP 1", "AP 2")):
        assert not alike(printed, shown)
