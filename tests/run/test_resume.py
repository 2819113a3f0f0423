"""Interrupted runs end with the very weights of uninterrupted ones. Faults are real: signals to real processes.

All variants two levels deep are in resumes.py, random kills in kills.py.
"""

import io
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml

from ltr.__main__ import main
from tests.run.kills import Child, start, torn, waiting
from tests.run.resumes import AVERAGE, VARIANTS, configured, differences, outcome, try_variant, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


# Those that went wrong once, and one of each way to train.
TRIED = (
    "no dev split",
    "validation every second epoch",
    "accumulation of 2, validation every 3",
    "the three best",
    "early stopping",
    "a cross-encoder with dropout",
)


@pytest.mark.parametrize("variant", TRIED)
def test_a_resume_from_every_checkpoint_is_exact(variant, world, tmp_path):
    n_resumes, wrong = try_variant(variant, world, tmp_path / "variant", levels=1)
    assert n_resumes >= 3 and wrong == []


def test_a_resume_of_a_resume_is_exact(world, tmp_path):
    """Epochs that end without a validation, and a stop within the next one."""
    n_resumes, wrong = try_variant("no validation", world, tmp_path / "variant", levels=2)
    assert n_resumes > 15 and wrong == []


def test_the_comparison_sees_one_other_bit(world, tmp_path):
    a = outcome(_finished(world, tmp_path / "a"))
    assert list(differences(a, outcome(_finished(world, tmp_path / "b")))) == []
    changed = outcome(_finished(world, tmp_path / "c"))
    moment = next(iter(changed["optimizer_states"][0]["state"].values()))["exp_avg"].view(-1)
    moment[0] = torch.nextafter(moment[0], torch.tensor(9.0))
    assert len(list(differences(a, changed))) == 1
    assert len(list(differences(a, outcome(_finished(world, tmp_path / "d", **{"seed_everything": 4}))))) > 5


def _written(world: Path, folder: Path, variant: str = "plain", **changes) -> Path:
    folder.mkdir()
    file = folder / "variant.yaml"
    file.write_text(yaml.safe_dump(configured(VARIANTS[variant] | changes, world)))
    return file


def _finished(world: Path, folder: Path, variant: str = "plain", **changes) -> Path:
    assert main(start(folder / "run", _written(world, folder, variant, **changes))) == 0
    return folder / "run"


def _slow(world: Path, folder: Path, within: str, **changes) -> Path:
    """A run that waits for its end at step 3 or in the validation after it, and says so by a file."""
    callback = waiting(folder / "waits", step=3, within=within)
    return _written(world, folder, **{"trainer.callbacks": [callback], "trainer.val_check_interval": 3} | changes)


