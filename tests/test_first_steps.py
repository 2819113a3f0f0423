"""Every command of docs/first-steps.md is run, and prints what the page says, as does the example of
docs/compare.md.
"""

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


def run_commands(scripts: list[str], folder: Path) -> list[str]:
    """What each script of bash prints."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    main = "import sys\nfrom ltr.__main__ import main\n"
    main += "if __name__ == '__main__':\n    sys.exit(main())\n"  # as pip writes it
    (programs / "ltr").write_text(f"#!{sys.executable}\n{main}")
    for program in programs.iterdir():
        program.chmod(0o755)
    # Without the mode of wandb that make sets: importing sentence_transformers tells of it.
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    env.pop("WANDB_MODE", None)
    found = []
    for script in scripts:
        words = ["bash", "-ec", script]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, script + done.stderr[-2000:]
        found.append(done.stdout)
    return found


@pytest.mark.long
def test_the_page_is_what_happens(tmp_path):
    page = blocks(PAGE.read_text())
    assert len(page) == 6
    found = run_commands([commands for commands, _ in page], tmp_path)
    for (commands, shown), printed in zip(page, found, strict=True):
        assert alike(printed, shown), f"{commands}\nprints\n{printed}"


def rows(table: str) -> list[list[str]]:
    """The cells of a table in Markdown, without the line below its head."""
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [cells for cells in lines if cells[0] != "---"]


@pytest.mark.long
def test_the_example_of_a_comparison_is_what_happens(tmp_path):
    """Other kernels may move a p value, and a verdict with it, so only the differences are compared."""
    page = (ROOT / "docs/compare.md").read_text()
    found = re.findall(r"<!-- example: (\w+) -->\n(?:```\w+\n)?(.*?)\n(?:```)?\n", page, re.DOTALL)
    examples = dict(found)
    (tmp_path / "losses.yaml").write_text(examples["losses"])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run_commands([examples["compare"]], tmp_path)
    assert (tmp_path / "compared.html").is_file()
    written = (tmp_path / "compared.md").read_text().split("\n\n")[1]
    shown = rows(examples["compared"])
    assert len(shown) == 3
    for ours, theirs in zip(rows(written), shown, strict=True):
        assert ours[0] == theirs[0] and alike(ours[2], theirs[2])


def test_another_word_or_number_is_noticed():
    assert alike("AP 0.751 in 3 s", "AP 0.752 in 41 s")
    for printed, shown in (("AP 0.751", "AP 0.851"), ("AP 0.751", "RR 0.751"), ("AP 1", "AP 2")):
        assert not alike(printed, shown)
