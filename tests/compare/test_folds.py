"""The runs of a cross-validation, read as one."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ltr.compare.experiment import read_experiments
from ltr.errors import InputError
from tests.world.tested_runs import QUERIES, edit_metrics, write_run

VALUES = np.linspace(0.1, 0.7, 40)
PARTS = [slice(0, 10), slice(10, 30), slice(30, 40)]


def write_folds(folder: Path, seed: int = 0, gain: float = 0.0) -> None:
    """Three folds of 10, 20 and 10 questions."""
    for number, part in enumerate(PARTS, start=1):
        run = write_run(folder / f"fold={number}", VALUES, seed=seed)
        rows = [f"{QUERIES[n]}\t{VALUES[n] + gain:.6f}\n" for n in range(40)[part]]
        (run / "per_query.tsv").write_text("query\tAP\n" + "".join(rows))
        fold = {"number": number, "of": 3}
        test = {"AP": float(VALUES[part].mean()) + gain, "fold": fold, "queries": len(rows)}
        test["evaluated"] = {"judgements": f"j{number}", "queries": "q", "documents": "d"}
        test["ceiling"] = {"AP": 0.8 + 0.05 * number}
        edit_metrics(run, test=test, trained_with={"data": {"judgements": f"t{number}"}})
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["data"]["init_args"]["evaluation"] = {"candidates": "bm25", "fold": fold}
        (run / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("paths", [["arm"], ["arm/seed=0", "arm/seed=1"], ["arm/seed=*/fold=*"]])
def test_the_folds_of_a_seed_are_one_run_of_all_questions(here, paths):
    write_folds(here / "arm/seed=0")
    write_folds(here / "arm/seed=1", seed=1, gain=0.1)
    (arm,) = read_experiments(paths)
    assert arm.name == "arm" and [run.seed for run in arm.runs] == [0, 1]
    np.testing.assert_allclose(arm.values("AP", QUERIES), [VALUES, VALUES + 0.1], atol=1e-6)
    # The mean over questions: (10 × 0.177 + 20 × 0.4 + 10 × 0.623) / 40, not the mean of folds.
    assert arm.means("AP") == pytest.approx([0.4, 0.5], abs=1e-5)
    # A fold takes 10 s with seed 0 and 11 s with seed 1.
    assert arm.training_seconds() == [30, 33]
    # (10 × 0.85 + 20 × 0.90 + 10 × 0.95) / 40
    assert arm.runs[0].report["ceiling"]["AP"] == pytest.approx(0.9)
    assert arm.starts("AP") == []
    assert arm.runs[0].report["queries"] == 40
    assert arm.runs[0].report["evaluated"]["queries"] == "q"


def test_folds_of_an_untrained_ranker_are_joined(tmp_path):
    write_folds(tmp_path / "arm/seed=0")
    for run in (tmp_path / "arm/seed=0").glob("fold=*"):
        metrics = json.loads((run / "metrics.json").read_text())
        del metrics["fit"]
        (run / "metrics.json").write_text(json.dumps(metrics))
    (arm,) = read_experiments([str(tmp_path / "arm")])
    assert arm.training_seconds() == []


def test_the_mean_is_weighted_by_questions(tmp_path):
    """Folds of 10, 20 and 10 with means 0, 1 and 0: half of the questions have 1."""
    write_folds(tmp_path / "arm/seed=0")
    for number, part in enumerate(PARTS, start=1):
        run = tmp_path / f"arm/seed=0/fold={number}"
        value = 1.0 if number == 2 else 0.0
        rows = [f"{query}\t{value}\n" for query in QUERIES[part]]
        (run / "per_query.tsv").write_text("query\tAP\n" + "".join(rows))
        edit_metrics(run, test={"AP": value})
    (arm,) = read_experiments([str(tmp_path / "arm")])
    assert arm.means("AP") == [0.5]


def test_judgements_that_differ_in_one_fold_are_seen(tmp_path):
    def judgements():
        (arm,) = read_experiments([str(tmp_path / "arm")])
        return [run.report["evaluated"]["judgements"] for run in arm.runs]

    write_folds(tmp_path / "arm/seed=0")
    write_folds(tmp_path / "arm/seed=1", seed=1)
    first, second = judgements()
    assert first == second
    other = {"judgements": "x", "queries": "q", "documents": "d"}
    edit_metrics(tmp_path / "arm/seed=1/fold=2", test={"evaluated": other})
    first, second = judgements()
    assert first != second


def rate(folder: Path) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"]["lr"] = 0.2
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def measure_again(fold: Path) -> None:
    """Test the questions of the first fold."""
    other = fold.parent / "fold=1"
    (fold / "per_query.tsv").write_text((other / "per_query.tsv").read_text())
    edit_metrics(fold, test={"AP": float(VALUES[PARTS[0]].mean())})


REFUSED = {
    "a question twice": (
        lambda arm: measure_again(arm / "fold=3"),
        "fold=3: each question must be tested in one fold, and 'q0' was tested in two",
    ),
    "a fold is missing": (
        lambda arm: (arm / "fold=2/metrics.json").unlink(),
        "each of the 3 folds must be there once, got 1 of 3, 3 of 3; make those that are missing",
    ),
    "a fold twice": (
        lambda arm: edit_metrics(arm / "fold=3", test={"fold": {"number": 2, "of": 3}}),
        "must be there once, got 1 of 3, 2 of 3, 2 of 3",
    ),
    "folds of another number": (
        lambda arm: edit_metrics(arm / "fold=3", test={"fold": {"number": 3, "of": 4}}),
        "must be there once, got 1 of 3, 2 of 3, 3 of 4",
    ),
    "other options": (
        lambda arm: rate(arm / "fold=2"),
        "are no folds of one cross-validation, they differ in model.lr",
    ),
    "other weights": (
        lambda arm: edit_metrics(arm / "fold=3", test={"checkpoint": "a/last.ckpt"}),
        "they differ in the tested weights \\(best.ckpt, last.ckpt\\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_cross_validation_is_refused(case, tmp_path):
    change, text = REFUSED[case]
    write_folds(tmp_path / "arm/seed=0")
    change(tmp_path / "arm/seed=0")
    with pytest.raises(InputError, match=text):
        read_experiments([str(tmp_path / "arm")])
