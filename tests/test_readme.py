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


@pytest.fixture(scope="module")
def reproduction():
    """The names of experiments/reproduce.py."""
    return runpy.run_path(str(ROOT / "experiments/reproduce.py"))


def reproduce(tmp_path, *words, target="reproduce"):
    """The commands of make reproduce, or of another target."""
    for name in ("Makefile", "setup.cfg", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/ready").touch()
    command = ["make", "--no-print-directory", "-n", target, f"DATA={tmp_path}", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def test_reproduce_runs_every_grid(tmp_path, reproduction):
    families = reproduction["FAMILIES"]
    commands = reproduce(tmp_path)
    assert commands.rstrip().endswith("experiments/reproduce.py")
    made = re.findall(r"experiments/reproduce.py ([\w-]+)", commands)
    assert len(made) == len(set(made)) and set(made) == {family.runs for family in families}
    by_benchmarks = set(re.findall(r"experiments/grids/(\w+).yaml", commands)) | {"synthetic"}
    grids = {file.stem for file in (ROOT / "experiments/grids").glob("*.yaml")}
    assert {family.grid for family in families} | by_benchmarks == grids


@pytest.mark.parametrize("table", ["heart", "distil", "wikiqa_folds", "losses", "cross_encoder"])
def test_what_the_runs_of_a_table_read_is_made_before(tmp_path, reproduction, table):
    """Folders of ``runs/data`` and ``runs/scores`` and the run that the grid or its base names."""
    commands = reproduce(tmp_path, target=f"results/{table}")
    for family in [one for one in reproduction["FAMILIES"] if one.runs == table]:
        file = ROOT / f"experiments/grids/{family.grid}.yaml"
        text = file.read_text() + Grid.read(file).base[0].read_text() + family.options
        for folder in re.findall(r"runs/(?:data/|scores/|health)[\w.-]*", text):
            before = commands.partition(f"experiments/reproduce.py {table}")[0]
            assert re.search(rf"{re.escape(folder)}(?=[\s/]|$)", before), folder


def test_a_quick_reproduction_wants_nothing_that_does_not_ship(tmp_path, reproduction):
    commands = reproduce(tmp_path, "QUICK=1")
    assert commands.rstrip().endswith("experiments/reproduce.py --quick")
    assert "data/" not in commands.replace("runs/data/", "")
    for family in [one for one in reproduction["FAMILIES"] if one.ships]:
        grid = Grid.read(ROOT / f"experiments/grids/{family.grid}.yaml")
        base = yaml.safe_load(grid.base[0].read_text())["data"]["init_args"]["path"]
        assert grid.options.get("data.path", base) in ("examples/medquad", "runs/data/medquad-400")


@pytest.mark.long
def test_reproduce_writes_the_page_below_its_mark(tmp_path, monkeypatch, reproduction):
    write_letor(tmp_path / "letor")
    data = BASE["data"] | {"init_args": {"path": str(tmp_path / "letor"), "batch_size": 4}}
    grids = tmp_path / "experiments/grids"
    grids.mkdir(parents=True)
    (grids / "base.txt").write_text(yaml.safe_dump(BASE | {"data": data}))
    grid = {"base": "base.txt", "axes": {"model.lr": [0.1, 0.2]}, "seeds": [0, 1]}
    grid["options"] = {"trainer.max_epochs": 1}
    (grids / "rates.yaml").write_text(f"# Asks: which rate?\n{yaml.safe_dump(grid)}")
    results = tmp_path / "docs/results.md"
    results.parent.mkdir()
    results.write_text(f"# Results\n\nBy hand.\n\n{reproduction['MARK']}An earlier page.")
    monkeypatch.chdir(tmp_path)
    main = reproduction["main"]
    family = reproduction["Family"]("rates", "rates")
    monkeypatch.setitem(main.__globals__, "FAMILIES", (family,))
    for words in (["rates"], []):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
        main()
    page = results.read_text()
    assert page.startswith("# Results\n\nBy hand.\n") and "An earlier page." not in page
    assert "Which rate?" in page and "| lr=0.2 | 2 |" in page and "seeds 0, 1" in page


def example(name: str, language: str) -> str:
    """The block of the README behind this mark."""
    page = (ROOT / "README.md").read_text()
    block = rf"<!-- example: {name} -->\n```{language}\n(.*?)```"
    return re.search(block, page, re.DOTALL).group(1)


def n_lines(block: str) -> int:
    return len([line for line in block.splitlines() if line])


def run(script: str, folder: Path) -> str:
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    done = run_command(["bash", "-e", "-c", script], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loss_in_four_lines(tmp_path):
    """Pairs 1 > 2 and 3 > 1 and 3 > 2: log(1 + e^-1.5), log(1 + e^1), log(1 + e^-0.5); their mean
    is 0.663.
    """
    block = example("loss", "python")
    assert n_lines(block) == 4
    (tmp_path / "loss.py").write_text(block)
    expected = statistics.mean(math.log(1 + math.exp(x)) for x in (-1.5, 1.0, -0.5))
    printed = run(f"{sys.executable} loss.py", tmp_path)
    assert float(re.search(r"[\d.]+", printed).group()) == pytest.approx(expected, abs=1e-4)
    assert printed.strip() == re.search(r"# (tensor.*)", block).group(1)


@pytest.mark.long
def test_the_five_lines_of_your_own_data_and_the_loss_of_your_own(warm_python, tmp_path):
    """The loss is found in the working directory, also by the console script, which does not look
    there by itself.
    """
    lines = example("data", "sh")
    loss = example("own loss", "python")
    assert n_lines(lines) == 5 and n_lines(loss) <= 8
    # As the console script: the first entry of the path is the script's folder, not the working
    # directory.
    (tmp_path / "bin").mkdir()
    script = f"#!{warm_python}\nimport sys\nfrom ltr.__main__ import main\nsys.exit(main())\n"
    (tmp_path / "bin/ltr").write_text(script)
    (tmp_path / "bin/ltr").chmod(0o755)
    run(lines, tmp_path)
    assert metrics(tmp_path / "runs/cross_encoder/seed=0")["test"]["queries"] == 1
    ranked = run(example("use", "sh"), tmp_path).splitlines()
    assert ranked[0].startswith("1\t") and "Madrid" in ranked[0] and "Seville" in ranked[1]
    assert (tmp_path / "exported/modules.json").is_file()
    card = (tmp_path / "exported/README.md").read_text()
    assert "It was tested on fewer than two queries" in card
    for name in ("load", "train"):
        code = example(name, "python")
        assert n_lines(code) <= 15
        (tmp_path / f"{name}.py").write_text(code)
    assert run(f"{warm_python} load.py", tmp_path) == "Madrid is the capital of Spain.\n"
    assert re.search(r"\[-?\d+\.\d+\]", run(f"{warm_python} train.py", tmp_path))
    (tmp_path / "my_losses.py").write_text(loss)
    page = (ROOT / "README.md").read_text().replace("\n", " ")
    command = re.search(r"`(ltr fit [^`]*my_losses.Gap[^`]*)`", page).group(1)
    run(command, tmp_path)  # beside the run of the example above
    assert metrics(tmp_path / "runs/gap/seed=0")["fit"]["steps"] > 0


@pytest.mark.long
def test_the_examples_in_python_pass_a_type_checker(tmp_path):
    """As in an editor of a user, who has no types in functions of his own."""
    page = (ROOT / "README.md").read_text()
    examples = re.findall(r"<!-- example: ([\w ]+) -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == page.count("```python\n") > 0
    wrong = "from ltr import load\n\nload('runs/a/seed=0', needs='embeddings').ranks('a query')\n"
    for name, block in [*examples, ("wrong", wrong)]:
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(block)
    options = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    options += ["--allow-untyped-defs", "--allow-incomplete-defs", "--follow-imports", "silent"]
    files = sorted(file.name for file in tmp_path.glob("*.py"))
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    command = [sys.executable, "-m", "mypy", *options, *files]
    done = run_command(command, cwd=tmp_path, env=environment)
    (line, _) = done.stdout.splitlines()
    assert line.startswith('wrong.py:3: error: "Retriever" has no attribute "ranks"'), done.stdout
