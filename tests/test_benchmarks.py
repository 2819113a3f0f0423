"""Every script of benchmarks/ runs one tiny step; what it prints then means nothing, but that it
still runs does.
"""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.child_processes import SECONDS, forkserver

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py"))
TEXTS = {"--data": "collection", "--backbone": "backbone"}
# The options of each script beside --tiny; words in the values name what the fixture below makes.
OPTIONS = {
    "attention": {},
    "big_batch": TEXTS,
    "budget": {},
    "collate": TEXTS,
    "corpus": {"--backbone": "backbone"},
    "encode": TEXTS,
    "letor": {"": "grid", "--runs": "runs"},
    "letor_reader": {"--data": "letor"},
    "losses": {},
    "mining": TEXTS,
    "padding": TEXTS,
    "quality_cross": TEXTS,
    "quality_dual": TEXTS,
    "ranknet_factorised": {},
    "search": TEXTS,
    "synthetic": {"--runs": "runs"},
    "tokens": TEXTS,
    "train_cross": TEXTS,
    "train_dual": TEXTS,
    "train_step": TEXTS,
}


def test_every_script_is_run():
    assert sorted(OPTIONS) == SCRIPTS


@pytest.fixture
def made(tmp_path, backbone, collection_folder, letor_folder):
    """What the options name."""
    base = tmp_path / "base.yaml"
    grid = tmp_path / "grid.yaml"
    text = (
        (ROOT / "experiments/features/lambdarank.yaml")
        .read_text()
        .replace("examples/lambdarank", str(letor_folder))
    )
    base.write_text(re.sub(r" +dev_share: .*\n", "", text))
    grid.write_text(
        "base: base.yaml\naxes: {loss: {mse: {model.loss: ltr.losses.MSELoss}, ranknet: {}}}\n"
    )
    return {
        "backbone": backbone,
        "collection": collection_folder,
        "letor": letor_folder,
        "grid": grid,
        "runs": tmp_path / "runs",
    }


def run(script: str, arguments: list[str], output: Path) -> None:
    """In a process of its own: run a script as the command line does."""
    os.chdir(ROOT)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    sys.argv = [f"benchmarks/{script}.py", *arguments]
    runpy.run_module(script, run_name="__main__", alter_sys=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_one_tiny_step(script, made, tmp_path):
    arguments = [
        str(word)
        for option, name in OPTIONS[script].items()
        for word in (option, made[name])
        if word
    ]
    output = tmp_path / "output.txt"
    process = forkserver().Process(target=run, args=(script, ["--tiny", *arguments], output))
    process.start()
    process.join(SECONDS)
    process.kill()  # where it is not done
    said = output.read_text()
    assert process.exitcode == 0, said
    assert not re.search(r"\| (ltr|ours).*cannot run", said), said  # others may be absent
    assert re.search(r"^\|.*\d", said, re.MULTILINE) or script == "big_batch", (
        f"no row with a number:\n{said}"
    )
