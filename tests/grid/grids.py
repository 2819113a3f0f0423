"""A grid of two losses over a base, for the tests of grids."""

import json
from pathlib import Path

import pytest
import yaml

from tests.run.resumes import BASE
from tests.world.features import write_letor

LOSSES = {
    "ranknet": {"model.loss": "ltr.losses.RankNetLoss"},
    "softmax": {"model.loss": {"class_path": "ltr.losses.SoftmaxLoss"}},
}


@pytest.fixture
def folder(here):
    """``grids/losses.yaml`` over ``base.yaml``; the working directory holds both."""
    write_base(here)
    return here


def write_base(folder: Path) -> None:
    write_letor(folder / "letor")
    base = {key: value for key, value in BASE.items() if key != "seed_everything"}
    base["trainer"] = base["trainer"] | {"max_epochs": 1}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    write_grid(folder, axes={"loss": LOSSES}, seeds=[1, 2])


def write_grid(folder: Path, **changes) -> None:
    (folder / "grids").mkdir(exist_ok=True)
    (folder / "grids/losses.yaml").write_text(
        yaml.safe_dump({"base": "../base.yaml", "metrics": ["nDCG_exp@10"]} | changes)
    )


def steps(folder: str) -> int:
    return json.loads(Path(folder, "metrics.json").read_text())["fit"]["steps"]
