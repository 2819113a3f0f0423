"""The README's examples are run as they stand."""

import math
import os
import re
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ltr.grid.definition import Grid
from tests.child_processes import run_command
from tests.run.resumes import BASE
from tests.world.features import write_letor
from tests.world.runs import metrics

ROOT = Path(__file__).parents[1]


def test_the_tables_are_filled():
    assert "_TABLE" not in (ROOT / "README.md").read_text()


def reproduce(tmp_path, *words, target="reproduce"):
    """The commands of make reproduce, or of another target."""
    for name in ("Makefile", "setup.cfg", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/ready").touch()
    command = ["make", "--no-print-directory", "-n", target, f"DATA={tmp_path}", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def test_reproduce_runs_every_grid(tmp_path):
    families = runpy.run_path(str(ROOT / "experiments/reproduce.py"))["FAMILIES"]
    commands = reproduce(tmp_path)
    assert commands.rstrip().endswith("experiments/reproduce.py")
    made = re.findall(r"experiments/reproduce.py ([\w-]+)", commands)
    assert len(made) == len(set(made)) and set(made) == {family.runs for family in families}
    by_benchmarks = set(re.findall(r"experiments/grids/(\w+).yaml", commands)) | {"synthetic"}
    assert {family.grid for family in families} | by_benchmarks == {
        file.stem for file in (ROOT / "experiments/grids").glob("*.yaml")
    }


@pytest.mark.parametrize("table", ["heart", "distil", "wikiqa_folds", "losses", "cross_encoder"])
def test_what_the_runs_of_a_table_read_is_made_before(tmp_path, table):
    """Folders of ``runs/data`` and ``runs/scores`` and the run that the grid or its base names."""
    commands = reproduce(tmp_path, target=f"results/{table}")
    families = runpy.run_path(str(ROOT / "experiments/reproduce.py"))["FAMILIES"]
    for family in families:
        if family.runs != table:
            continue
        file = ROOT / f"experiments/grids/{family.grid}.yaml"
        text = file.read_text() + Grid.read(file).base[0].read_text() + family.options
        for folder in re.findall(r"runs/(?:data/|scores/|health)[\w.-]*", text):
            before = commands.partition(f"experiments/reproduce.py {table}")[0]
            assert re.search(rf"{re.escape(folder)}(?=[\s/]|$)", before), folder


def test_a_quick_reproduction_wants_nothing_that_does_not_ship(tmp_path):
    commands = reproduce(tmp_path, "QUICK=1")
    assert commands.rstrip().endswith("experiments/reproduce.py --quick")
    assert "data/" not in commands.replace("runs/data/", "")
    scope = runpy.run_path(str(ROOT / "experiments/reproduce.py"))
    grids = {
        one.grid: Grid.read(ROOT / f"experiments/grids/{one.grid}.yaml")
        for one in scope["FAMILIES"]
        if one.ships
    }
    for grid in grids.values():
        base = yaml.safe_load(grid.base[0].read_text())["data"]["init_args"]["path"]
        assert grid.options.get("data.path", base) in ("examples/medquad", "runs/data/medquad-400")


def test_reproduce_writes_the_page_below_its_mark(tmp_path, monkeypatch, capsys):
    write_letor(tmp_path / "letor")
    data = BASE["data"] | {"init_args": {"path": str(tmp_path / "letor"), "batch_size": 4}}
    (tmp_path / "experiments/grids").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "experiments/grids/base.txt").write_text(yaml.safe_dump(BASE | {"data": data}))
    grid = "# Asks: which rate?\nbase: base.txt\naxes: {model.lr: [0.1, 0.2]}\nseeds: [0, 1]\noptions: {trainer.max_epochs: 1}\n"
    (tmp_path / "experiments/grids/rates.yaml").write_text(grid)
    scope = runpy.run_path(str(ROOT / "experiments/reproduce.py"))
    (tmp_path / "docs/results.md").write_text(
        f"# Results\n\nBy hand.\n\n{scope['MARK']}An earlier page."
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(scope["main"].__globals__, "FAMILIES", (scope["Family"]("rates", "rates"),))
    for words in (["rates"], []):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
        scope["main"]()
    page = (tmp_path / "docs/results.md").read_text()
    assert page.startswith("# Results\n\nBy hand.\n") and "An earlier page." not in page
    assert "Which rate?" in page and "| lr=0.2 | 2 |" in page and "seeds 0, 1" in page


def example(name: str, language: str) -> str:
    """The block of the README behind this mark."""
    page = (ROOT / "README.md").read_text()
    return re.search(rf"<!-- example: {name} -->\n```{language}\n(.*?)```", page, re.DOTALL).group(
        1
    )


def run(script: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_command(["bash", "-e", "-c", script], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loss_in_four_lines(tmp_path):
    """Pairs 1 > 2 and 3 > 1 and 3 > 2: log(1 + e^-1.5), log(1 + e^1), log(1 + e^-0.5); their mean
    is 0.663.
    """
    block = example("loss", "python")
    assert len([line for line in block.splitlines() if line]) == 4
    (tmp_path / "loss.py").write_text(block)
    expected = statistics.mean(math.log(1 + math.exp(x)) for x in (-1.5, 1.0, -0.5))
    printed = run(f"{sys.executable} loss.py", tmp_path)
    assert float(re.search(r"[\d.]+", printed).group()) == pytest.approx(expected, abs=1e-4)
    assert printed.strip() == re.search(r"# (tensor.*)", block).group(1)


@pytest.mark.slow
def test_the_five_lines_of_your_own_data_and_the_loss_of_your_own(warm_python, tmp_path):
    """The loss is found in the working directory, also by the console script, which does not look
    there by itself.
    """
    lines = example("data", "sh")
    loss = example("own loss", "python")
    assert (
        len(lines.strip().splitlines()) == 5
        and len([line for line in loss.splitlines() if line]) <= 8
    )
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    # As the console script: the first entry of the path is the script's folder, not the working
    # directory.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ltr").write_text(
        f"#!{warm_python}\nimport sys\nfrom ltr.__main__ import main\nsys.exit(main())\n"
    )
    (tmp_path / "bin/ltr").chmod(0o755)
    run(lines.replace(".venv/bin/ltr", "bin/ltr"), tmp_path)
    assert metrics(tmp_path / "runs/cross_encoder/own/seed=0")["test"]["queries"] == 1
    use = example("use", "sh")
    load = example("load", "python")
    train = example("train", "python")
    ranked = run(use.replace(".venv/bin/ltr", "bin/ltr"), tmp_path).splitlines()
    assert ranked[0].startswith("1\t") and "Madrid" in ranked[0] and "Seville" in ranked[1]
    assert (tmp_path / "exported/modules.json").is_file()
    card = (tmp_path / "exported/README.md").read_text()
    assert "It was tested on fewer than two queries" in card
    for name, code in (("load", load), ("train", train)):
        assert len([line for line in code.splitlines() if line]) <= 15
        (tmp_path / f"{name}.py").write_text(code)
    assert run(f"{warm_python} load.py", tmp_path) == "Madrid is the capital of Spain.\n"
    assert re.search(r"\[-?\d+\.\d+\]", run(f"{warm_python} train.py", tmp_path))
    (tmp_path / "my_losses.py").write_text(loss)
    command = re.search(
        r"`\.venv/bin/(ltr fit [^`]*my_losses.Gap[^`]*)`",
        (ROOT / "README.md").read_text().replace("\n", " "),
    ).group(1)
    run(f"bin/{command}", tmp_path)  # beside the run of the example above
    assert metrics(tmp_path / "runs/gap/seed=0")["fit"]["steps"] > 0
