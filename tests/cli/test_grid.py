"""A family of experiments from one file: made once, resumed, chosen on dev, compared."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import permutations
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock, Timeout

from ltr.__main__ import main
from ltr.errors import InputError
from ltr.grid import Grid
from ltr.grid.folder import GridFolder, deciding
from tests.conftest import write_letor
from tests.run.resumes import BASE

LOSSES = {
    "ranknet": {"model.loss": "ltr.losses.RankNetLoss"},
    "softmax": {"model.loss": {"class_path": "ltr.losses.SoftmaxLoss"}},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """``grids/losses.yaml`` over ``base.yaml``; the working directory holds both."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    write_letor(tmp_path / "letor")
    base = {key: value for key, value in BASE.items() if key != "seed_everything"}
    (tmp_path / "base.yaml").write_text(
        yaml.safe_dump(base | {"trainer": base["trainer"] | {"max_epochs": 1}})
    )
    write_grid(tmp_path, axes={"loss": LOSSES}, seeds=[1, 2])
    return tmp_path


def write_grid(folder: Path, **changes) -> None:
    (folder / "grids").mkdir(exist_ok=True)
    (folder / "grids/losses.yaml").write_text(
        yaml.safe_dump({"base": "../base.yaml", "metrics": ["nDCG_exp@10"]} | changes)
    )


def steps(folder: str) -> int:
    return json.loads(Path(folder, "metrics.json").read_text())["fit"]["steps"]


def test_a_grid_is_made_once_and_compared(folder, capfd):
    assert main(["grid", "grids/losses.yaml", "--csv", "out.csv"]) == 0
    told = capfd.readouterr().out
    runs = [f"runs/losses/{loss}/seed={seed}" for loss in LOSSES for seed in (1, 2)]
    assert [line.split(" (")[0] for line in told.splitlines() if line.endswith(" of 4)")] == runs
    assert "nDCG_exp@10 against ranknet" in told and Path("out.csv").is_file()
    configs = [yaml.safe_load(Path(run, "config.yaml").read_text()) for run in runs]
    assert [one["model"]["loss"]["class_path"].rpartition(".")[2] for one in configs] == [
        "RankNetLoss"
    ] * 2 + ["SoftmaxLoss"] * 2
    assert [one["seed_everything"] for one in configs] == [1, 2, 1, 2] and [
        steps(run) for run in runs
    ] == [6] * 4
    before = {run: Path(run, "test.run").stat().st_mtime_ns for run in runs}
    shutil.rmtree("runs/losses/softmax/seed=2")
    assert main(["grid", "grids/losses.yaml", "--table"]) == 0
    assert "1 of 4 runs are not there yet" in capfd.readouterr().out and not Path(runs[3]).exists()
    assert main(["grid", "grids/losses.yaml", "--only", "softmax"]) == 0
    assert {run: Path(run, "test.run").stat().st_mtime_ns for run in runs[:3]} == {
        run: before[run] for run in runs[:3]
    }
    assert Path(runs[3], "test.run").is_file() and "against" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("only", "missing"),
    [
        (["ranknet"], ["ranknet/low", "ranknet/high"]),
        (["ranknet", "low"], ["ranknet/low"]),
        (["ranknet", "softmax", "high"], ["ranknet/high", "softmax/high"]),
        (["low", "high"], ["ranknet/low", "ranknet/high", "softmax/low", "softmax/high"]),
    ],
)
def test_only_asks_on_each_axis_that_has_one_of_its_names(folder, capfd, only, missing):
    rates = {"low": {"model.lr": 0.001}, "high": {"model.lr": 0.01}}
    write_grid(folder, axes={"loss": LOSSES, "rate": rates}, seeds=[0])
    grid = Grid.read(Path("grids/losses.yaml"))
    assert sorted(str(cell.experiment) for cell in grid.cells(only=only)) == sorted(missing)


