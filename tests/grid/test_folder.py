"""The cells of a grid: which are made, resumed, left to another process, chosen."""

import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from ltr.__main__ import main
from ltr.grid.definition import Grid
from ltr.grid.folder import GridFolder, decisive_options
from tests.child_processes import run_command
from tests.grid.grids import LOSSES, folder, steps, write_grid  # noqa: F401


def test_a_cell_that_was_interrupted_is_resumed_and_one_of_another_process_left_to_it(
    folder, capfd, monkeypatch
):
    options = ["--only", "ranknet", "--seeds", "1", "--trainer.max_epochs", "2"]
    run = Path("runs/losses/ranknet/seed=1")
    run.mkdir(parents=True)
    stops = [
        "--trainer.default_root_dir",
        str(run),
        "--seed_everything",
        "1",
        "--model.loss",
        "ltr.losses.RankNetLoss",
    ]
    assert main(["fit", "--config", "base.yaml", *stops]) == 0
    first = (run / "checkpoints/last.ckpt").stat().st_mtime_ns
    assert main(["grid", "grids/losses.yaml", *options]) == 2
    assert "holds a run that no grid has made" in capfd.readouterr().err
    grid = Grid.read(Path("grids/losses.yaml"))
    (cell,) = (one for one in grid.cells() if one.folder == Path("ranknet/seed=1"))
    (run / "cell.json").write_text(
        json.dumps(GridFolder(grid, Path("runs/losses"), options[-2:]).content(cell))
    )
    hold = f"import filelock, signal; lock = filelock.FileLock({str(run / '.cell')!r}); lock.acquire(); print('held', flush=True)"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; signal.pause()"], stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"held\n"

    def lock_or_wait(file, timeout, **options):
        if timeout == -1:  # the grid waits for the other process
            other.kill()
        return FileLock(file, timeout=timeout, **options)

    monkeypatch.setattr("ltr.grid.folder.FileLock", lock_or_wait)
    assert main(["grid", "grids/losses.yaml", *options]) == 0
    assert "another process works on it; waiting" in capfd.readouterr().out
    assert steps(run) == 12 and (run / "checkpoints/last.ckpt").stat().st_mtime_ns != first
    assert [
        row["step"] for row in json.loads((run / "metrics.json").read_text())["validations"]
    ] == [6, 12]


