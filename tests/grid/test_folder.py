"""The cells of a grid: which are made, resumed, left to another process, chosen."""

import json
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from ltr.grid.definition import Grid
from ltr.grid.folder import GridFolder, decisive_options
from tests.child_processes import run_command
from tests.grid.grids import LOSSES, folder, steps, write_base, write_grid  # noqa: F401
from tests.world.commands import refusal, run_ltr

RANKNET = "grid grids/losses.yaml --only ranknet --seeds 1"
RUN = Path("runs/losses/ranknet/seed=1")


@pytest.fixture(scope="module")
def made_cell(tmp_path_factory):
    """A folder whose grid has made ranknet/seed=1, of one epoch."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_base(place)
        assert run_ltr(f"{RANKNET} --trainer.max_epochs 1") == 0
    return place


@pytest.fixture
def made(made_cell, tmp_path, monkeypatch):
    """A copy of it, as if it had been made there: the working directory."""
    shutil.copytree(made_cell, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    results = json.loads((RUN / "metrics.json").read_text())
    (RUN / "metrics.json").write_text(json.dumps(results | {"directory": str(tmp_path)}))
    return tmp_path


@pytest.mark.long
def test_a_cell_that_was_interrupted_is_resumed_and_one_of_another_process_left_to_it(
    folder, capfd, monkeypatch
):
    cell_of_two_epochs = f"{RANKNET} --trainer.max_epochs 2"
    RUN.mkdir(parents=True)
    options = "--seed_everything 1 --model.loss ltr.losses.RankNetLoss"
    assert run_ltr(f"fit --config base.yaml --trainer.default_root_dir {RUN} {options}") == 0
    first = (RUN / "checkpoints/last.ckpt").stat().st_mtime_ns
    assert run_ltr(cell_of_two_epochs) == 2
    assert "holds a run that no grid has made" in capfd.readouterr().err
    grid = Grid.read(Path("grids/losses.yaml"))
    (cell,) = (one for one in grid.cells() if one.folder == Path("ranknet/seed=1"))
    content = GridFolder(grid, Path("runs/losses"), ["--trainer.max_epochs", "2"]).content(cell)
    (RUN / "cell.json").write_text(json.dumps(content))
    hold = (
        f"import filelock, signal; lock = filelock.FileLock({str(RUN / '.cell')!r}); "
        "lock.acquire(); print('held', flush=True); signal.pause()"
    )
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"

    def lock_or_wait(file, timeout, **options):
        if timeout == -1:  # the grid waits for the other process
            other.kill()
        return FileLock(file, timeout=timeout, **options)

    monkeypatch.setattr("ltr.grid.folder.FileLock", lock_or_wait)
    assert run_ltr(cell_of_two_epochs) == 0
    assert "another process works on it; waiting" in capfd.readouterr().out
    assert steps(RUN) == 12 and (RUN / "checkpoints/last.ckpt").stat().st_mtime_ns != first
    validations = json.loads((RUN / "metrics.json").read_text())["validations"]
    assert [row["step"] for row in validations] == [6, 12]


@pytest.mark.long
def test_a_cell_that_was_tested_before_its_end_is_trained_to_it(made, capfd):
    """Somebody looks how an interrupted one is doing."""
    cell = json.loads((RUN / "cell.json").read_text())
    config = yaml.safe_load((RUN / "config.yaml").read_text())
    # As Ctrl-C after the first epoch leaves it.
    cell["options"][-1] = "2"
    config["trainer"]["max_epochs"] = 2
    (RUN / "cell.json").write_text(json.dumps(cell))
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    words = f"{RANKNET} --trainer.max_epochs 2"
    assert run_ltr(f"{words} --table") == 2
    assert f"1 of 1 runs are not there yet, first {RUN}," in capfd.readouterr().err
    assert run_ltr(words) == 0 and steps(RUN) == 12
    before = (RUN / "test.run").stat().st_mtime_ns
    last = RUN / "checkpoints/last.ckpt"
    whole = last.read_bytes()
    last.write_bytes(whole[:1000])
    assert run_ltr(f"{words} --table") == 2
    assert "1 of 1 runs are not there yet" in capfd.readouterr().err
    config = yaml.safe_load((RUN / "config.yaml").read_text())
    # So the parser writes a mapping.
    config["trainer"] |= {"max_epochs": -1, "max_time": "{'seconds': 0}"}
    last.write_bytes(whole)
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    assert run_ltr(f"{words} --table") == 0
    last.unlink()  # its results stand
    assert run_ltr(words) == 0 and (RUN / "test.run").stat().st_mtime_ns == before


def test_what_changes_no_result_makes_no_other_cell(folder):
    rate = "--model.lr 0.2"
    epochs = "--trainer.max_epochs 1"
    assert run_ltr(f"{RANKNET} {rate} {epochs}") == 0
    assert run_ltr(f"{RANKNET} {epochs} --trainer.enable_progress_bar true {rate}") == 0


@pytest.mark.long
def test_a_cell_of_two_processes(folder):
    """Lightning starts the second one by the arguments of the first, which are those of the cell
    and not of the grid.
    """
    words = f"{RANKNET} --trainer.devices 2 --trainer.strategy ddp".split()
    done = run_command([sys.executable, "-m", "ltr", *words])
    assert done.returncode == 0 and "[rank 1]" not in done.stderr
    assert steps(RUN) == 6


def test_options_that_add_do_not_replace_each_other():
    def said(*words):
        return decisive_options({"base": [], "seed": 0, "options": [*words]})

    callbacks = "--trainer.callbacks"
    adding = ((f"{callbacks}+", "mine.A"), (f"{callbacks}+", "mine.B"), (callbacks, "[]"))
    orders = {
        str(said(*(word for pair in order for word in pair))) for order in permutations(adding)
    }
    # That B was added first means nothing once the list is emptied.
    assert len(orders) == 5
    assert said("--model.lr", "1", "--wandb", "x", "--model.lr", "2") == said("--model.lr", "2")


@pytest.mark.long
def test_what_is_best_on_dev_is_chosen_with_the_first_seed(folder, capfd):
    axes = {"loss": LOSSES, "model.lr": [0.1, 1e-6]}
    write_grid(folder, axes=axes, choose="model.lr", seeds=[1, 2])
    assert run_ltr("grid grids/losses.yaml") == 0
    told = capfd.readouterr().out
    assert "chosen on dev: ranknet/lr=0.1, softmax/lr=0.1" in told
    tested = Path("runs/losses").rglob("test.run")
    made = {str(file.parent.relative_to("runs/losses")) for file in tested}
    once = {f"{loss}/lr={lr}/seed=1" for loss in LOSSES for lr in ("0.1", "1e-06")}
    assert made == once | {f"{loss}/lr=0.1/seed=2" for loss in LOSSES}
    table = told.split("nDCG_exp@10 against")[1]
    assert "softmax/lr=0.1" in table and "1e-06" not in table


def test_a_run_of_other_options_is_not_taken_for_the_cell(made, capsys):
    words = f"{RANKNET} --trainer.max_epochs 1"
    line = refusal(capsys, f"{words} --model.lr 0.3")
    assert f"{RUN} was made by other options than losses has now (--model.lr); remove it" in line
    config = RUN / "config.yaml"
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
        line = refusal(capsys, f"{words} --table")
        assert line == f"ltr: {config}: {message}; restore it"
    config.write_text(whole)
    (RUN / "cell.json").unlink()
    assert run_ltr(words) == 2
    assert "holds a run that no grid has made" in capsys.readouterr().err


def test_a_test_that_was_interrupted_is_made_again(made):
    (RUN / "per_query.tsv").unlink()
    weights = (RUN / "checkpoints/last.ckpt").stat().st_mtime_ns
    assert run_ltr(f"{RANKNET} --trainer.max_epochs 1") == 0
    assert (RUN / "per_query.tsv").is_file()
    assert (RUN / "checkpoints/last.ckpt").stat().st_mtime_ns == weights
