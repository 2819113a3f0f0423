"""Runs as `ltr test` leaves them."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ltr.__main__ import main
from ltr.checkpoint import FORMAT
from ltr.compare.comparison import MetricResult, compare
from ltr.compare.experiment import read_experiments
from ltr.compare.group_result import GroupResult
from ltr.compare.query_groups import grouped

QUERIES = [f"q{n}" for n in range(40)]


CONVENTION = "queries without a relevant document are left out"
TRAINED_WITH = {"data": {"judgements": "t"}, "models": {}}
MADE = {"ltr": "0.1", "packages": {}, "date": "2026-11-01", "machine": "x"}


def report_of(metric: str, value: float, **entries: object) -> dict:
    """What every test of a run reports."""
    report = {
        metric: value,
        "conventions": {metric: "as ever"},
        "lower_is_better": [],
        "checkpoint": None,
        "evaluated": {"judgements": "j"},
        "made": MADE,
    }
    return report | entries


def write_run(folder: Path, values, *, seed=0, start=0.4, name="AP", **changes) -> Path:
    """A tested run as ``ltr test`` leaves it, with values by query."""
    folder.mkdir(parents=True)
    report = report_of(name, float(np.nanmean(values)), candidates="bm25", depth=50)
    report |= {
        "conventions": {name: CONVENTION},
        "checkpoint": str(folder / "checkpoints/best.ckpt"),
        "evaluated": {"judgements": "j", "candidates": "c", "queries": "q", "documents": "d"},
        "ceiling": {name: 0.9, "R": 0.95},
    }
    report |= changes.pop("report", {})
    metrics = {
        "format": FORMAT,
        "test": report,
        "fit": {"seconds": 10.0 + seed, "steps": 10},
        "trained_with": TRAINED_WITH,
    }
    if start is not None:
        metrics["start"] = {name: start}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    rows = "".join(f"{query}\t{value:.6f}\n" for query, value in zip(QUERIES, values, strict=True))
    (folder / "per_query.tsv").write_text(f"query\t{name}\n{rows}")
    config = {
        "seed_everything": seed,
        "model": {
            "ranker": {"class_path": "FeatureRanker"},
            "loss": changes.pop("loss", "RankNetLoss"),
            "lr": changes.pop("lr", 0.1),
        },
        "data": {"class_path": "FeatureDataModule", "init_args": {"path": "letor"}},
        "trainer": {"accumulate_grad_batches": 1, "overfit_batches": 0.0, "callbacks": None},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert not changes
    return folder


def edit_metrics(folder: Path, **changes: dict) -> None:
    """Change entries of metrics.json: ``test={"AP": 0.5}``. None takes one out."""
    file = folder / "metrics.json"
    metrics = json.loads(file.read_text())
    for part, entries in changes.items():
        changed = metrics[part] | entries
        metrics[part] = {name: value for name, value in changed.items() if value is not None}
    file.write_text(json.dumps(metrics))


def refuses_to_compare(capsys: pytest.CaptureFixture, words: list[str], text: str) -> str:
    """``ltr compare`` says one line that has this text, and no more; that line."""
    capsys.readouterr()
    assert main(["compare", *words]) == 2
    told = capsys.readouterr()
    assert text in told.err and told.err.count("\n") == 1 and told.out == "", told
    return told.err


def forget_test(folder: Path) -> None:
    """Let a run have been measured elsewhere alone."""
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["test"]
    (folder / "metrics.json").write_text(json.dumps(metrics))


def compared(paths, **options) -> list[MetricResult]:
    """Runs compared on their own test."""
    return compare(grouped(read_experiments(paths)), **options)


def compared_in_one_group(paths, **options) -> list[GroupResult]:
    """The same where there is one group."""
    return [result.main for result in compared(paths, **options)]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three seeds of ``base``, ``good`` (0.1 above it) and ``same``, on 40 queries; the working
    directory holds them as runs/.
    """
    rng = np.random.default_rng(0)
    hard = rng.uniform(0.2, 0.6, 40)
    for name, gain in (("base", 0.0), ("good", 0.1), ("same", 0.001)):
        for seed in range(3):
            values = hard + gain + rng.normal(0, 0.03, 40) + rng.normal(0, 0.01)
            write_run(tmp_path / f"runs/{name}/seed={seed}", values, seed=seed, loss=f"Loss_{name}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def config(runs, **changes):
    file = runs / "good/seed=1/config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))
