"""Runs are read, matched and compared; bad ones are refused in one line."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from ltr import metrics
from ltr.__main__ import main
from ltr.compare import comparison
from ltr.compare.comparison import against, compare
from ltr.compare.runs import experiments
from ltr.compare.statistics import estimate, holm, randomisation_p

QUERIES = [f"q{n}" for n in range(40)]
CONVENTION = "queries without a relevant document are left out"


def write_run(folder: Path, values, *, seed=0, start=0.4, name="AP", **changes) -> Path:
    """A tested run as ``ltr test`` leaves it, with values by query."""
    folder.mkdir(parents=True)
    report = {name: float(np.nanmean(values)), "conventions": {name: CONVENTION}, "candidates": "bm25", "depth": 50}
    report |= {
        "evaluated": {"judgements": "j", "candidates": "c", "queries": "q", "documents": "d"},
        "ceiling": {name: 0.9, "R": 0.95},
    }
    report |= changes.pop("report", {})
    metrics = {"test": report, "fit": {"seconds": 10.0 + seed}} | ({} if start is None else {"start": {name: start}})
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


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three seeds of ``base``, ``good`` (0.1 above it) and ``same``, on 40 queries; the working directory holds them as runs/."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(0.2, 0.6, 40)
    for name, gain in (("base", 0.0), ("good", 0.1), ("same", 0.001)):
        for seed in range(3):
            values = hard + gain + rng.normal(0, 0.03, 40) + rng.normal(0, 0.01)
            write_run(tmp_path / f"runs/{name}/seed={seed}", values, seed=seed, loss=f"Loss_{name}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def values_of(folder: Path, column: int = 1) -> np.ndarray:
    return np.array(
        [
            [float(line.split("\t")[column]) for line in (folder / f"seed={s}/per_query.tsv").read_text().splitlines()[1:]]
            for s in range(3)
        ]
    )


def test_experiments_are_compared_with_the_first_one(runs):
    (found,) = compare(experiments(["runs/base", "runs/good", "runs/same"]))
    assert (found.metric, found.n_queries, found.convention) == ("AP", 40, CONVENTION)
    base, good, same = (values_of(runs / name) for name in ("base", "good", "same"))
    for row, own in zip(found.rows, (base, good, same), strict=True):
        assert row.mean == estimate(own) and row.deviation == pytest.approx(own.mean(axis=1).std(ddof=1))
        assert (row.start, row.ceiling, row.seconds) == (pytest.approx(0.4), 0.9, 11.0)
    expected = holm([estimate(one, base).p for one in (good, same)])
    for one, own, corrected in zip(found.comparisons, (good, same), expected, strict=True):
        by_query = own.mean(axis=0) - base.mean(axis=0)
        assert one.baseline == "base" and one.difference == estimate(own, base) and one.has_seeds
        assert one.corrected == corrected and one.p_models == randomisation_p(by_query)
        assert one.effect == pytest.approx(by_query.mean() / by_query.std(ddof=1))
        assert (one.wins, one.ties, one.losses) == ((by_query > 0).sum(), 0, (by_query < 0).sum())
        assert one.detectable == one.difference.detectable(0.05 / 2)
    assert [one.verdict for one in found.comparisons] == [
        "better",
        f"not shown (this data could show a difference of {found.comparisons[1].detectable:.3f})",
    ]


def test_a_run_under_two_names_counts_once(runs):
    """A second copy would make Holm's family larger, and every p with it."""
    (runs / "latest").symlink_to(runs / "good")
    paths = ["runs/base", "runs/good", "runs/latest", f"{runs}/../runs/good/seed=1"]
    assert [(one.name, len(one.runs)) for one in experiments(paths)] == [("base", 3), ("good", 3)]


def test_several_baselines_and_metrics_are_one_family_and_no_pair_is_counted_twice(runs):
    (found,) = compare(experiments(["runs/*"]), pairs=against(["base", "good", "same"], ["good", "runs/base"]))
    assert [(one.name, one.baseline) for one in found.comparisons] == [("base", "good"), ("same", "good"), ("same", "base")]
    assert found.comparisons[0].verdict == "worse"
    assert [one.corrected for one in found.comparisons] == holm([one.p for one in found.comparisons])