def test_a_cell_that_was_interrupted_is_resumed_and_one_of_another_process_left_to_it(
    folder, capfd
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
    hold = f"import filelock, time; lock = filelock.FileLock({str(run / '.cell')!r}); lock.acquire(); print('held', flush=True)"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"held\n"
    threading.Timer(1.0, other.kill).start()
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
    assert "1 of 1 runs are not there yet" in capfd.readouterr().err
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
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert (
        done.returncode == 0
        and "[rank 1]" not in done.stderr
        and steps("runs/losses/ranknet/seed=1") == 3
    )


def test_options_that_add_do_not_replace_each_other():
    def said(*words):
        return deciding({"base": [], "seed": 0, "options": [*words]})

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


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_cell_leaves_with_its_grid(how, folder):
    """Killed with -9, the grid can tell nobody; the run that it waited for saves and ends all the
    same.
    """
    words = [
        "grid",
        "grids/losses.yaml",
        "--only",
        "ranknet",
        "--seeds",
        "1",
        "--trainer.max_epochs",
        "100000",
    ]
    run = Path("runs/losses/ranknet/seed=1")
    grid = subprocess.Popen([sys.executable, "-m", "ltr", *words])
    until(lambda: (run / "checkpoints/last.ckpt").is_file())
    grid.send_signal(how)
    assert grid.wait(60) == (143 if how == signal.SIGTERM else -signal.SIGKILL)

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


def until(true, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


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


def test_options_of_all_cells_and_of_the_command_line_come_after_the_base(folder):
    write_grid(
        folder, axes={"loss": LOSSES}, options={"model.lr": 0.2, "trainer.max_epochs": 2}, seeds=[3]
    )
    (cell, _) = Grid.read(folder / "grids/losses.yaml").cells()
    assert cell.words() == [
        "--model.lr",
        "0.2",
        "--trainer.max_epochs",
        "2",
        "--model.loss",
        "ltr.losses.RankNetLoss",
    ]
    assert cell.folder == Path("ranknet/seed=3")
    assert (
        main(["grid", "grids/losses.yaml", "--only", "ranknet", "--trainer.max_epochs", "1"]) == 0
    )
    config = yaml.safe_load(Path("runs/losses/ranknet/seed=3/config.yaml").read_text())
    assert config["model"]["lr"] == 0.2 and config["trainer"]["max_epochs"] == 1


def test_values_are_named_for_folders(folder):
    write_grid(
        folder,
        axes={"data.init_args.path": ["a/b.tsv", "c"], "model.margin": [None, 0.5]},
        seeds=[0],
    )
    names = [cell.names for cell in Grid.read(folder / "grids/losses.yaml").cells()]
    assert names == [
        ("path=b.tsv", "margin=null"),
        ("path=b.tsv", "margin=0.5"),
        ("path=c", "margin=null"),
        ("path=c", "margin=0.5"),
    ]


REFUSED = {
    "unknown": (
        {"axis": {}},
        "a grid must have base and axes, and perhaps baseline, choose, metrics, options, seeds; got axis, base, metrics",
    ),
    "no base": (
        {"axes": {"loss": LOSSES}, "base": "none.yaml"},
        "base grids/none.yaml is not there; paths count from the grid's file",
    ),
    "bad axis": (
        {"axes": {"loss": "ranknet"}},
        "the axis loss must be a list of values, or names with their options",
    ),
    "bad seeds": (
        {"axes": {"loss": LOSSES}, "seeds": 3},
        "seeds must be a list of whole numbers, got 3",
    ),
    "bad choice": (
        {"axes": {"loss": LOSSES}, "choose": "lr"},
        "choose must be one of the axes loss, got 'lr'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_grid_is_one_line(case, folder, capsys):
    changes, text = REFUSED[case]
    write_grid(folder, **changes)
    assert main(["grid", "grids/losses.yaml"]) == 2
    told = capsys.readouterr().err
    assert (
        "grids/losses.yaml: " in told
        and text in told
        and told.count("\n") == 1
        and not Path("runs").exists()
    )


@pytest.mark.parametrize(
    "args, text",
    [
        (["none.yaml"], "no such grid file"),
        (
            ["grids/losses.yaml", "--only", "mse"],
            "--only must name values of an axis, ranknet, softmax; got mse",
        ),
        (["grids/losses.yaml", "--seed", "3"], "unrecognized arguments: --seed 3"),
    ],
)
def test_bad_arguments_are_one_line(args, text, folder, capsys):
    assert main(["grid", *args]) == 2
    told = capsys.readouterr().err
    assert text in told and told.count("\n") == 1


def test_a_run_of_other_options_is_not_taken_for_the_cell(folder, capsys):
    only = ["--only", "ranknet", "--seeds", "1"]
    assert main(["grid", "grids/losses.yaml", *only]) == 0
    capsys.readouterr()
    assert main(["grid", "grids/losses.yaml", *only, "--model.lr", "0.3"]) == 2
    assert (
        "runs/losses/ranknet/seed=1 was made by other options than losses has now (--model.lr); remove it"
        in capsys.readouterr().err
    )
    Path("runs/losses/ranknet/seed=1/cell.json").unlink()
    assert main(["grid", "grids/losses.yaml", *only]) == 2
    assert "holds a run that no grid has made" in capsys.readouterr().err


def test_the_others_are_made_where_a_cell_fails(folder, capfd):
    """What no parser sees, such as data that is not there, may be met in the middle of the night."""
    write_grid(folder, axes={"data": {"none": {"data.path": "none"}, "letor": {}}}, seeds=[1, 2])
    assert main(["grid", "grids/losses.yaml"]) == 2
    told = capfd.readouterr().err.splitlines()
    assert sum("ltr fit ended with code 2, see above" in line for line in told) == 2
    text = "runs/losses: 2 of 4 runs failed, see above: none/seed=1, none/seed=2; called again, ltr grid makes these alone"
    assert told[-1] == f"ltr: {text}"
    made = {
        run: Path(run, "test.run").stat().st_mtime_ns
        for run in ("runs/losses/letor/seed=1", "runs/losses/letor/seed=2")
    }
    assert not Path("runs/losses/none/seed=1/metrics.json").exists()
    write_grid(
        folder, axes={"data": {"none": {"data.path": "letor"}, "letor": {}}}, seeds=[1, 2]
    )  # mended, and called again
    assert main(["grid", "grids/losses.yaml"]) == 0
    assert {run: Path(run, "test.run").stat().st_mtime_ns for run in made} == made


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"model.loss": "ltr.losses.NoLoss"},
            "losses: bad would be refused, so nothing was trained: ",
        ),
        ({"model.lrr": 0.1}, "losses: bad would be refused, so nothing was trained: "),
        (
            {"trainer.accumulate_grad_batches": 0},
            "accumulate_grad_batches must be at least 1, got 0",
        ),
        (
            {"model.metrics": ["AP"]},
            "metrics must be among those of model.metrics, AP; got nDCG_exp@10 (bad); nothing was trained",
        ),
    ],
)
def test_all_cells_are_checked_before_the_first_is_trained(options, text, folder, capsys):
    write_grid(folder, axes={"loss": {"good": {}, "bad": options}}, seeds=[1])
    assert main(["grid", "grids/losses.yaml"]) == 2
    told = capsys.readouterr().err
    assert text in told and told.count("\n") == 1 and not Path("runs").exists()