@pytest.mark.parametrize(("within", "workers"), [("step", 2), ("validation", 0)])
@pytest.mark.parametrize(("by", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_a_step_or_a_validation(world, tmp_path, by, code, workers, within):
    """To the whole group, as terminals and clusters send it: data workers get it too."""
    changes = {"data.init_args.num_workers": workers, "last.every_n_steps": 2}
    file = _slow(world, tmp_path / "stopped", within, **changes)
    child = Child(start(file.parent / "run", file), file.with_name("output"))
    child.until(file.with_name("waits"))
    child.send(by)
    came, output = child.end_after(60), file.with_name("output").read_text()
    assert came == code, output
    run = file.parent / "run"
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    # Killed, it has what was there: after the third step comes a validation. Asked, it finishes the fourth step, or leaves that
    # validation to the resumed run.
    killed = by == signal.SIGKILL
    assert last["global_step"] == {"step": 3 if killed else 4, "validation": 2 if killed else 3}[within]
    if by != signal.SIGKILL:
        assert f"'ltr fit {run}' resumes" in output and "Traceback" not in output
    assert torn(run) == []
    # It was asked to resume by the same command, without the callback that waits.
    resumed = Child(
        start(run, _written(world, tmp_path / "again", **changes | {"trainer.val_check_interval": 3})), tmp_path / "output"
    )
    assert resumed.end_after(60) == 0
    whole = _finished(world, tmp_path / "whole", **changes | {"trainer.val_check_interval": 3})
    assert list(differences(outcome(whole), outcome(run))) == []


def test_a_second_signal_ends_at_once(world, tmp_path):
    file = _slow(world, tmp_path / "stopped", "step", **{"last.every_n_steps": 2, "trainer.max_epochs": 1000})
    output = file.with_name("output")
    child = Child(start(file.parent / "run", file), output)
    child.until(file.with_name("waits"))
    child.send(signal.SIGTERM)
    until = time.monotonic() + 1
    while "once more to stop at once" not in output.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    child.send(signal.SIGTERM)
    assert child.end_after(60) == 143
    # That of the validation, not of the step that was under way.
    assert torch.load(file.parent / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 3


@pytest.mark.parametrize("step", [3, 6])
def test_a_signal_in_a_validation_of_averaged_weights(world, tmp_path, step):
    """The weights at hand are not those that are trained on: the run ends after that validation. 6 steps are an epoch."""
    changes = {"trainer.val_check_interval": 3, "trainer.callbacks": [AVERAGE]}
    asked = {"class_path": "tests.faults.AskedInValidation", "init_args": {"step": step}}
    run = tmp_path / "stopped/run"
    file = _written(world, run.parent, **changes | {"trainer.callbacks": [AVERAGE, asked]})
    assert main(start(run, file)) == 143
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == step
    assert yaml.safe_load((run / "metrics.json").read_text())["validations"][-1]["step"] == step
    assert main(start(run, _written(world, tmp_path / "again", **changes))) == 0
    whole = _finished(world, tmp_path / "whole", **changes)
    assert list(differences(outcome(whole), outcome(run))) == []
    trained = [torch.load(one / "checkpoints/last.ckpt", weights_only=True)["current_model_state"] for one in (whole, run)]
    assert list(differences(*trained)) == []


class _Asking(io.RawIOBase):
    """An output by which SIGTERM comes in the middle of a line, once."""

    asked = False

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        if b"step 3 of 18" in bytes(data) and not self.asked:
            self.asked = True
            signal.raise_signal(signal.SIGTERM)
        return len(data)


@pytest.mark.parametrize("reader", ["there", "gone"])
def test_a_signal_in_the_middle_of_a_print(world, tmp_path, monkeypatch, capfd, reader):
    """Python refuses to print within a print; and whoever reads the output may be gone, as ``| tee`` is after Ctrl-C."""
    monkeypatch.setattr("ltr.run.log.EVERY", 0.0)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(_Asking())))
    run, before = tmp_path / "a/run", os.dup(1)
    if reader == "gone":
        ours, others = os.pipe()
        os.dup2(others, 1)
        os.close(ours)
        os.close(others)
    try:
        assert main(start(run, _written(world, run.parent))) == 143
    finally:
        os.dup2(before, 1)
        os.close(before)
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    told = capfd.readouterr()
    assert f"'ltr fit {run}' resumes" in told.err
    assert ("SIGTERM: finishing this step" in told.out) == (reader == "there")


def test_sigterm_before_training_and_while_measuring(world, tmp_path):
    """It ends the program, which has nothing to save."""
    run = _finished(world, tmp_path / "a")
    callback = waiting(tmp_path / "waits", within="test")
    layer = tmp_path / "layer.yaml"
    layer.write_text(yaml.safe_dump({"trainer": {"callbacks": [callback]}}))
    child = Child(["test", str(run), "--config", str(layer)], tmp_path / "output")
    child.until(tmp_path / "waits")
    child.send(signal.SIGTERM)
    assert child.end_after(60) == 143
    assert not (run / "test.run").exists() and "Traceback" not in (tmp_path / "output").read_text()


def test_two_requeues_by_sigterm(world, tmp_path):
    """As a cluster does it: the same command again and again."""
    variant = "a cross-encoder with dropout"
    run, file = tmp_path / "job/run", _written(world, tmp_path / "job", variant, **{"trainer.max_epochs": 4})
    codes, seconds = [], 0.5
    while (len(codes) < 40) and codes[-1:] != [0]:
        codes.append(Child(start(run, file), tmp_path / "output").end_after(seconds, signal.SIGTERM))
        seconds *= 1.15
    assert codes.count(143) >= 2 and codes[-1] == 0 and set(codes) <= {0, 143, -signal.SIGTERM}
    whole = _finished(world, tmp_path / "whole", variant, **{"trainer.max_epochs": 4})
    assert list(differences(outcome(whole), outcome(run))) == []
