"""Runs are read and matched."""

from pathlib import Path

import pytest
import yaml

from ltr.checkpoint import FORMAT
from ltr.compare.experiment import read_experiments
from tests.world.tested_runs import (
    compared_in_one_group,
    config,
    edit_metrics,
    refuses_to_compare,
    write_run,
)


def test_a_run_under_two_names_counts_once(runs):
    """A second copy would make Holm's family larger, and every p with it."""
    (runs / "latest").symlink_to(runs / "good")
    paths = ["runs/base", "runs/good", "runs/latest", f"{runs}/../runs/good/seed=1"]
    found = read_experiments(paths)
    assert [(one.name, len(one.runs)) for one in found] == [("base", 3), ("good", 3)]


def names(*paths) -> list[str]:
    return [one.name for one in read_experiments(paths)]


def test_folders_of_runs_and_of_experiments_side_by_side_and_results_stand_for_their_run(runs):
    write_run(runs / "single", [0.5] * 40)
    assert names("runs") == ["single", "base", "good", "same"]
    assert names("runs/base", "runs/good/seed=0/metrics.json") == ["base", "good"]


def test_names_are_told_apart_and_seeds_are_sorted(runs):
    assert names("runs/good", "runs/base") == ["good", "base"]
    assert names("runs/base") == ["base"]
    (both,) = read_experiments(["runs/base/seed=2", "runs/base/seed=0"])
    assert [run.seed for run in both.runs] == [0, 2]
    assert names("runs") == ["base", "good", "same"]
    assert [len(one.runs) for one in read_experiments(["runs/b*", "runs/base/seed=1"])] == [3]


METRICS = "good/seed=1/metrics.json"
TABLE = "good/seed=1/per_query.tsv"
CONFIG = "good/seed=1/config.yaml"
RANKER = {"class_path": "FeatureRanker"}
# What is done to the second seed of ``good``, and what is told.
REFUSED = {
    "not tested": (lambda r: (r / TABLE).unlink(), "good/seed=1: a run must have been tested"),
    "no digest": (
        lambda r: edit(r, evaluated=None),
        "metrics.json: the file is damaged, test.evaluated must be there, and is not; remove it",
    ),
    "other judgements": (
        lambda r: edit(r, evaluated={"judgements": "x"}),
        "were tested on other judgements; runs can be compared on the same data",
    ),
    "other texts": (
        lambda r: edit(r, evaluated={"judgements": "j", "queries": "q", "documents": "x"}),
        "other texts of documents",
    ),
    "other convention": (
        lambda r: edit(r, conventions={"AP": "count 0"}),
        "AP is counted in two ways: runs/base/seed=0 says",
    ),
    "other queries": (lambda r: replace(r / TABLE, "q39", "q40"), "were tested on other queries"),
    "a query twice": (
        lambda r: replace(r / TABLE, "q39", "q38"),
        "per_query.tsv:41: the query 'q38' must stand there once, and has a line above",
    ),
    "infinite": (
        lambda r: spoil(r / TABLE, "inf"),
        "per_query.tsv:2: a line must be a query and 1 numbers",
    ),
    "not a number": (
        lambda r: spoil(r / TABLE, "nan"),
        "per_query.tsv: the mean of AP must be that of metrics.json, 0.",
    ),
    "no query with a value": (
        lambda r: replace(r / METRICS, '"AP": 0.', '"AP": null, "x": 0.'),
        "per_query.tsv: the mean of AP must be that of metrics.json, nan, got 0.",
    ),
    "no value": (
        lambda r: edit(r, AP=None),
        "metrics.json: the file is damaged, test.AP must be there, and is not",
    ),
    "same seed": (
        lambda r: config(r, seed_everything=0),
        "have the same seed 0; compare one of them",
    ),
    "other options": (
        lambda r: config(r, model={"ranker": RANKER, "loss": "X"}),
        "no seeds of one experiment, they differ in model.loss ('Loss_good', 'X')",
    ),
    "other rate": (
        lambda r: config(r, model={"ranker": RANKER, "loss": "Loss_good", "lr": 0.2}),
        "no seeds of one experiment, they differ in model.lr (0.1, 0.2)",
    ),
    "damaged digests": (
        lambda r: replace(r / METRICS, '"models": {}', '"models": 1'),
        "metrics.json: the file is damaged, trained_with.models must be an object, got",
    ),
}
NO_TEST = f'{{"format": {FORMAT}, "test": null}}'
OTHER_COLUMNS = "per_query.tsv:1: the columns must be those of metrics.json"
NO_NUMBERS = "per_query.tsv:2: a line must be a query and 1 numbers"
# The content of a file of the second seed of ``good``, and what is told.
REWRITTEN = [
    (CONFIG, "[1]", "config.yaml: a configuration must be options"),
    (METRICS, NO_TEST, "a run must have been tested"),
    (METRICS, "{", "metrics.json: the file is damaged"),
    (TABLE, "", OTHER_COLUMNS),
    (TABLE, "query\tRR\n", OTHER_COLUMNS + ", query, AP"),
    (TABLE, "query\tAP\n\n", NO_NUMBERS),
    (TABLE, "query\tAP\nq0\tx\n", NO_NUMBERS),
]
# Words of the command, and what is told.
WORDS = [
    (["--metric", "RR"], "was not measured by RR, but by AP; name one with --metric"),
    (
        ["--baseline", "better"],
        "the baseline must be one of base, good, got 'better' (option baseline)",
    ),
    (["--alpha", "5"], "alpha must be above 0 and below 1, got 5"),
    (["--plan", "0"], "--plan must be a difference above 0, got 0"),
    (["runs/none"], "runs/none: there is no such folder"),
    (["runs/empty"], "runs/empty is no run folder, and holds none"),
]