def test_the_usual_metrics_are_known_before_they_are_measured(folder, capsys):
    base = yaml.safe_load(Path("base.yaml").read_text())
    base["model"].pop("metrics")
    Path("base.yaml").write_text(yaml.safe_dump(base))
    write_grid(folder, axes={"loss": LOSSES}, seeds=[1], metrics=["RR@5"])
    assert main(["grid", "grids/losses.yaml"]) == 2
    assert (
        "those of model.metrics, nDCG@10, RR@10, AP, swapped_pairs; got RR@5"
        in capsys.readouterr().err
    )
    write_grid(folder, axes={"loss": LOSSES}, seeds=[1], metrics=["RR@5"])
    assert (
        main(
            [
                "grid",
                "grids/losses.yaml",
                "--only",
                "ranknet",
                "--model.metrics",
                "[RR@5,nDCG@10]",
                "--best.monitor",
                "val/RR@5",
            ]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"axes": {"scale": {"k": {}, "k?": {}, "k!": {}}}},
            "the values of scale must have names of their own, fit for folders",
        ),
        ({"axes": {"scale": {"..": {}}}}, "fit for folders; got '..'"),
        ({"axes": {"data.path": ["letor", "other/letor"]}}, "fit for folders; got 'path=letor'"),
        (
            {"baseline": "rankent"},
            "baseline must be a value of an axis, ranknet, softmax, got 'rankent'",
        ),
        ({"options": {"seed_everything": 5}}, "seeds are named by seeds"),
        ({"options": "foo"}, "options must be names with their values, got 'foo'"),
        ({"base": 3}, "is not there; paths count from the grid's file"),
        ({"choose": ["loss"]}, "choose must be one of the axes"),
    ],
)
def test_what_would_lose_a_cell_or_end_a_grid_late_is_refused_first(changes, text, folder, capsys):
    write_grid(folder, **{"axes": {"loss": LOSSES}} | changes)
    assert main(["grid", "grids/losses.yaml"]) == 2
    told = capsys.readouterr().err
    assert text in told and told.count("\n") == 1 and not Path("runs").exists()


