"""A whole experiment over the tiny world, as a configuration, and what its run writes."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import QUIET


def write_config(folder: Path, backbone: str, collection: Path, **changes) -> Path:
    """A whole experiment over the tiny world: 8 steps an epoch, 2 epochs, with dropout."""
    config = {
        "seed_everything": 3,
        "model": {
            "ranker": {
                "class_path": "ltr.models.PairWiseBertRanker",
                "init_args": {"backbone": backbone, "max_length": 24},
            },
            "loss": {"class_path": "ltr.losses.SoftmaxLoss"},
            "lr": 0.01,
        },
        "data": {
            "class_path": "ltr.datamodules.TripletDataModule",
            "init_args": {
                "path": str(collection),
                "negatives_per_query": 3,
                "batch_size": 4,
                "evaluation": {"batch_size": 7},
            },
        },
        "trainer": {"max_epochs": 2, "default_root_dir": str(folder / "run"), **QUIET},
        "last": {"every_n_steps": 3},
    }
    for key, value in changes.items():
        where = config
        *path, name = key.split(".")
        for part in path:
            where = where.setdefault(part, {})
        where[name] = value
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
def config(tmp_path, backbone, collection_folder):
    return write_config(tmp_path, backbone, collection_folder)


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def losses(folder: Path) -> list[str]:
    file = max((folder / "logs").glob("version_*/metrics.csv"))
    return [row["train/loss"] for row in csv.DictReader(open(file)) if row["train/loss"]]
