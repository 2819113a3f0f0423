"""Runs that are interrupted, and what they leave."""

import json
import signal
from pathlib import Path
from tempfile import mkdtemp

import pytest
import yaml
from lightning.pytorch import Callback

from ltr.__main__ import main
from tests.run.kills import start, waiting
from tests.run.resumes import (
    VARIANTS,
    configured,
    write_world,
)


class StopAt(Callback):
    """Asks training to stop after a step, once: a resume from a later checkpoint is not asked again."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


def _written(world: Path, folder: Path, variant: str = "plain", **changes) -> Path:
    folder.mkdir()
    file = folder / "variant.yaml"
    file.write_text(yaml.safe_dump(configured(VARIANTS[variant] | changes, world)))
    return file


def _finished(world: Path, folder: Path, variant: str = "plain", **changes) -> Path:
    assert main(start(folder / "run", _written(world, folder, variant, **changes))) == 0
    return folder / "run"


_WHOLE: dict[str, Path] = {}  # by what was trained


def _whole(world: Path, variant: str = "plain", **changes) -> Path:
    """The run that nobody has interrupted, trained once for all tests: it is only read."""
    key = json.dumps([str(world), variant, changes])
    if key not in _WHOLE:
        folder = Path(mkdtemp(prefix="whole", dir=world.parent), "of")
        _WHOLE[key] = _finished(world, folder, variant, **changes)
    return _WHOLE[key]


def _slow(world: Path, folder: Path, within: str, **changes) -> Path:
    """A run that waits for its end at step 3 or in the validation after it, and says so by a file."""
    callback = waiting(folder / "waits", step=3, within=within)
    return _written(
        world,
        folder,
        **{"trainer.callbacks": [callback], "trainer.val_check_interval": 3} | changes,
    )


class TerminatedAt(Callback):
    """Gets SIGTERM after a step, once."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGTERM)
