"""Weights & Biases and TensorBoard: one run for each experiment and seed, whatever interrupts it. The
files on the disk prove it.
"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
import yaml
from filelock import FileLock
from wandb.proto import wandb_internal_pb2 as records

from ltr.__main__ import main
from ltr.run.loggers import build_loggers
from ltr.run.run_folder import RunFolder
from tests.child_processes import run_command, until
from tests.run.kills import Child, waiting
from tests.run.kills import start as fit
from tests.run.resumes import BASE
from tests.world.commands import refusal
from tests.world.features import write_letor
from tests.world.tested_runs import write_run

# Weights & Biases holds back what it writes for 15 s, which a kill loses.
FLUSH_SECONDS = "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A feature ranker of 6 steps an epoch that logs to the project ``tests``."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    # The service of an earlier test in this process: it would keep the run of a program that was
    # killed, and the next start could not have it.
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    write_letor(tmp_path / "letor")
    data = BASE["data"] | {"init_args": {"path": str(tmp_path / "letor"), "batch_size": 4}}
    trainer = {name: value for name, value in BASE["trainer"].items() if name != "logger"}
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(BASE | {"data": data, "trainer": trainer, "wandb": "tests"})
    )
    return tmp_path / "c.yaml"


def call(words: str) -> None:
    assert main(words.split()) == 0
    assert wandb.run is None, "the command has ended it"
    time.sleep(1.1)  # folders are named by the second


def offline(run: Path) -> list[list[records.Record]]:
    """What each start of a run has written, in the order of time."""
    found = []
    for file in sorted((run / "wandb").glob("offline-run-*/*.wandb")):
        found.append([records.Record.FromString(text) for text in log_records(file.read_bytes())])
    return found


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, behind a header of 7 bytes.

    Blocks of 32 KiB hold parts of records, each with a checksum, its length, and whether it is the
    whole (1), the first part (2), one in the middle (3) or the last (4).
    """
    at = 7
    text = b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        text += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield text
            text = b""


def runs_in(starts):
    return [one.run for start in starts for one in start if one.HasField("run")]


def rows_in(starts) -> list[dict[str, str]]:
    """The rows that were logged, over all starts: each value by its name."""
    histories = [one.history for start in starts for one in start if one.HasField("history")]
    return [
        {item.key or "/".join(item.nested_key): item.value_json for item in history.item}
        for history in histories
    ]


def logged(starts, name):
    """Step and value of a metric, over all starts."""
    return [
        (json.loads(row.get("trainer/global_step", "null")), json.loads(row[name]))
        for row in rows_in(starts)
        if name in row
    ]


def row_numbers(starts):
    """The numbers of all rows that have a metric. The server tells rows apart by them."""
    rows = [row for row in rows_in(starts) if any(not name.startswith("_") for name in row)]
    return [int(row["_step"]) for row in rows]


def artifacts_in(starts):
    found = []
    for one in (record for start in starts for record in start):
        if one.HasField("artifact"):
            found.append(one.artifact)
        if one.request.HasField("log_artifact"):
            found.append(one.request.log_artifact.artifact)
    return found


def summary_in(starts) -> dict:
    """What the table of runs shows in the end."""
    found = {}
    for one in (record for start in starts for record in start):
        for item in one.summary.update:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def config_in(starts) -> dict:
    found = {}
    for one in (record for start in starts for record in start):
        for item in [*one.run.config.update, *one.config.update]:
            found[item.key] = json.loads(item.value_json)
    return found


