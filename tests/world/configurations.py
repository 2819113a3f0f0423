"""Configurations over the small worlds."""

from pathlib import Path

import yaml

# Options of the trainer that keep a test quiet.
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "log_every_n_steps": 1,
}


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


def write_cheap_grid(folder: Path, backbone: str) -> None:
    """A configuration ``a.yaml`` and a grid ``grid.yaml`` of it. The data is nowhere, so nothing is
    trained.
    """
    config = {
        "model": {
            "ranker": {"class_path": "DualEncoder", "init_args": {"backbone": backbone}},
            "loss": "SoftmaxLoss",
        },
        "data": {"class_path": "TripletDataModule", "init_args": {"path": "data"}},
        "trainer": QUIET,
    }
    (folder / "a.yaml").write_text(yaml.safe_dump(config))
    grid = {"base": "a.yaml", "axes": {"lr": {"low": {"model.lr": 0.1}}}}
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))
