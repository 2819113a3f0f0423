"""Tiny runs that are trained and tested, and what a run writes."""

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ltr.__main__ import main

TEXTS = {
    "cross": {"class_path": "ltr.models.PairWiseBertRanker", "init_args": {"max_length": 20}},
    "dual": {
        "class_path": "ltr.models.DualEncoder",
        "init_args": {"max_length": 20, "temperature": 0.1},
    },
}


def trained(folder: Path, ranker: dict, data: dict, *options: str, seed: int = 0) -> Path:
    """Train a few steps and test; the run folder."""
    config = {
        "seed_everything": seed,
        "model": {"ranker": ranker, "loss": "ltr.losses.SoftmaxLoss", "lr": 0.01},
        "data": data,
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": 4,
            "enable_model_summary": False,
            "logger": False,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    run = folder / "run"
    assert (
        main(
            [
                "fit",
                "--config",
                str(folder / "c.yaml"),
                "--trainer.default_root_dir",
                str(run),
                *options,
            ]
        )
        == 0
    )
    assert main(["test", str(run)]) == 0
    return run


def trained_on_texts(
    folder: Path, kind: str, collection: Path, backbone: str, *options: str, **others: int
) -> Path:
    """A run of a cross-encoder or a dual encoder on a collection with pools."""
    ranker = {**TEXTS[kind], "init_args": {**TEXTS[kind]["init_args"], "backbone": backbone}}
    data = {
        "class_path": "ltr.datamodules.TripletDataModule",
        "init_args": {"path": str(collection), "negatives": "candidates"},
    }
    data["init_args"] |= {"negatives_per_query": 2, "batch_size": 4}
    return trained(folder, ranker, data, *options, **others)


def trained_on_features(folder: Path, letor: Path, *options: str) -> Path:
    """A run of a feature ranker."""
    ranker = {"class_path": "ltr.models.FeatureRanker", "init_args": {"n_features": 5}}
    data = {"class_path": "ltr.datamodules.FeatureDataModule", "init_args": {"path": str(letor)}}
    return trained(folder, ranker, data, *options)


@pytest.fixture(scope="session")
def copied_run(made_once, collection_folder, backbone, letor_folder) -> Callable[..., Path]:
    """``copied_run(folder, kind, *options)``: the copy in a folder of a run on the tiny collection,
    or on features, which is trained and tested once for all tests.
    """

    def copy(folder: Path, kind: str, *options: str) -> Path:
        def train(place: Path) -> None:
            if kind == "features":
                trained_on_features(place, letor_folder, *options)
            else:
                trained_on_texts(place, kind, collection_folder, backbone, *options)

        key = hashlib.sha256(repr((kind, *options)).encode()).hexdigest()[:12]
        return Path(shutil.copytree(made_once(f"trained-{key}", train) / "run", folder / "run"))

    return copy


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def report(folder: Path | str) -> dict:
    """What a run has measured on test."""
    return metrics(Path(folder))["test"]


RESULTS = ("metrics.json", "per_query.tsv", "test.run", "ir-metadata.yml")


def results(folder: Path | str) -> dict[str, bytes]:
    """The files that ``ltr test`` writes."""
    return {name: Path(folder, name).read_bytes() for name in RESULTS}


def losses(folder: Path) -> list[str]:
    file = max((folder / "logs").glob("version_*/metrics.csv"))
    return [row["train/loss"] for row in csv.DictReader(open(file)) if row["train/loss"]]
