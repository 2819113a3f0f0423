"""Runs that are interrupted, and what they leave."""

import json
import signal
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
import yaml
from lightning.pytorch import Callback

from ltr.__main__ import main
from tests.run.kills import start, waiting
from tests.run.resumes import VARIANTS, configured, differences, outcome, write_world

VALIDATED = {"trainer.val_check_interval": 3}


class StopAt(Callback):
    """Asks training to stop after a step, once: a resume from a later checkpoint is not asked again."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


class TerminatedAt(Callback):
    """Gets SIGTERM after a step, once."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


def written(world: Path, folder: Path, changes: dict | None = None, variant="plain") -> Path:
    """The configuration of a variant with changes, in a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "variant.yaml"
    file.write_text(yaml.safe_dump(configured(VARIANTS[variant] | (changes or {}), world)))
    return file


def slow(world: Path, folder: Path, within: str, changes: dict) -> Path:
    """A run that waits for its end at step 3 or in the validation after it, and says so by a file
    ``waits``.
    """
    callback = waiting(folder / "waits", step=3, within=within)
    return written(world, folder, VALIDATED | {"trainer.callbacks": [callback]} | changes)


def fit(world: Path, run: Path, changes: dict | None = None, variant="plain") -> int:
    """Begin a run or go on with it, by the command of a job script: its exit code."""
    return main(start(run, written(world, run.parent, changes, variant)))


_WHOLE: dict[str, Path] = {}  # by what was trained


def uninterrupted(world: Path, changes: dict | None = None, variant="plain") -> Path:
    """The run that nobody has interrupted, trained once for all tests: it is only read."""
    key = json.dumps([str(world), variant, changes or {}])
    if key not in _WHOLE:
        run = Path(mkdtemp(prefix="whole", dir=world.parent), "run")
        assert fit(world, run, changes, variant) == 0
        _WHOLE[key] = run
    return _WHOLE[key]


def check_is_whole(world: Path, run: Path, changes: dict | None = None, variant="plain") -> None:
    """A run must have what it has that nobody has interrupted, to the bit."""
    whole = outcome(uninterrupted(world, changes, variant))
    assert list(differences(whole, outcome(run))) == []


def check_resume(world: Path, run: Path, changes: dict | None = None, variant="plain") -> None:
    """The same command again, without what has interrupted the run, must end to the bit alike."""
    assert fit(world, run, changes, variant) == 0
    check_is_whole(world, run, changes, variant)


def last_of(run: Path) -> dict:
    """Its last checkpoint."""
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)


def step_of(run: Path) -> int:
    return last_of(run)["global_step"]
