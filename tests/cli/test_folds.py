"""``ltr grid --folds``: an experiment chosen by cross-validation, without the test split."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.world.commands import run_ltr

FOLDS = 3
QUERIES = 60  # of train and dev of the tiny collection


@pytest.fixture
def folder(here, backbone, collection_folder):
    """A grid of two learning rates; the working directory holds it."""
    ranker = {"backbone": str(backbone), "max_length": 32}
    data = {
        "path": str(collection_folder),
        "negatives_per_query": 2,
        "batch_size": 16,
        "loading": {"num_workers": 0},
    }
    base = {
        "model": {
            "ranker": {"class_path": "ltr.models.DualEncoder", "init_args": ranker},
            "loss": "ltr.losses.SoftmaxLoss",
            "metrics": ["AP"],
        },
        "data": {"class_path": "ltr.datamodules.TripletDataModule", "init_args": data},
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False},
        "best": {"monitor": "val/AP"},
    }
    (here / "base.yaml").write_text(yaml.safe_dump(base))
    rates = {"still": {"model.lr": 1.0e-9}, "learning": {"model.lr": 0.01}}
    grid = {"base": "base.yaml", "axes": {"rate": rates}, "seeds": [4, 5], "metrics": ["AP"]}
    (here / "rates.yaml").write_text(yaml.safe_dump(grid))
    return here


@pytest.mark.long
def test_a_grid_is_cross_validated(folder, capfd):
    assert run_ltr(f"grid rates.yaml --folds {FOLDS} --csv out.csv") == 0
    told = capfd.readouterr().out
    mean_of = {}
    for rate in ("still", "learning"):
        values = {}
        for number in range(1, FOLDS + 1):
            run = folder / f"runs/rates-3-folds/{rate}/seed=4/fold={number}"
            with open(run / "per_query.tsv", newline="") as opened:
                lines = list(csv.DictReader(opened, delimiter="\t"))
            assert not values.keys() & {line["query"] for line in lines}
            values |= {line["query"]: float(line["AP"]) for line in lines}
            evaluation = yaml.safe_load((run / "config.yaml").read_text())["data"]["init_args"]
            assert evaluation["evaluation"]["fold"] == {"number": number, "of": FOLDS}
            report = json.loads((run / "metrics.json").read_text())["test"]
            assert report["fold"] == {"number": number, "of": FOLDS}
        assert len(values) == QUERIES and not any(name.startswith("test") for name in values)
        mean_of[rate] = sum(values.values()) / QUERIES
    best = max(mean_of, key=lambda rate: mean_of[rate])
    assert f"chosen by 3 folds: {best} (AP {mean_of[best]:.4f} on 60 questions" in told
    assert f"{mean_of['still']:.4f}" in told and Path("out.csv").is_file()

    # With a fold that is missing its experiment is not compared.
    shutil.rmtree(folder / "runs/rates-3-folds/learning/seed=4/fold=2")
    assert run_ltr(f"grid rates.yaml --folds {FOLDS} --table") == 0
    told = capfd.readouterr().out
    assert "1 of 6 runs are not there yet" in told
    assert "chosen by 3 folds: still" in told and "learning " not in told
    # Made again, it has the same value to the bit.
    assert run_ltr(f"grid rates.yaml --folds {FOLDS}") == 0
    assert f"chosen by 3 folds: {best} (AP {mean_of[best]:.4f}" in capfd.readouterr().out
    # The folds stand beside no run of the whole: nothing was written to runs/rates.
    assert not Path("runs/rates").exists()
    assert run_ltr("compare runs/rates-3-folds/still runs/rates-3-folds/learning") == 0