def test_rounding_is_no_difference(tmp_path):
    """The same values under other seeds in another order: the mean differs in its last bit, and no query in anything."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, (3, 40)).round(6)
    for name, order in (("x", (0, 1, 2)), ("y", (2, 0, 1))):
        for seed, at in enumerate(order):
            write_run(tmp_path / name / f"seed={seed}", values[at], seed=seed)
    for seed in range(2):
        write_run(tmp_path / f"z/seed={seed}", np.full(40, 0.1), seed=seed)
    for seed in range(3):
        write_run(tmp_path / f"w/seed={seed}", np.full(40, 0.1), seed=seed)
    for first, second in (("x", "y"), ("z", "w")):
        ((one,),) = (each.comparisons for each in compare(experiments([str(tmp_path / first), str(tmp_path / second)])))
        assert (one.wins, one.ties, one.losses, one.verdict, one.p, one.p_models) == (0, 40, 0, "equal", 1.0, 1.0)


def test_folders_of_runs_and_of_experiments_side_by_side_and_results_stand_for_their_run(runs):
    write_run(runs / "single", [0.5] * 40)
    assert [one.name for one in experiments(["runs"])] == ["single", "base", "good", "same"]
    assert [one.name for one in experiments(["runs/base", "runs/good/seed=0/metrics.json"])] == ["base", "good"]


def test_few_seeds_against_many_are_said_and_one_seed_can_be_planned_with(runs, capsys):
    rng = np.random.default_rng(1)
    for seed in range(4):
        write_run(runs / f"many/seed={seed}", rng.uniform(0.2, 0.6, 40), seed=seed, loss="many")
    shutil.rmtree(runs / "base/seed=2")
    assert main(["compare", "runs/base", "runs/many"]) == 0
    assert "2 and 4 seeds are compared: false differences are then likelier" in capsys.readouterr().out
    shutil.rmtree(runs / "base/seed=1")
    assert main(["compare", "runs/base", "runs/many", "--plan", "0.01"]) == 0
    assert "for these models" in capsys.readouterr().out


def test_less_is_better_for_swapped_pairs(tmp_path):
    """The comparison knows by itself which metrics these are: importing those takes seconds."""
    assert comparison.LOWER_IS_BETTER == metrics.LOWER_IS_BETTER
    rng = np.random.default_rng(0)
    for name, gain in (("a", 0), ("b", 3)):
        for seed in range(2):
            write_run(tmp_path / f"{name}/seed={seed}", rng.normal(9 + gain, 0.1, 40), seed=seed, name="swapped_pairs", loss=name)
    (found,) = compare(experiments([str(tmp_path / "a"), str(tmp_path / "b")]))
    (one,) = found.comparisons
    assert one.verdict == "worse" and one.difference.mean == pytest.approx(3, abs=0.1) and one.effect < 0 and one.losses == 40


def test_one_seed_says_something_of_its_model_alone(runs):
    (found,) = compare(experiments(["runs/base/seed=0", "runs/good"]))
    (one,) = found.comparisons
    assert not one.has_seeds and one.p == one.p_models and one.verdict == "better; one seed: of these models alone"
    assert found.rows[0].deviation is None
    (equal,) = compare(experiments(["runs/base/seed=0", str(write_run(runs / "copy", values_of(runs / "base")[0]))]))
    assert equal.comparisons[0].verdict == "equal; one seed: of these models alone" and equal.comparisons[0].p == 1.0


def test_a_query_without_a_value_is_left_out_for_all(runs):
    values = values_of(runs / "base")[0]
    values[3] = np.nan
    write_run(runs / "nan", values)
    (found,) = compare(experiments(["runs/nan", "runs/good"]))
    assert found.n_queries == 39 and np.isfinite(found.comparisons[0].p)


def test_names_are_told_apart_and_seeds_are_sorted(runs):
    assert [one.name for one in experiments(["runs/good", "runs/base"])] == ["good", "base"]
    assert [one.name for one in experiments(["runs/base"])] == ["base"]
    (both,) = experiments(["runs/base/seed=2", "runs/base/seed=0"])
    assert [run.seed for run in both.runs] == [0, 2]
    assert [one.name for one in experiments(["runs"])] == ["base", "good", "same"]
    assert [len(one.runs) for one in experiments(["runs/b*", "runs/base/seed=1"])] == [3]


REFUSED = {
    "not tested": (lambda r: (r / "good/seed=1/per_query.tsv").unlink(), "good/seed=1: a run must have been tested"),
    "no digest": (lambda r: edit(r, evaluated=None), "do not say what they were measured on; test it again: ltr test"),
    "other judgements": (
        lambda r: edit(r, evaluated={"judgements": "x"}),
        "were tested on other judgements; runs can be compared on the same data",
    ),
    "other texts": (
        lambda r: edit(r, evaluated={"judgements": "j", "queries": "q", "documents": "x"}),
        "other texts of documents",
    ),
    "other convention": (lambda r: edit(r, conventions={"AP": "count 0"}), "AP is counted in two ways: runs/base/seed=0 says"),
    "other queries": (lambda r: cut(r / "good/seed=1/per_query.tsv"), "were tested on other queries"),
    "no such metric": (lambda r: None, "was not measured by RR, but by AP; name one with --metric"),
    "same seed": (lambda r: config(r, seed_everything=0), "have the same seed 0; compare one of them"),
    "other options": (
        lambda r: config(r, model={"ranker": {"class_path": "FeatureRanker"}, "loss": "X"}),
        "no seeds of one experiment, they differ in model.loss ('Loss_good', 'X')",
    ),
    "other rate": (
        lambda r: config(r, model={"ranker": {"class_path": "FeatureRanker"}, "loss": "Loss_good", "lr": 0.2}),
        "no seeds of one experiment, they differ in model.lr (0.1, 0.2)",
    ),
    "no configuration": (
        lambda r: (r / "good/seed=1/config.yaml").write_text("[1]"),
        "config.yaml: a configuration must be options",
    ),
    "empty table": (
        lambda r: (r / "good/seed=1/per_query.tsv").write_text(""),
        "per_query.tsv:1: the columns must be those of metrics.json",
    ),
    "empty line": (
        lambda r: (r / "good/seed=1/per_query.tsv").write_text("query\tAP\n\n"),
        "per_query.tsv:2: a line must be a query and 1 numbers",
    ),
    "no test": (lambda r: (r / "good/seed=1/metrics.json").write_text('{"test": null}'), "a run must have been tested"),
    "damaged": (lambda r: (r / "good/seed=1/metrics.json").write_text("{"), "metrics.json: the file is damaged"),
    "damaged table": (
        lambda r: (r / "good/seed=1/per_query.tsv").write_text("query\tAP\nq0\tx\n"),
        "per_query.tsv:2: a line must be a query and 1 numbers",
    ),
    "other columns": (
        lambda r: (r / "good/seed=1/per_query.tsv").write_text("query\tRR\n"),
        "per_query.tsv:1: the columns must be those of metrics.json, query, AP",
    ),
    "no such folder": (lambda r: None, "runs/none: there is no such folder"),
    "no run": (lambda r: (r / "none").mkdir(), "runs/none is no run folder, and holds none"),
    "no baseline": (lambda r: None, "the baseline must be one of base, good, got 'better' (option baseline)"),
    "no level": (lambda r: None, "alpha must be above 0 and below 1, got 5"),
    "no plan": (lambda r: None, "--plan must be a difference above 0, got 0"),
}
OPTIONS = {
    "no such metric": ["--metric", "RR"],
    "no baseline": ["--baseline", "better"],
    "no level": ["--alpha", "5"],
    "no plan": ["--plan", "0"],
    "no such folder": ["runs/none"],
    "no run": ["runs/none"],
}


def edit(runs, **test):
    file = runs / "good/seed=1/metrics.json"
    found = json.loads(file.read_text())
    found["test"] = {k: v for k, v in (found["test"] | test).items() if v is not None}
    file.write_text(json.dumps(found))


def config(runs, **changes):
    file = runs / "good/seed=1/config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))


def cut(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("case", REFUSED)
def test_runs_that_cannot_be_compared_are_one_line_and_exit_code_2(case, runs, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    change, text = REFUSED[case]
    change(runs)
    extra = OPTIONS.get(case, [])
    named = [one for one in extra if one.startswith("runs/")]
    assert (
        main(["compare", "runs/base", "runs/good", *named, *(one for one in extra if one not in named), "--csv", "out.csv"]) == 2
    )
    told = capsys.readouterr()
    assert text in told.err and told.err.count("\n") == 1 and told.out == ""
    assert not Path("out.csv").exists()


def test_without_a_configuration_the_folder_says_the_seed(runs):
    for file in runs.glob("base/*/config.yaml"):
        file.unlink()
    assert [run.seed for run in experiments(["runs/base"])[0].runs] == [0, 1, 2]


def test_other_candidates_are_said(runs):
    for seed in range(3):
        file = runs / f"good/seed={seed}/metrics.json"
        found = json.loads(file.read_text())
        found["test"] |= {"candidates": "corpus", "depth": 100, "evaluated": found["test"]["evaluated"] | {"candidates": "x"}}
        file.write_text(json.dumps(found))
    (found,) = compare(experiments(["runs/base", "runs/good"]))
    assert found.notes == [
        "the runs rank other candidates, so whole systems are compared (base: bm25, 50 deep; good: corpus, 100 deep)"
    ]
    assert compare(experiments(["runs/base", "runs/same"]))[0].notes == []


def test_the_command_prints_and_writes_its_tables(runs, capsys):
    files = {name: runs.parent / f"out.{name}" for name in ("markdown", "latex", "csv")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert main(["compare", "runs/base", "runs/good", "runs/same", "--plan", "0.02", *options]) == 0
    told = capsys.readouterr().out
    assert "AP, 40 queries" in told and "better" in told and "Holm's correction over 2 comparisons" in told
    (found,) = compare(experiments(["runs/base", "runs/good", "runs/same"]))
    low, high = found.comparisons[0].difference.interval()
    rows = list(csv.DictReader(open(files["csv"])))
    assert [row["experiment"] for row in rows] == ["base", "good", "same"] and rows[0]["baseline"] == ""
    assert float(rows[1]["p_corrected"]) == found.comparisons[0].corrected and float(rows[1]["difference_low"]) == low
    text = files["markdown"].read_text()
    assert re.search(rf"\| good \| \+0\.\d{{4}} \| \{low:+.4f} to \{high:+.4f} \| < 0\.001 .*\| better \|", text)
    needed = [found.comparisons[1].difference.queries_needed(0.02, n, 0.05 / 2) for n in (3, 5, 10)]
    assert f"| same | {' | '.join(str(n or 'no number') for n in needed)} |" in text and needed[2]
    tex = files["latex"].read_text()
    assert tex.count(r"\toprule") == 3 and r"95 \% interval" in tex and r"$\pm$" in tex


def test_nobody_reads_the_table(runs):
    """As ``ltr compare … | true`` under pipefail: what a program does that SIGPIPE ends. The files are written."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "ltr", "compare", "runs/base", "runs/good", "--csv", "out.csv"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "") and Path("out.csv").is_file()


