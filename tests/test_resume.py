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

from tests.test_cli import metrics, write_config

ROOT = Path(__file__).parents[1]


def start(config: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "ltr", "fit", "--config", str(config), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
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
    changed["trainer"]["callbacks"] = [{"class_path": f"tests.faults.{name}", "init_args": init}]
    file = config.with_name(f"{name}.yaml")
    file.write_text(yaml.safe_dump(changed))
    return file


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, backbone, collection_folder):
    """Weights after 2 epochs of 8 steps, never interrupted; and after the first step only, to see that the rest matters."""
    folder = tmp_path_factory.mktemp("whole")
    finish(start(write_config(folder, backbone, collection_folder)), 0)
    return weights(folder / "run")


# A checkpoint every 3 steps and after validations; epochs of 8. Step 4: goes on from 3, within the first epoch; 14: from 12, within the second;
# 8: from the end of the first epoch, after its validation; 5 with a validation every 4 steps: from 4, after a validation within an epoch.
@pytest.mark.slow
@pytest.mark.parametrize(("workers", "step", "validate_every"), [(0, 4, 1.0), (2, 14, 1.0), (2, 8, 1.0), (0, 5, 4)])
def test_a_killed_run_goes_on_to_the_same_weights(
    tmp_path, backbone, collection_folder, uninterrupted, workers, step, validate_every
):
    changes = {"data.init_args.num_workers": workers, "trainer.val_check_interval": validate_every}
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    finish(start(with_callback(config, "KillAt", step=step)), -signal.SIGKILL)
    at_kill = weights(tmp_path / "run")
    assert not all(torch.equal(at_kill[name], uninterrupted[name]) for name in at_kill)
    finish(start(config, "--ckpt_path", "last"), 0)
    assert_same(weights(tmp_path / "run"), uninterrupted)
    assert metrics(tmp_path / "run")["fit"]["steps"] == 16
    validated = [v["step"] for v in metrics(tmp_path / "run")["validations"]]
    assert validated == ([8, 16] if validate_every == 1.0 else [4, 8, 12, 16])


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(tmp_path, backbone, collection_folder, uninterrupted):
    config = write_config(tmp_path, backbone, collection_folder, **{"last.every_n_steps": 1000})
    process = start(with_callback(config, "Slow"))
    for line in process.stdout:
        if line.strip() == "step 5":
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = finish(process, 130)
    assert "saving last.ckpt" in output and "--ckpt_path last" in output and "Traceback" not in output
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 6
    finish(start(config, "--ckpt_path", "last"), 0)
    assert_same(weights(tmp_path / "run"), uninterrupted)