@pytest.mark.long
def test_a_run_that_was_interrupted_resumed_and_tested_is_one_run(config, tmp_path):
    run = tmp_path / "runs/losses/seed=3"
    each_step = "--trainer.log_every_n_steps 1 --trainer.max_steps 8"
    call(f"fit --config {config} --trainer.default_root_dir {run} {each_step}")
    call(f"fit {run} --trainer.max_steps 12 --wandb_model true")
    call(f"test {run}")
    starts = offline(run)
    run_id = (run / "wandb/run-id").read_text()
    assert len(starts) == 3 and {one.run_id for one in runs_in(starts)} == {run_id}
    for one in runs_in(starts):
        names = (one.project, one.run_group, one.display_name)
        assert names == ("tests", "losses", "losses/seed=3")
        assert {*one.tags} == {"FeatureRanker", "RankNetLoss", "FeatureDataModule"}
    steps = [step for step, _ in logged(starts, "train/loss")]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == 11, (
        "each step once, over both starts"
    )
    validated = [step for step, _ in logged(starts, "val/nDCG_exp@10")]
    assert validated == [0, 5, 11], "row 0 and two epochs"
    numbers = row_numbers(starts)
    assert len(numbers) > 20 and numbers == sorted(set(numbers)), "of rows, over all three starts"
    results = next(one for one in artifacts_in(starts) if one.type == "results")
    files = {"metrics.json", "per_query.tsv", "test.run", "ir-metadata.yml", "config.yaml"}
    assert {entry.path for entry in results.manifest.contents} == files
    (weights,) = [one for one in artifacts_in(starts[1:2]) if one.type == "model"]
    found = {entry.path for entry in weights.manifest.contents}
    assert found == {"checkpoints/best.ckpt", "config.yaml", "metrics.json"}
    assert any(name.startswith("test/per_query") for row in rows_in(starts) for name in row)
    validations = json.loads((run / "metrics.json").read_text())["validations"]
    best = max(validations, key=lambda row: row["nDCG_exp@10"])
    summary = summary_in(starts)
    for name in ("nDCG_exp@10", "swapped_pairs", "step"):
        assert summary[f"best/{name}"] == pytest.approx(best[name]), name
    so_far = [max(row["nDCG_exp@10"] for row in validations[:n]) for n in (1, 2)]
    assert logged(starts, "best/nDCG_exp@10") == [(5, so_far[0]), (11, so_far[1])]
    assert [step for step, _ in logged(starts, "test/nDCG_exp@10")] == [best["step"] - 1]
    tested = json.loads((run / "metrics.json").read_text())["test"]
    assert summary["test/nDCG_exp@10"] == pytest.approx(tested["nDCG_exp@10"])
    assert {f"took/{name}" for name in ("seconds", "memory", "disk")} <= summary.keys()
    assert summary["took/memory"] > 10**7 and summary["took/seconds"] > 0
    columns = (run / "logs/version_0/metrics.csv").read_text().splitlines()[0].split(",")
    assert {"best/nDCG_exp@10", "took/seconds", "took/memory"} <= {*columns}
    found = config_in(starts)
    assert found["model"]["lr"] == 0.1 and found["seed_everything"] == 3


def test_a_comparison_is_a_run_with_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name / "seed=0", [0.25, 0.5] * 20)
    call("compare runs/a runs/b --wandb tests")
    starts = offline(tmp_path)
    (run,) = runs_in(starts)
    assert (run.project, run.job_type, run.display_name) == ("tests", "compare", "a and b")
    (report,) = [one for one in artifacts_in(starts) if one.type == "comparison"]
    assert {entry.path for entry in report.manifest.contents} == {
        "comparison.html",
        "comparison.csv",
    }
    (row,) = [row for row in rows_in(starts) if any("comparison" in name for name in row)]
    assert "html-file" in str(row)
    assert "logged to tests at Weights & Biases: " in capsys.readouterr().out


def test_weights_without_a_project_are_refused(config, capsys):
    words = f"fit --config {config} --wandb null --wandb_model true"
    assert "none is named (--wandb PROJECT)" in refusal(capsys, words)
    words = f"fit --config {config} --trainer.logger false --wandb_model true"
    assert "--wandb, and trainer.logger takes its place" in refusal(capsys, words)


@pytest.mark.parametrize("name", ["", " ", "team/", "/tests", "a/b/c", "what?", "x" * 129])
@pytest.mark.parametrize("command", ["fit --config {config}", "compare {run} {run}"])
def test_a_name_that_wandb_refuses_is_refused_before(config, capsys, tmp_path, command, name):
    words = command.format(config=config, run=tmp_path)
    told = refusal(capsys, words, "--wandb", name)
    assert told.startswith("ltr: --wandb must be PROJECT or ENTITY/PROJECT, ")
    assert told.endswith(f"got {name!r}")


def test_a_run_goes_to_the_project_of_an_entity(config, tmp_path):
    run = tmp_path / "run"
    place = f"--trainer.default_root_dir {run}"
    call(f"fit --config {config} --wandb team/tests --trainer.max_steps 1 {place}")
    (record,) = runs_in(offline(run))
    assert (record.entity, record.project) == ("team", "tests")


def test_what_wandb_refuses_is_one_line(config, tmp_path, capsys, monkeypatch):
    def refuse(**options):
        raise wandb.errors.CommError("no such\nentity")

    monkeypatch.setattr(wandb, "init", refuse)
    place = f"--trainer.default_root_dir {tmp_path / 'run'}"
    told = refusal(capsys, f"fit --config {config} {place}")
    assert told.startswith("ltr: --wandb: no such entity; mend that, or let WANDB_MODE=offline")


def test_a_logger_in_the_place_of_wandb_is_told(config, tmp_path, capsys):
    place = f"--trainer.default_root_dir {tmp_path / 'run'}"
    call(f"fit --config {config} --trainer.logger false --trainer.max_steps 1 {place}")
    assert capsys.readouterr().err == (
        "nothing is logged to tests at Weights & Biases: trainer.logger takes the place of --wandb\n"
    )
    assert not (tmp_path / "run/wandb").exists()