def test_a_cell_that_was_tested_before_its_end_is_trained_to_it(folder, capfd):
    """Somebody looks how an interrupted one is doing."""
    words = [
        "grid",
        "grids/losses.yaml",
        "--only",
        "ranknet",
        "--seeds",
        "1",
        "--trainer.max_epochs",
    ]
    assert main([*words, "1"]) == 0
    run = Path("runs/losses/ranknet/seed=1")
    made = json.loads((run / "cell.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    made["options"][-1], config["trainer"]["max_epochs"] = (
        "2",
        2,
    )  # as Ctrl-C after the first epoch leaves it
    (run / "cell.json").write_text(json.dumps(made))
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main([*words, "2", "--table"]) == 2
    assert f"1 of 1 runs are not there yet, first {run}," in capfd.readouterr().err
    assert main([*words, "2"]) == 0 and steps(run) == 12
    before = (run / "test.run").stat().st_mtime_ns
    last = run / "checkpoints/last.ckpt"
    whole = last.read_bytes()
    last.write_bytes(whole[:1000])
    assert main([*words, "2", "--table"]) == 2
    assert "1 of 1 runs are not there yet" in capfd.readouterr().err
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["trainer"] |= {
        "max_epochs": -1,
        "max_time": "{'seconds': 0}",
    }  # so the parser writes a mapping
    last.write_bytes(whole)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main([*words, "2", "--table"]) == 0
    last.unlink()  # its results stand
    assert main([*words, "2"]) == 0 and (run / "test.run").stat().st_mtime_ns == before


def test_what_changes_no_result_makes_no_other_cell(folder):
    words = ["grid", "grids/losses.yaml", "--only", "ranknet", "--seeds", "1"]
    assert main([*words, "--model.lr", "0.2", "--trainer.max_epochs", "1"]) == 0
    assert (
        main(
            [
                *words,
                "--trainer.max_epochs",
                "1",
                "--trainer.enable_progress_bar",
                "true",
                "--model.lr",
                "0.2",
            ]
        )
        == 0
    )


@pytest.mark.long
def test_a_cell_of_two_processes(folder):
    """Lightning starts the second one by the arguments of the first, which are those of the cell
    and not of the grid.
    """
    two = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    words = [
        sys.executable,
        "-m",
        "ltr",
        "grid",
        "grids/losses.yaml",
        "--only",
        "ranknet",
        "--seeds",
        "1",
        *two,
    ]
    done = run_command(words)
    assert (
        done.returncode == 0
        and "[rank 1]" not in done.stderr
        and steps("runs/losses/ranknet/seed=1") == 6
    )


def test_options_that_add_do_not_replace_each_other():
    def said(*words):
        return decisive_options({"base": [], "seed": 0, "options": [*words]})

    adding = (
        ("--trainer.callbacks+", "mine.A"),
        ("--trainer.callbacks+", "mine.B"),
        ("--trainer.callbacks", "[]"),
    )
    orders = [
        said(*(word for at in order for word in adding[at])) for order in permutations(range(3))
    ]
    assert (
        len({str(one) for one in orders}) == 5
    )  # that B was added first means nothing once the list is emptied
    assert said("--model.lr", "1", "--wandb", "x", "--model.lr", "2") == said("--model.lr", "2")


def test_what_is_best_on_dev_is_chosen_with_the_first_seed(folder, capfd):
    write_grid(
        folder, axes={"loss": LOSSES, "model.lr": [0.1, 1e-6]}, choose="model.lr", seeds=[1, 2]
    )
    assert main(["grid", "grids/losses.yaml"]) == 0
    told = capfd.readouterr().out
    assert "chosen on dev: ranknet/lr=0.1, softmax/lr=0.1" in told
    made = {
        str(file.parent.relative_to("runs/losses"))
        for file in Path("runs/losses").rglob("test.run")
    }
    once = {f"{loss}/lr={lr}/seed=1" for loss in LOSSES for lr in ("0.1", "1e-06")}
    assert made == once | {f"{loss}/lr=0.1/seed=2" for loss in LOSSES}
    assert (
        "softmax/lr=0.1" in told.split("nDCG_exp@10 against")[1]
        and "1e-06" not in told.split("nDCG_exp@10 against")[1]
    )


def test_a_run_of_other_options_is_not_taken_for_the_cell(folder, capsys):
    only = ["--only", "ranknet", "--seeds", "1"]
    assert main(["grid", "grids/losses.yaml", *only]) == 0
    capsys.readouterr()
    assert main(["grid", "grids/losses.yaml", *only, "--model.lr", "0.3"]) == 2
    assert (
        "runs/losses/ranknet/seed=1 was made by other options than losses has now (--model.lr); remove it"
        in capsys.readouterr().err
    )
    config = Path("runs/losses/ranknet/seed=1/config.yaml")
    whole = config.read_text()
    options = yaml.safe_load(whole)
    without_trainer = {name: options[name] for name in options if name != "trainer"}
    for text, message in (
        ("", "the file must hold the options of a run, and holds nothing"),
        (yaml.safe_dump(without_trainer), "the file is damaged, trainer must be there, and is not"),
        (
            yaml.safe_dump(options | {"trainer": None}),
            "the file is damaged, trainer must be an object, got null",
        ),
    ):
        config.write_text(text)
        assert main(["grid", "grids/losses.yaml", *only, "--table"]) == 2
        assert capsys.readouterr().err == f"ltr: {config}: {message}; restore it\n"
    config.write_text(whole)
    Path("runs/losses/ranknet/seed=1/cell.json").unlink()
    assert main(["grid", "grids/losses.yaml", *only]) == 2
    assert "holds a run that no grid has made" in capsys.readouterr().err


def test_a_test_that_was_interrupted_is_made_again(folder, capfd):
    words = ["grid", "grids/losses.yaml", "--only", "ranknet", "--seeds", "1"]
    assert main(words) == 0
    run = Path("runs/losses/ranknet/seed=1")
    (run / "per_query.tsv").unlink()
    weights = (run / "checkpoints/last.ckpt").stat().st_mtime_ns
    assert main(words) == 0 and (run / "per_query.tsv").is_file()
    assert (run / "checkpoints/last.ckpt").stat().st_mtime_ns == weights
