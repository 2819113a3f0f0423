"""Measures from a level of relevance, by their names wherever measures are named."""

import csv
import shutil

import pandas as pd
import pytest
import pytrec_eval

from ltr.__main__ import main
from ltr.compare import group_result
from ltr.errors import InputError
from ltr.run.checkpoint_options import BestOptions
from ltr.run.run_folder import RunFolder
from tests.run.measured import results
from tests.world.collections import write_collection
from tests.world.configurations import write_config

LEVELS = ["AP(rel=2)", "AP(rel=2)@3", "RR(rel=2)@10", "P(rel=2)@3", "R(rel=2)@3"]
NAMES = [*LEVELS, "Success(rel=2)@1", "Success@1", "Judged@3", "RR"]


def ltr(words: str) -> int:
    return main(words.split())


def test_a_run_is_chosen_stopped_tested_and_compared_by_a_level(config, tmp_path):
    """Grades 0 to 2 of features: all documents are judged. Early stopping ends no run that gets
    better; what is best has the score of the validation by that name.
    """
    early = (
        "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping "
        "--trainer.callbacks.monitor=val/AP(rel=2)@3 --trainer.callbacks.mode=max"
    )
    run = tmp_path / "run"
    monitor = "--best.monitor val/AP(rel=2)@3"
    metrics = f"--model.metrics [{','.join(NAMES)}]"
    assert ltr(f"fit --config {config} {metrics} {monitor} {early}") == 0
    best = max(validation["AP(rel=2)@3"] for validation in results(tmp_path)["validations"])
    (score,) = RunFolder(run).kept_scores("val/AP(rel=2)@3").values()
    assert score == pytest.approx(best)
    assert ltr(f"test {run}") == 0
    report = results(tmp_path)["test"]
    assert report["conventions"]["AP(rel=2)"] == (
        "queries without a document of grade 2 or above are left out"
    )
    assert list(report["ceiling"]) == [*LEVELS, "Success(rel=2)@1", "Success@1", "RR", "R"]
    assert report["Judged@3"] == 1.0
    by_query = pd.read_csv(run / "per_query.tsv", sep="\t", index_col="query")
    assert list(by_query.columns) == NAMES
    assert by_query["AP(rel=2)"].isna().any()  # queries without a document of grade 2

    # What trec_eval makes of test.run.
    qrels: dict = {}
    for line in (tmp_path / "letor/test.txt").read_text().splitlines():
        grade, query, *_, doc = line.split()
        qrels.setdefault(query.removeprefix("qid:"), {})[doc] = int(grade)
    ranked: dict = {}
    for line in (run / "test.run").read_text().splitlines():
        query, _, doc, _, score, _ = line.split()
        ranked.setdefault(query, {})[doc] = float(score)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"map", "P_3"}, relevance_level=2)
    for query, values in theirs.evaluate(ranked).items():
        if max(qrels[query].values()) >= 2:
            ours = by_query.loc[int(query)]
            assert ours["AP(rel=2)"] == pytest.approx(values["map"], abs=1e-6)
            assert ours["P(rel=2)@3"] == pytest.approx(values["P_3"], abs=1e-6)

    other = tmp_path / "other"
    shutil.copytree(run, other)
    files = [f"--{kind} {tmp_path / kind}" for kind in ("csv", "markdown", "latex", "html")]
    measures = "AP(rel=2)@3 Judged@3"
    assert ltr(f"compare {run} {other} --metric {measures} {' '.join(files)}") == 0
    rows = list(csv.DictReader((tmp_path / "csv").open()))
    assert {row["metric"] for row in rows} == {"AP(rel=2)@3", "Judged@3"}
    for kind in ("markdown", "latex", "html"):
        assert "AP(rel=2)@3" in (tmp_path / kind).read_text(), kind


def test_higher_is_better_at_a_level():
    assert BestOptions("val/AP(rel=2)@10").sign == 1.0
    assert BestOptions("val/swapped_pairs").sign == -1.0


def test_a_level_that_no_document_reaches_is_said(tmp_path, backbone, caplog):
    """Grades 0 and 1; two of eight candidates are judged."""
    folder = write_collection(tmp_path / "c", n_queries=6)
    metrics = ["AP(rel=2)", "RR(rel=1)", "Judged@10", "Judged@8"]
    options = {"model.metrics": metrics, "model.empty": "zero", "best.monitor": "val/RR(rel=1)"}
    config = write_config(tmp_path, backbone, folder, **options)
    assert ltr(f"test --config {config}") == 0
    told = "split 'test': no query has a document of grade 2 or above (the largest grade is 1), so AP(rel=2) tells nothing"
    assert [record.getMessage() for record in caplog.records].count(told) == 1
    assert "RR(rel=1) tells" not in caplog.text
    report = results(tmp_path)["test"]
    assert report["AP(rel=2)"] == 0.0  # as the option empty says
    assert report["Judged@10"] == report["Judged@8"] == pytest.approx(2 / 8)


def test_a_level_that_one_source_does_not_reach_is_said_of_it(tmp_path, backbone, caplog):
    """The mean over two sources is that of the other one."""
    folders = []
    for name in ("low", "high"):
        folders.append(write_collection(tmp_path / name, n_queries=6))
    file = folders[1] / "qrels/test.tsv"
    file.write_text(file.read_text().replace("\t1\n", "\t2\n"))
    options = {"model.metrics": ["AP(rel=2)"], "best.monitor": "val/AP(rel=2)"}
    options["data.init_args.path"] = [str(folder) for folder in folders]
    config = write_config(tmp_path, backbone, folders[0], **options)
    assert ltr(f"test --config {config}") == 0
    told = [record.getMessage() for record in caplog.records if "tells nothing" in record.msg]
    assert told == [
        "split 'test' of low: no query has a document of grade 2 or above (the largest grade is 1), so AP(rel=2) tells nothing of low, nor does its mean over sources"
    ]
    report = results(tmp_path)["test"]
    assert report["AP(rel=2)"] == report["high/AP(rel=2)"] and "low/AP(rel=2)" not in report


@pytest.mark.parametrize(
    ("metric", "end"),
    [
        ("AP(rel=7)", "got 0; it needs queries with a document of grade 7 or above"),
        ("tau", "got 0; it needs queries with two different labels"),
        ("Judged@3", "got 0"),
        ("of_my_own", "got 0"),
    ],
)
def test_what_queries_lack_is_said_by_compare(monkeypatch, metric, end):
    monkeypatch.setattr(group_result, "queries_with_values", lambda *_: [])
    with pytest.raises(InputError) as told:
        group_result.values_by_experiment([], metric)
    assert str(told.value) == f"two queries or more must have a value of {metric}, {end}"