def test_values_that_differ_late_have_folders_of_their_own(folder):
    write_grid(
        folder,
        axes={
            "scale": {"k=0.5": {}, "k=1.5": {}, "a_b": {}},
            "model.lr": [0.1234567, 0.1234568, 0.1],
        },
        seeds=[1],
    )
    names = {one.folder.as_posix() for one in Grid.read(Path("grids/losses.yaml")).cells()}
    assert len(names) == 9 and "lr=0.1/k=0.5/seed=1" in names


def test_a_name_that_is_given_twice_is_refused(folder, capsys):
    Path("grids/losses.yaml").write_text(
        "base: ../base.yaml\naxes:\n  loss:\n    a: {}\n    a: {}\n"
    )
    assert main(["grid", "grids/losses.yaml"]) == 2
    assert "losses.yaml:5: a key must be given once, got 'a' again" in capsys.readouterr().err


def test_a_baseline_is_compared_with_its_neighbours(folder):
    axes = {"loss": {"hinge": {}, "logistic": {}}, "margin": {"constant": {}, "learnt": {}}}
    write_grid(folder, axes=axes, baseline="constant")
    grid = Grid.read(Path("grids/losses.yaml"))
    names = [
        ("hinge", "constant"),
        ("hinge", "learnt"),
        ("logistic", "constant"),
        ("logistic", "learnt"),
    ]
    assert grid.pairs(names) == ([(1, 0), (3, 2)], [])
    assert grid.pairs(names[:2] + names[3:]) == (
        [(1, 0)],
        ["logistic/learnt is not compared with constant, which is not there"],
    )
    write_grid(folder, axes=axes | {"model.lr": [1, 2]}, baseline="constant", choose="model.lr")
    chosen = [
        (*one, f"lr={n % 2 + 1}") for n, one in enumerate(names)
    ]  # other rates were best for the neighbours
    assert Grid.read(Path("grids/losses.yaml")).pairs(chosen) == ([(1, 0), (3, 2)], [])
    write_grid(folder, axes=axes)
    assert Grid.read(Path("grids/losses.yaml")).pairs(names) == ([(1, 0), (2, 0), (3, 0)], [])


def test_a_test_that_was_interrupted_is_made_again(folder, capfd):
    words = ["grid", "grids/losses.yaml", "--only", "ranknet", "--seeds", "1"]
    assert main(words) == 0
    run = Path("runs/losses/ranknet/seed=1")
    (run / "per_query.tsv").unlink()
    weights = (run / "checkpoints/last.ckpt").stat().st_mtime_ns
    assert main(words) == 0 and (run / "per_query.tsv").is_file()
    assert (run / "checkpoints/last.ckpt").stat().st_mtime_ns == weights


def test_a_grid_without_axes_is_its_base(folder):
    write_grid(folder, axes={}, seeds=[1])
    assert [str(cell.folder) for cell in Grid.read(folder / "grids/losses.yaml").cells()] == [
        "base/seed=1"
    ]
    write_grid(folder, axes=[1])
    with pytest.raises(InputError, match="must be names with their values"):
        Grid.read(folder / "grids/losses.yaml")