@pytest.mark.long
def test_the_cells_of_a_grid_are_whole_runs(config, here):
    """Their processes end without the hooks by which wandb would end its run."""
    grid = "base: c.yaml\naxes: {}\nseeds: [0]\noptions: {trainer.max_steps: 2}"
    (here / "g.yaml").write_text(grid)
    call("grid g.yaml")
    trained, tested = offline(here / "runs/g/base/seed=0")
    ends = [one.exit for start in (trained, tested) for one in start if one.HasField("exit")]
    assert [one.exit_code for one in ends] == [0, 0]
    assert artifacts_in([tested])


@pytest.mark.long
def test_a_run_that_fails_is_ended_and_the_next_one_is_another(config, tmp_path):
    nan = f"--model.lr 1e30 --trainer.default_root_dir {tmp_path / 'a'}"
    assert main(f"fit --config {config} {nan}".split()) == 2
    one_step = f"--trainer.max_steps 1 --trainer.default_root_dir {tmp_path / 'b'}"
    call(f"fit --config {config} {one_step}")
    assert len(offline(tmp_path / "b")) == 1


@pytest.mark.long
def test_each_combination_of_a_sweep_is_an_experiment(config, here, monkeypatch):
    """What an agent says by its environment."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    for number, (lr, seed) in enumerate([(0.1, 0), (0.1, 1), (0.2, 0)]):
        monkeypatch.setenv("WANDB_RUN_ID", f"agent{number}")
        options = f"--model.lr={lr} --seed_everything={seed} --trainer.max_steps=1"
        call(f"fit --config {config.name} {options}")
    folders = Path("runs/c").glob("sweep-*")
    seeds = [sorted(one.name for one in folder.glob("seed=*")) for folder in folders]
    assert sorted(seeds) == [["seed=0"], ["seed=0", "seed=1"]]
    ids = {file.read_text() for file in Path("runs/c").rglob("run-id")}
    assert ids == {"agent0", "agent1", "agent2"}


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
def test_two_processes_are_one_run(config, tmp_path):
    run = tmp_path / "runs/losses/seed=3"
    options = f"--trainer.devices 2 --trainer.strategy ddp --trainer.default_root_dir {run}"
    words = f"fit --config {config} {options} --trainer.max_epochs 1"
    done = run_command([sys.executable, "-m", "ltr", *words.split()])
    assert done.returncode == 0, done.stderr
    assert len(offline(run)) == 1


def changed(config: Path, name: str, **trainer) -> Path:
    """A copy of a configuration with other options of the trainer."""
    options = yaml.safe_load(config.read_text())
    options["trainer"] |= {"log_every_n_steps": 1} | trainer
    copy = config.with_name(name)
    copy.write_text(yaml.safe_dump(options))
    return copy


def test_only_the_first_process_makes_the_id(tmp_path, monkeypatch):
    """A launcher starts them at once. With an id of each, the last one would stay in the folder, and
    the resume would be another run.
    """
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr("ltr.run.loggers.is_rank_0", lambda: False)
    build_loggers(tmp_path, "tests", is_fit=True)
    assert not (tmp_path / "wandb").exists()
    monkeypatch.setattr("ltr.run.loggers.is_rank_0", lambda: True)
    build_loggers(tmp_path, "tests", is_fit=True)
    assert len(RunFolder(tmp_path).wandb_id.read_text()) == 8


def test_a_start_that_is_refused_makes_no_id(config, tmp_path, monkeypatch, capsys):
    """Of a launcher, whose processes meet before one takes the folder."""
    variables = {"TORCHELASTIC_RUN_ID": "7", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    variables |= {"LOCAL_WORLD_SIZE": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    run.mkdir()
    with FileLock(run / ".lock"):
        assert main(fit(run, config)) == 2
    assert "another command is running" in capsys.readouterr().err
    assert [file.name for file in run.iterdir()] == [".lock"]


@pytest.mark.long
def test_restarts_and_a_resume_with_fewer_processes_are_one_run(config, tmp_path):
    """torchrun starts two processes. The first is killed at step 7, and torchrun starts both again;
    all are killed at step 14, and one process alone goes on to step 18.
    """
    run = tmp_path / "runs/losses/seed=3"
    files = [tmp_path / "at7", tmp_path / "at14"]
    waits = []
    for file, step in zip(files, (7, 14), strict=True):
        wait = waiting(file, step=step)
        wait["init_args"]["seconds"] = 15.0
        waits.append(wait)
    slow = changed(config, "slow.yaml", callbacks=waits, devices=2, strategy="ddp")
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "5"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "one"]
    torchrun += ["-m", "ltr", *fit(run, slow)]
    output = tmp_path / "output"
    with open(output, "w") as told:
        agent = subprocess.Popen(
            [sys.executable, "-m", *torchrun],
            # Else the store of the agent keeps the addresses of processes that are gone, and a new
            # one waits for them.
            env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", FLUSH_SECONDS: "0.2"},
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(files[0].exists, agent.poll, said=output.read_text)
        time.sleep(2)  # until Weights & Biases has written
        os.kill(first_process(run), signal.SIGKILL)
        until(files[1].exists, agent.poll, said=output.read_text)
        time.sleep(2)
    finally:
        workers = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.killpg(agent.pid, signal.SIGKILL)
        for worker in workers:  # torchrun makes a process group of each, with the process of wandb
            os.killpg(int(worker), signal.SIGKILL)
        agent.wait()
    call(" ".join(fit(run, changed(config, "alone.yaml"))))

    lines = starts_in(run)
    assert re.fullmatch(r"the run begins: 2 processes on .*; torchrun one, restart 0", lines[0])
    goes_on = r"the run goes on from step \d+: "
    for line in lines[1:-1]:
        assert re.fullmatch(goes_on + r"2 processes on .*; torchrun one, restart [1-5]", line)
    alone = r"1 process on [^;]*; the first is process \d+ of [^;]*"
    assert re.fullmatch(goes_on + alone, lines[-1])
    starts = offline(run)
    assert len(starts) == len(lines) >= 3
    assert {one.run_id for one in runs_in(starts)} == {RunFolder(run).wandb_id.read_text()}
    values: dict[int, set[float]] = {}
    for step, loss in logged(starts, "train/loss"):
        values.setdefault(step, set()).add(loss)
    assert sorted(values) == list(range(18)), "no step is missing"
    assert row_numbers(starts) == sorted(set(row_numbers(starts)))
    for losses in values.values():  # a step that was logged twice has one value
        assert max(losses) == pytest.approx(min(losses), rel=1e-5)


def starts_in(run: Path) -> list[str]:
    """What ``train.log`` says of the starts of a run."""
    said = (run / "train.log").read_text()
    return re.findall(r"(?:DEBUG) ltr\.run\.checkpoints: (the run .*)", said)


def first_process(run: Path) -> int:
    """The number of the first process of the last start."""
    return int(re.findall(r"the first is process (\d+)", starts_in(run)[-1])[0])


@pytest.fixture
def killed_run(config, tmp_path):
    """``killed(run, step, **options)``: a run that logs to TensorBoard is killed in a step; returned
    is its logger. What reads its curves must be there.
    """
    pytest.importorskip("tensorboard")

    def kill(run: Path, step: int, **options) -> dict:
        logger = {
            "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
            "init_args": {"save_dir": str(tmp_path / "curves")} | options,
        }
        wait = waiting(tmp_path / "waits", step=step)
        slow = changed(config, "slow.yaml", callbacks=[wait], logger=logger)
        child = Child(fit(run, slow), tmp_path / "output")
        child.until(tmp_path / "waits")
        child.send(signal.SIGKILL)
        child.process.join()
        time.sleep(1.0)  # TensorBoard orders its files by the second in which they were begun
        return logger

    return kill


def steps_of_curve(folder: Path, name: str) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [one.step for one in EventAccumulator(str(folder)).Reload().Scalars(name)]


@pytest.mark.long
def test_tensorboard_has_one_folder_and_each_step_once(config, tmp_path, killed_run):
    """A run is killed in step 9 and resumed from the checkpoint of step 8 or before."""
    run = tmp_path / "runs/losses/seed=3"
    logger = killed_run(run, step=9)
    call(" ".join(fit(run, changed(config, "again.yaml", logger=logger))))
    call(f"test --config {run / 'config.yaml'} --ckpt_path last")
    folder = tmp_path / "curves/lightning_logs/losses/seed=3"
    assert {file.parent for file in (tmp_path / "curves").rglob("events.*")} == {folder}
    assert steps_of_curve(folder, "train/loss") == list(range(18))
    # Before training, and after each of three epochs of 6 steps.
    assert steps_of_curve(folder, "val/nDCG_exp@10") == [0, 5, 11, 17]
    assert steps_of_curve(folder, "best/nDCG_exp@10") == [5, 11, 17]
    assert steps_of_curve(folder, "test/nDCG_exp@10") == [17]


@pytest.mark.long
def test_tensorboard_forgets_a_start_without_a_checkpoint(config, tmp_path, killed_run):
    """It was killed before its first one, so the run begins again."""
    run = tmp_path / "run"
    logger = killed_run(run, step=2, version="mine")
    assert not RunFolder(run).holds_checkpoints()
    call(" ".join(fit(run, changed(config, "again.yaml", logger=logger, max_epochs=1))))
    folder = tmp_path / "curves/lightning_logs/mine"
    assert steps_of_curve(folder, "train/loss") == list(range(6))
