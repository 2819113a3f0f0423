"""Which processes compute a run doesn't matter; python tests/run/any_processes.py tries more of it."""

import signal
from pathlib import Path

import pytest
import torch
import yaml

from ltr.__main__ import main
from tests.run.any_processes import CHOSEN, distance
from tests.run.interrupted import world  # noqa: F401  # a fixture
from tests.run.kills import Child, start, waiting
from tests.run.resumes import VARIANTS, configured


def _configured(world: Path, folder: Path, variant: str, **changes) -> Path:
    """The file of a variant; its callbacks stay, and those in the changes join them."""
    folder.mkdir()
    callbacks = VARIANTS[variant].get("trainer.callbacks", []) + changes.pop("callbacks", [])
    file = folder / "variant.yaml"
    whole = VARIANTS[variant] | changes | {"trainer.callbacks": callbacks}
    file.write_text(yaml.safe_dump(configured(whole, world)))
    return file


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
@pytest.mark.parametrize("variant", CHOSEN.values())
def test_a_run_goes_on_with_any_number_of_processes(variant, world, tmp_path, capfd):
    """Three processes that share eight or four lists unevenly are ended in the fourth step, and one
    goes on: to the weights of one process that was never interrupted, but for rounding. The
    validations have the same queries, so their values are equal but for a few swapped documents.
    """
    alone = tmp_path / "alone/run"
    assert main(start(alone, _configured(world, alone.parent, variant))) == 0
    frozen = {"trainer.max_steps": 1, "trainer.max_epochs": -1, "model.lr": 0.0}
    begin = tmp_path / "begin/run"
    assert main(start(begin, _configured(world, begin.parent, variant, **frozen))) == 0
    weights = torch.load(begin / "checkpoints/last.ckpt", weights_only=True)["state_dict"]

    three = {"trainer.devices": 3, "trainer.strategy": "ddp"}
    wait = waiting(tmp_path / "waits", step=3, within="step")
    file = _configured(world, tmp_path / "stopped", variant, callbacks=[wait], **three)
    run = file.parent / "run"
    child = Child(start(run, file), file.with_name("output"), processes=3)
    child.until(tmp_path / "waits")
    child.send(signal.SIGTERM)
    told = file.with_name("output")
    code = child.end()
    assert code == 143, (code, told.read_text())
    step = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert 3 < step < 8
    capfd.readouterr()
    assert main(start(run, _configured(world, tmp_path / "again", variant))) == 0
    assert "the run went on so far with 3 processes, and goes on with 1" in capfd.readouterr().out
    largest, moved = distance(run, alone, weights)
    assert moved > 1e-3 and largest < 1e-2 * moved, (largest, moved)