def test_it_starts_without_lightning(runs):
    """Lightning takes seconds to import, torch one."""
    code = "import sys; from ltr.__main__ import main; main(['compare', 'runs/base', 'runs/good'])"
    code += "; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_real_run_can_be_compared(tmp_path, capsys):
    """Two seeds of a feature ranker under two losses, from fit to the table."""
    from tests.conftest import write_letor
    from tests.run.resumes import BASE

    write_letor(tmp_path / "letor")
    base = BASE | {
        "data": {
            "class_path": "ltr.datamodules.FeatureDataModule",
            "init_args": {"path": str(tmp_path / "letor"), "batch_size": 4},
        }
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(base))
    for loss in ("RankNetLoss", "ListNetLoss"):
        for seed in ("1", "2"):
            run = str(tmp_path / loss / f"seed={seed}")
            options = ["--seed_everything", seed, "--model.loss", f"ltr.losses.{loss}", "--trainer.default_root_dir", run]
            assert main(["fit", "--config", str(tmp_path / "c.yaml"), *options, "--trainer.max_epochs", "1"]) == 0
            assert main(["test", run]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "*Loss"), "--metric", "nDCG_exp@10", "swapped_pairs"]) == 0
    told = capsys.readouterr().out
    made = json.loads((tmp_path / "RankNetLoss/seed=1/metrics.json").read_text())["test"]["made"]
    assert f"seeds 1, 2; ltr {made['ltr']}" in told and f"torch {made['packages']['torch']}" in told and made["date"] in told
    assert "ListNetLoss" in told and "before training" in told and "Holm's correction over 2 comparisons" in told
