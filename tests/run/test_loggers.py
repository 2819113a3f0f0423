"""Weights & Biases: one run for each experiment and seed, whatever interrupts it. The offline files
prove it.
"""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
import yaml
from wandb.proto import wandb_internal_pb2 as records

from ltr.__main__ import main
from tests.child_processes import run_command
from tests.conftest import write_letor
from tests.run.resumes import BASE


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A feature ranker of 6 steps an epoch that logs to the project ``tests``."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_letor(tmp_path / "letor")
    data = BASE["data"] | {"init_args": {"path": str(tmp_path / "letor"), "batch_size": 4}}
    trainer = {name: value for name, value in BASE["trainer"].items() if name != "logger"}
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(BASE | {"data": data, "trainer": trainer, "wandb": "tests"})
    )
    return tmp_path / "c.yaml"


def call(*args):
    assert main([str(one) for one in args]) == 0
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


def logged(starts, name):
    """Step and value of a metric, over all starts."""
    rows = []
    for one in (one.history for start in starts for one in start if one.HasField("history")):
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.item
        }
        rows += [(row.get("trainer/global_step"), row[name])] if name in row else []
    return rows


def test_a_run_that_was_interrupted_resumed_and_tested_is_one_run(config, tmp_path):
    run = tmp_path / "runs/losses/seed=3"
    call(
        "fit",
        "--config",
        config,
        "--trainer.default_root_dir",
        run,
        "--trainer.max_steps",
        8,
        "--trainer.log_every_n_steps",
        1,
    )
    call("fit", run, "--trainer.max_steps", 12)
    call("test", run)
    starts = offline(run)
    assert len(starts) == 3 and {one.run_id for one in runs_in(starts)} == {
        (run / "wandb/run-id").read_text()
    }
    for one in runs_in(starts):
        assert (one.project, one.run_group, one.display_name) == (
            "tests",
            "losses",
            "losses/seed=3",
        )
        assert {*one.tags} == {"FeatureRanker", "RankNetLoss", "FeatureDataModule"}
    steps = [step for step, _ in logged(starts, "train/loss")]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == 11, (
        "each step once, over both starts"
    )
    assert [step for step, _ in logged(starts, "val/nDCG_exp@10")] == [0, 5, 11], (
        "row 0 and two epochs"
    )
    artifacts = [one.artifact for start in starts for one in start if one.HasField("artifact")]
    artifacts += [
        one.request.log_artifact.artifact
        for start in starts
        for one in start
        if one.request.HasField("log_artifact")
    ]
    results = next(one for one in artifacts if one.type == "results")
    assert {entry.path for entry in results.manifest.contents} == {
        "metrics.json",
        "per_query.tsv",
        "test.run",
        "ir-metadata.yml",
        "config.yaml",
    }
    assert any(
        item.nested_key[:1] == ["test/per_query"]
        for start in starts
        for one in start
        for item in one.history.item
    )
    found = {
        item.key: json.loads(item.value_json)
        for start in starts
        for one in start
        for item in one.run.config.update
    }
    found |= {
        item.key: json.loads(item.value_json)
        for start in starts
        for one in start
        for item in one.config.update
    }
    assert found["model"]["lr"] == 0.1 and found["seed_everything"] == 3


def test_the_cells_of_a_grid_are_whole_runs(config, tmp_path, monkeypatch):
    """Their processes end without the hooks by which wandb would end its run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.yaml").write_text(
        "base: c.yaml\naxes: {}\nseeds: [0]\noptions: {trainer.max_steps: 2}"
    )
    call("grid", "g.yaml")
    trained, tested = offline(tmp_path / "runs/g/base/seed=0")
    assert [
        one.exit.exit_code for start in (trained, tested) for one in start if one.HasField("exit")
    ] == [0, 0]
    assert any(one.HasField("artifact") or one.request.HasField("log_artifact") for one in tested)


def test_a_run_that_fails_is_ended_and_the_next_one_is_another(config, tmp_path, capsys):
    nan = ["--model.lr", 1e30, "--trainer.default_root_dir", tmp_path / "a"]
    assert main([str(one) for one in ("fit", "--config", config, *nan)]) == 2
    call(
        "fit",
        "--config",
        config,
        "--trainer.max_steps",
        1,
        "--trainer.default_root_dir",
        tmp_path / "b",
    )
    assert len(offline(tmp_path / "b")) == 1


def test_each_combination_of_a_sweep_is_an_experiment(config, tmp_path, monkeypatch):
    """What an agent says by its environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    for number, (lr, seed) in enumerate([(0.1, 0), (0.1, 1), (0.2, 0)]):
        monkeypatch.setenv("WANDB_RUN_ID", f"agent{number}")
        call(
            "fit",
            "--config",
            config.name,
            f"--model.lr={lr}",
            f"--seed_everything={seed}",
            "--trainer.max_steps=1",
        )
    folders = sorted(Path("runs/c").glob("sweep-*"))
    assert [[one.name for one in sorted(folder.glob("seed=*"))] for folder in folders] in (
        [["seed=0", "seed=1"], ["seed=0"]],
        [["seed=0"], ["seed=0", "seed=1"]],
    )
    assert {(file.read_text()) for file in Path("runs/c").rglob("run-id")} == {
        "agent0",
        "agent1",
        "agent2",
    }


@pytest.mark.long
def test_two_processes_are_one_run(config, tmp_path):
    run = tmp_path / "runs/losses/seed=3"
    words = [
        "--trainer.default_root_dir",
        str(run),
        "--trainer.devices",
        "2",
        "--trainer.strategy",
        "ddp",
    ]
    command = [sys.executable, "-m", "ltr", "fit", "--config", str(config)]
    done = run_command([*command, *words, "--trainer.max_epochs", "1"])
    assert done.returncode == 0, done.stderr
    assert len(offline(run)) == 1
