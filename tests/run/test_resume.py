"""Interrupted runs go on to the very same weights. Faults are real: SIGKILL and SIGINT of real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.test_command import metrics, write_config

ROOT = Path(__file__).parents[2]


def start(config: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "ltr", "fit", "--config", str(config), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes)


def finish(process: subprocess.Popen, code: int) -> str:
    output = process.communicate(timeout=240)[0]
    assert process.returncode == code, output
    return output


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def with_callback(config: Path, name: str, **init) -> Path:
    changed = yaml.safe_load(config.read_text())
    changed["trainer"].setdefault("callbacks", []).append({"class_path": f"tests.faults.{name}", "init_args": init})
    file = config.with_name(f"{name}.yaml")
    file.write_text(yaml.safe_dump(changed))
    return file


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, backbone, collection_folder):
    """Final weights and validations of 2 epochs of 8 batches, never interrupted, by batches per step."""
    found = {}

    def run(accumulate: int) -> tuple[dict, list]:
        if accumulate not in found:
            folder = tmp_path_factory.mktemp("whole")
            config = write_config(folder, backbone, collection_folder, **{"trainer.accumulate_grad_batches": accumulate})
            finish(start(config), 0)
            found[accumulate] = weights(folder / "run"), metrics(folder / "run")["validations"]
        return found[accumulate]

    return run


CASES = {
    "within the first epoch, from step 3": dict(workers=0, step=4),
    "within the second epoch, from step 12": dict(workers=2, step=14),
    "first step of the second epoch, from after the validation": dict(workers=2, step=8),
    "within the last validation, from step 15": dict(workers=0, step=16, within="validation"),
    "after a validation within an epoch, from step 4": dict(workers=0, step=5, validate_every=4),
    "while gradients are accumulated, from step 3": dict(workers=2, step=3, accumulate=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, backbone, collection_folder, uninterrupted, case):
    """Checkpoints every 3 steps and after validations; an epoch has 8 batches."""
    options = {"within": "step", "validate_every": 1.0, "accumulate": 1} | CASES[case]
    changes = {
        "data.init_args.num_workers": options["workers"],
        "trainer.val_check_interval": options["validate_every"],
        "trainer.accumulate_grad_batches": options["accumulate"],
    }
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    finish(start(with_callback(config, "KillAt", step=options["step"], within=options["within"])), -signal.SIGKILL)
    expected, validations = uninterrupted(options["accumulate"])
    at_kill = weights(tmp_path / "run")
    assert not all(torch.equal(at_kill[name], expected[name]) for name in at_kill)
    finish(start(config, "--ckpt_path", "last"), 0)
    assert_same(weights(tmp_path / "run"), expected)
    validated = metrics(tmp_path / "run")["validations"]
    if options["validate_every"] == 1.0:
        assert validated == validations
    else:
        assert [v["step"] for v in validated] == [4, 8, 12, 16]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(tmp_path, backbone, collection_folder, uninterrupted, workers):
    """As a terminal does it: the signal goes to the workers too."""
    changes = {"last.every_n_steps": 1000, "data.init_args.num_workers": workers}
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    process = start(with_callback(config, "Slow"))
    for line in process.stdout:
        if line.strip() == "step 5":
            break
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    output = finish(process, 130)
    assert "saving last.ckpt" in output and "--ckpt_path last" in output and "Traceback" not in output
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 6
    finish(start(config, "--ckpt_path", "last"), 0)
    assert_same(weights(tmp_path / "run"), uninterrupted(1)[0])