def edit(runs, **test):
    edit_metrics(runs / "good/seed=1", test=test)


def replace(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def spoil(file, value):
    """Give the first query another value."""
    header, _, *lines = file.read_text().splitlines()
    file.write_text("\n".join([header, f"q0\t{value}", *lines]) + "\n")


def check_refused(capsys, text, *words) -> None:
    refuses_to_compare(capsys, ["runs/base", "runs/good", *words, "--csv", "out.csv"], text)
    assert not Path("out.csv").exists()


@pytest.mark.parametrize("case", REFUSED)
def test_runs_that_cannot_be_compared_are_one_line_and_exit_code_2(case, runs, capsys):
    change, text = REFUSED[case]
    change(runs)
    check_refused(capsys, text)


@pytest.mark.parametrize(("file", "content", "text"), REWRITTEN)
def test_a_file_of_a_run_that_is_damaged_is_one_line(file, content, text, runs, capsys):
    (runs / file).write_text(content)
    check_refused(capsys, text)


@pytest.mark.parametrize(("words", "text"), WORDS)
def test_words_that_cannot_be_meant_are_one_line(words, text, runs, capsys):
    (runs / "empty").mkdir()
    check_refused(capsys, text, *words)


def test_without_a_configuration_the_folder_says_the_seed(runs):
    for file in runs.glob("base/*/config.yaml"):
        file.unlink()
    assert [run.seed for run in read_experiments(["runs/base"])[0].runs] == [0, 1, 2]


def test_other_candidates_are_said(runs):
    for seed in range(3):
        evaluated = {"judgements": "j", "candidates": "x", "queries": "q", "documents": "d"}
        test = {"candidates": "corpus", "depth": 100, "evaluated": evaluated}
        edit_metrics(runs / f"good/seed={seed}", test=test)
    (found,) = compared_in_one_group(["runs/base", "runs/good"])
    other_candidates = "the runs rank other candidates, so whole systems are compared (base: bm25, 50 deep; good: corpus, 100 deep)"
    assert other_candidates in found.notes
    (alike,) = compared_in_one_group(["runs/base", "runs/same"])
    assert set(found.notes) - set(alike.notes) == {other_candidates}


def test_other_precisions_are_said(runs):
    for number, precision in enumerate(("bf16-mixed", "32-true", None)):
        for seed in range(3):
            file = runs / ["good", "base", "same"][number] / f"seed={seed}/config.yaml"
            options = yaml.safe_load(file.read_text())
            options["trainer"]["precision"] = precision
            file.write_text(yaml.safe_dump(options))
    (alike,) = compared_in_one_group(["runs/base", "runs/same"])
    (found,) = compared_in_one_group(["runs/base", "runs/good", "runs/same"])
    assert set(found.notes) - set(alike.notes) == {
        "the experiments were trained in different precisions (base, same: 32-true; good: bf16-mixed)"
    }


def test_exact_and_approximate_search_are_said(tmp_path):
    """The digest of candidates is that of no lists: the search of each run finds its own."""
    for index in ("Flat", "IVF8,Flat"):
        report = {"candidates": "corpus", "depth": 20, "index": index}
        write_run(tmp_path / index, [0.5] * 40, loss=index, report=report)
    (found,) = compared_in_one_group([str(tmp_path / "Flat"), str(tmp_path / "IVF8,Flat")])
    assert found.notes == [
        "the runs rank other candidates, so whole systems are compared (Flat: corpus, 20 deep, index Flat; IVF8,Flat: corpus, 20 deep, index IVF8,Flat)"
    ]


def test_an_offline_folder_stands_for_its_run(tmp_path):
    run = write_run(tmp_path / "a/seed=0", [0.5] * 40)
    (run / "wandb/offline-run-20261122_101010-abcd").mkdir(parents=True)
    (one,) = read_experiments([str(run / "wandb/offline-run-20261122_101010-abcd")])
    assert one.runs[0].folder == run


def test_seeds_are_sorted_by_number_and_what_all_names_share_is_left_out(tmp_path):
    for seed in (10, 9):
        write_run(tmp_path / f"all/x/a/seed={seed}", [0.5] * 40, seed=seed)
    write_run(tmp_path / "all/x/b/c", [0.5] * 40)
    a, b = read_experiments([str(tmp_path / "all/x/a"), str(tmp_path / "all/x/b/c")])
    assert (a.name, b.name) == ("a", "b/c")
    assert [run.folder.name for run in a.runs] == ["seed=9", "seed=10"]


def test_the_cells_of_a_grid_of_two_axes_are_found(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"grid/softmax/lr=0.1/seed={seed}", [0.5] * 40, seed=seed)
    write_run(tmp_path / "grid/ranknet/lr=0.1/seed=0", [0.5] * 40, loss="SoftmaxLoss")
    found = read_experiments([str(tmp_path / "grid")])
    names = [(one.name, len(one.runs)) for one in found]
    assert names == [("ranknet/lr=0.1", 1), ("softmax/lr=0.1", 2)]


def test_what_an_experiment_says_of_its_seeds(tmp_path):
    """Only the first seed was measured before training; both say their seconds, 10 and 11."""
    write_run(tmp_path / "a/seed=0", [0.5] * 20 + [0.7] * 20, start=0.3)
    write_run(tmp_path / "a/seed=1", [0.2] * 40, seed=1, start=None)
    (found,) = read_experiments([str(tmp_path / "a")])
    assert found.starts("AP") == [0.3] and found.training_seconds() == [10.0, 11.0]
    assert found.means("AP") == pytest.approx([0.6, 0.2])
    assert found.values("AP", ["q39", "q0"]).tolist() == [[0.7, 0.5], [0.2, 0.2]]


def test_a_name_does_not_depend_on_how_a_folder_is_written(runs, monkeypatch):
    monkeypatch.chdir(runs / "base/seed=0")
    found = read_experiments([".", "../seed=1", str(runs / "base/seed=2"), "../../good"])
    assert [(one.name, len(one.runs)) for one in found] == [("base", 3), ("good", 3)]
    monkeypatch.chdir(runs / "base")
    assert names("seed=0", "../good") == ["base", "good"]
    monkeypatch.chdir(runs.parent)
    elsewhere = write_run(runs.parent / "x/other", [0.5] * 40)
    assert names("runs/base", str(elsewhere)) == ["runs/base", "x/other"]


def test_candidates_of_one_name_and_other_content_are_said(tmp_path):
    for name in ("a", "b", "c"):
        candidates = {"judgements": "j", "candidates": "old" if name == "a" else "new"}
        write_run(tmp_path / name, [0.5] * 40, loss=name, report={"evaluated": candidates})
    (found,) = compared_in_one_group([str(tmp_path / name) for name in ("a", "b", "c")])
    assert found.notes == [
        "the runs rank other candidates, so whole systems are compared (a: bm25, 50 deep; b: bm25, 50 deep, of other content)"
    ]
