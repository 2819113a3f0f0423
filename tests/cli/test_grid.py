"""A family of experiments from one file: made once, resumed, chosen on dev, compared."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock, Timeout

from ltr.grid.definition import Grid
from tests.child_processes import until
from tests.grid.grids import LOSSES, folder, steps, write_grid  # noqa: F401
from tests.world.commands import refusal, run_ltr

GRID = "grid grids/losses.yaml"


def test_a_grid_is_made_once_and_compared(folder, capfd):
    assert run_ltr(f"{GRID} --csv out.csv") == 0
    told = capfd.readouterr().out
    runs = [f"runs/losses/{loss}/seed={seed}" for loss in LOSSES for seed in (1, 2)]
    assert [line.split(" (")[0] for line in told.splitlines() if line.endswith(" of 4)")] == runs
    assert "nDCG_exp@10 against ranknet" in told and Path("out.csv").is_file()
    configs = [yaml.safe_load(Path(run, "config.yaml").read_text()) for run in runs]
    losses = [one["model"]["loss"]["class_path"] for one in configs]
    assert losses == ["ltr.losses.RankNetLoss"] * 2 + ["ltr.losses.SoftmaxLoss"] * 2
    assert [one["seed_everything"] for one in configs] == [1, 2, 1, 2]
    assert [steps(run) for run in runs] == [6] * 4
    before = made_at(runs[:3])
    shutil.rmtree("runs/losses/softmax/seed=2")
    assert run_ltr(f"{GRID} --table") == 0
    assert "1 of 4 runs are not there yet" in capfd.readouterr().out and not Path(runs[3]).exists()
    assert run_ltr(f"{GRID} --only softmax") == 0
    assert made_at(runs[:3]) == before
    assert Path(runs[3], "test.run").is_file() and "against" not in capfd.readouterr().out


def made_at(runs):
    return [Path(run, "test.run").stat().st_mtime_ns for run in runs]


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_cell_leaves_with_its_grid(how, folder):
    """Killed with -9, the grid can tell nobody; the run that it waited for saves and ends all the
    same.
    """
    words = f"{GRID} --only ranknet --seeds 1 --trainer.max_epochs 100000".split()
    run = Path("runs/losses/ranknet/seed=1")
    grid = subprocess.Popen([sys.executable, "-m", "ltr", *words])
    until((run / "checkpoints/last.ckpt").is_file, grid.poll)
    grid.send_signal(how)
    assert grid.wait() == (143 if how == signal.SIGTERM else -signal.SIGKILL)

    def is_free() -> bool:
        try:
            with FileLock(run / ".lock", timeout=0):
                return True
        except Timeout:
            return False

    until(is_free)
    assert "SIGTERM" in (run / "train.log").read_text()
    done = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    time.sleep(2)
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == done > 0


@pytest.mark.long
def test_a_cell_that_is_ended_alone_has_failed_and_the_others_are_made(folder, capfd):
    """Somebody ends the process of a run, or the machine has no memory for it."""
    epochs = {"many": {"trainer.max_epochs": 1000}, "one": {"trainer.max_epochs": 1}}
    write_grid(folder, axes={"epochs": epochs}, seeds=[1])
    run = Path("runs/losses/many/seed=1")
    over = threading.Event()

    def end_it() -> None:
        until((run / "checkpoints/last.ckpt").is_file, lambda: 0 if over.is_set() else None)
        (process,) = multiprocessing.active_children()
        os.kill(process.pid, signal.SIGTERM)

    with ThreadPoolExecutor() as beside:
        ended = beside.submit(end_it)
        code = run_ltr("grid grids/losses.yaml")
        over.set()
        assert code == 2
        ended.result()
    told = capfd.readouterr().err
    assert f"{run}: ltr fit was ended by SIGTERM, see above; called again" in told
    assert "1 of 2 runs failed, see above: many/seed=1" in told
    assert Path("runs/losses/one/seed=1/test.run").is_file()


def test_options_of_all_cells_and_of_the_command_line_come_after_the_base(folder):
    options = {"model.lr": 0.2, "trainer.max_epochs": 2}
    write_grid(folder, axes={"loss": LOSSES}, options=options, seeds=[3])
    (cell, _) = Grid.read(folder / "grids/losses.yaml").cells()
    words = "--model.lr 0.2 --trainer.max_epochs 2 --model.loss ltr.losses.RankNetLoss"
    assert " ".join(cell.words()) == words
    assert cell.folder == Path("ranknet/seed=3")
    assert run_ltr(f"{GRID} --only ranknet --trainer.max_epochs 1") == 0
    config = yaml.safe_load(Path("runs/losses/ranknet/seed=3/config.yaml").read_text())
    assert config["model"]["lr"] == 0.2 and config["trainer"]["max_epochs"] == 1


FEW_FOLDS = "--folds must be at least 3: one to test"
BAD_ARGUMENTS = {
    "grids/losses.yaml --folds 2": FEW_FOLDS,
    "grids/losses.yaml --folds 0": FEW_FOLDS,
    "grids/losses.yaml --folds -1": FEW_FOLDS,
    "none.yaml": "no such grid file",
    "grids/losses.yaml --only mse": (
        "--only must name values of an axis, ranknet, softmax; got mse"
    ),
    "grids/losses.yaml --seeds=-1": "--seeds must be whole numbers of at least 0, got -1",
    "grids/losses.yaml --seed 3": "there is no option --seed; did you mean --seeds?",
    "grids/losses.yaml --lr 0.1": (
        "nothing was trained: there is no option --lr; did you mean --model.lr? "
        "(all options: ltr fit"
    ),
    "grids/losses.yaml --lr --table": (
        "the option --lr is none of ltr grid, and one of ltr fit must have a value"
    ),
    "grids/losses.yaml --table --epochs=3": (
        "there is no option --epochs; did you mean --trainer.max_epochs?"
    ),
    "grids/losses.yaml --ckpt_path last": (
        "ltr grid gives --ckpt_path to each run itself, by base and seeds of the grid file; leave"
    ),
}


@pytest.mark.parametrize("words", BAD_ARGUMENTS)
def test_bad_arguments_are_one_line(words, folder, capsys):
    assert BAD_ARGUMENTS[words] in refusal(capsys, f"grid {words}")
    assert not Path("runs").exists()


@pytest.mark.long
def test_the_others_are_made_where_a_cell_fails(folder, capfd):
    """What no parser sees, such as data that is not there, may be met in the middle of the night."""
    write_grid(folder, axes={"data": {"none": {"data.path": "none"}, "letor": {}}}, seeds=[1, 2])
    assert run_ltr(GRID) == 2
    told = capfd.readouterr().err.splitlines()
    assert sum("ltr fit ended with code 2, see above" in line for line in told) == 2
    failed = "2 of 4 runs failed, see above: none/seed=1, none/seed=2"
    assert told[-1] == f"ltr: runs/losses: {failed}; called again, ltr grid makes these alone"
    runs = ("runs/losses/letor/seed=1", "runs/losses/letor/seed=2")
    made = made_at(runs)
    assert not Path("runs/losses/none/seed=1/metrics.json").exists()
    # Mended, and called again.
    write_grid(folder, axes={"data": {"none": {"data.path": "letor"}, "letor": {}}}, seeds=[1, 2])
    assert run_ltr(GRID) == 0
    assert made_at(runs) == made


NOTHING = "losses: bad would be refused, so nothing was trained: "
REFUSED_CELLS = [
    ({"model.loss": "ltr.losses.NoLoss"}, NOTHING),
    ({"model.lrr": 0.1}, NOTHING),
    ({"trainer.accumulate_grad_batches": 0}, "accumulate_grad_batches must be at least 1, got 0"),
    (
        {"model.metrics": ["AP"]},
        "metrics must be among those of model.metrics, AP; "
        "got nDCG_exp@10 (bad); nothing was trained",
    ),
]


@pytest.mark.parametrize(("options", "text"), REFUSED_CELLS)
def test_all_cells_are_checked_before_the_first_is_trained(options, text, folder, capsys):
    write_grid(folder, axes={"loss": {"good": {}, "bad": options}}, seeds=[1])
    assert text in refusal(capsys, GRID)
    assert not Path("runs").exists()


def test_the_usual_metrics_are_known_before_they_are_measured(folder, capsys):
    base = yaml.safe_load(Path("base.yaml").read_text())
    base["model"].pop("metrics")
    Path("base.yaml").write_text(yaml.safe_dump(base))
    write_grid(folder, axes={"loss": LOSSES}, seeds=[1], metrics=["RR@5"])
    assert run_ltr(GRID) == 2
    expected = "those of model.metrics, nDCG@10, RR@10, AP, swapped_pairs; got RR@5"
    assert expected in capsys.readouterr().err
    measured = "--model.metrics [RR@5,nDCG@10] --best.monitor val/RR@5"
    assert run_ltr(f"{GRID} --only ranknet {measured}") == 0
