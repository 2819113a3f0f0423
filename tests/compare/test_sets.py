"""Experiments over several data sets and their mean: values by hand, families, and the command."""

import csv
import io
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.compare.comparison import compare
from ltr.compare.csv_lines import as_csv
from ltr.compare.experiment import Experiment, read_experiments
from ltr.compare.query_groups import Groups
from ltr.compare.tables import footnotes, tables
from ltr.compare.tested_run import Run
from ltr.run.data_sets import DataSet
from tests.world.tested_runs import (
    edit_metrics,
    forget_test,
    refuses_to_compare,
    report_of,
    write_run,
)


def experiment(name: str, *by_seed, metric: str = "AP", lower: bool = False) -> Experiment:
    """An experiment with these values by seed and query."""
    runs = []
    for seed, values in enumerate(by_seed):
        by_query = {f"q{n}": float(value) for n, value in enumerate(values)}
        report = report_of(metric, float(np.mean(values)), lower_is_better=[metric] * lower)
        report["evaluated"] = {"judgements": str(len(values))}
        runs.append(Run(Path(name), seed, {}, {"test": report}, {metric: by_query}))
    return Experiment(name, runs)


def suite(base, new, **options) -> Groups:
    """The two experiments on sets s0, s1 …, of one seed each."""
    sets = {}
    for number, values in enumerate(zip(base, new, strict=True)):
        named = zip(("base", "new"), values, strict=True)
        sets[f"s{number}"] = [experiment(name, of_set, **options) for name, of_set in named]
    return Groups("set", sets)


def test_each_set_counts_alike_in_the_mean():
    """+0.1 on 3 queries and +0.3 on 5: the mean is +0.2, whatever the numbers of queries."""
    base = [[0.2, 0.4, 0.6], [0.1, 0.2, 0.3, 0.4, 0.5]]
    new = [[0.3, 0.5, 0.7], [0.4, 0.5, 0.6, 0.7, 0.8]]
    (result,) = compare(suite(base, new))
    (of_mean,) = result.over_sets.comparisons
    assert of_mean.difference.mean == pytest.approx(0.2)
    assert [row.estimate.mean for row in result.over_sets.rows] == pytest.approx([0.35, 0.55])
    assert (of_mean.wins, of_mean.ties, of_mean.losses) == (2, 0, 0), "of sets"
    assert list(result.groups) == ["s0", "s1"] and result.over_sets.n_queries == 8


def test_the_randomisation_test_of_the_mean_weighs_queries_as_the_mean_does():
    """All 2^5 signs of d / (K · Q), counted here: not those of the plain differences."""
    differences = [np.array([0.3, -0.1]), np.array([0.2, 0.1, -0.25])]
    base = [np.full(2, 0.5), np.full(3, 0.5)]
    new = [base[0] + differences[0], base[1] + differences[1]]
    (result,) = compare(suite(base, new))
    weighted = np.concatenate([differences[0] / 4, differences[1] / 6])
    sums = np.array([np.dot(signs, weighted) for signs in product((1, -1), repeat=5)])
    expected = (abs(sums) >= abs(weighted.sum()) - 1e-12).mean()
    assert result.over_sets.comparisons[0].p == pytest.approx(expected)


def test_sets_are_a_family_and_means_another():
    """16 queries, all better by as much: the smallest p is 2^-15. Of two sets the smaller p counts
    twice, of the mean it counts once. Of 10 queries half are better and half worse by as much.
    """
    base = [np.linspace(0.1, 0.8, 16), np.linspace(0.1, 0.8, 10)]
    new = [base[0] + 0.1, base[1] + [0.1, -0.1] * 5]
    (result,) = compare(suite(base, new))
    first, second = (of_set.comparisons[0] for of_set in result.groups.values())
    (of_mean,) = result.over_sets.comparisons
    assert first.p == 2**-15 and first.corrected == 2**-14 and first.verdict.startswith("better")
    assert second.corrected == second.p > 0.9 and second.verdict.startswith("not shown")
    assert of_mean.corrected == of_mean.p
    (note,) = [note for note in footnotes([result]) if "of means: one comparison" in note]
    assert "over 2 comparisons" in note


def test_lower_is_better_turns_the_verdict():
    base = [np.linspace(0.5, 0.9, 12), np.linspace(0.5, 0.9, 12)]
    new = [values - 0.2 for values in base]
    (result,) = compare(suite(base, new, metric="E", lower=True))
    (of_mean,) = result.over_sets.comparisons
    assert of_mean.verdict.startswith("better") and of_mean.difference.mean < 0 < of_mean.wins


def test_seeds_are_those_of_all_sets():
    """Both seeds of new have the same mean over the sets, so its seeds add nothing of their own; by
    itself each set sees them differ.
    """
    base = [[0.1, 0.2, 0.4]] * 2
    good_here = [[0.5, 0.6, 0.8], [0.3, 0.4, 0.6]]
    good_there = good_here[::-1]
    sets = {
        "s0": [experiment("base", *base), experiment("new", *good_here)],
        "s1": [experiment("base", *base), experiment("new", *good_there)],
    }
    (result,) = compare(Groups("set", sets))
    of_mean = result.over_sets.comparisons[0].difference
    assert of_mean.seed_variances == pytest.approx((0, 0), abs=1e-12)
    assert result.groups["s0"].comparisons[0].difference.seed_variances[0] == pytest.approx(0.01)
    assert result.over_sets.rows[1].deviation == pytest.approx(0)


@pytest.fixture
def tested(tmp_path, monkeypatch) -> Path:
    """Two seeds of ``base`` and of ``new``, tested on their own data, on A and on B."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name, gain in (("base", 0.0), ("new", 0.1)):
        for seed in range(2):
            folder = tmp_path / f"runs/{name}/seed={seed}"
            write_run(folder, rng.uniform(size=40), seed=seed, loss=name)
            for data_set in ("A", "B"):
                values = rng.uniform(0.2, 0.3, 40) + gain
                write_run(folder / "sets" / data_set, values, seed=seed, start=None)
    return tmp_path


def test_the_command_compares_the_sets_and_their_mean(tested, capsys):
    data = ["--data", "data/A", "data/B"]
    files = ["--csv", "t.csv", "--html", "t.html", "--markdown", "t.md"]
    assert main(["compare", "runs/base", "runs/new", *data, *files]) == 0
    said = capsys.readouterr().out
    assert "AP, mean of 2 sets, against base" in said and "AP by set, against base" in said
    rows = list(csv.DictReader(io.StringIO(Path("t.csv").read_text())))
    named = [(row["set"], row["experiment"]) for row in rows]
    assert named == [*product(("", "A", "B"), ("base", "new"))]
    by_set = {row["set"]: float(row["difference"]) for row in rows if row["experiment"] == "new"}
    assert by_set[""] == pytest.approx((by_set["A"] + by_set["B"]) / 2)
    assert rows[1]["verdict"] == "better" and "mean of 2 sets" in Path("t.html").read_text()


def test_several_pairs_and_metrics_name_their_rows(tested):
    runs = ["runs/base", "runs/new"]
    sets = {name: read_experiments(runs, DataSet(name, name)) for name in ("A", "B")}
    results = compare(Groups("set", sets), ["AP"], [("new", "base"), ("base", "new")])
    *_, by_set = tables(results)
    assert [row[0] for row in by_set.rows] == [
        f"{name}: {pair}" for name in ("A", "B") for pair in ("new − base", "base − new")
    ]
    assert len(as_csv(results).splitlines()) == 1 + 3 * 2


def test_what_can_t_be_compared_is_one_line(tested, capsys):
    words = ["runs/base", "runs/new", "--data"]
    said = "runs/base/seed=0: a run must have been tested on C"
    refuses_to_compare(capsys, [*words, "A", "C"], said)
    refuses_to_compare(capsys, [*words, "A"], "--data must name two data sets or more, got A")
    plan = ["--plan", "0.1"]
    refuses_to_compare(capsys, [*words, "A", "B", *plan], "--plan is of one data set")
    assert "two names" not in refuses_to_compare(capsys, [*words, "A", "x/A"], "A")
    other = {"evaluated": {"judgements": "other"}}
    edit_metrics(Path("runs/new/seed=1/sets/B"), test=other)
    refuses_to_compare(capsys, [*words, "A", "B"], "B: ")


def test_runs_that_were_tested_on_other_data_alone_are_found(tested):
    for run in Path("runs").glob("*/seed=*"):
        forget_test(run)
        for place in run.glob("sets/*"):
            (place / "row.json").write_text("{}")
    assert main(["compare", "runs/base", "runs/new", "--data", "A", "B"]) == 0
    (tested / "sets/seed=0").mkdir(parents=True)  # an experiment may be called so
    assert main(["compare", "runs", "--data", "A", "B"]) == 0


def test_the_tables_of_another_split_than_test_say_it():
    sets = suite([[0.2, 0.4], [0.1, 0.3]], [[0.3, 0.5], [0.4, 0.5]])
    on_dev = {}
    for name, of_set in sets.experiments.items():
        on_dev[name] = []
        for each in of_set:
            runs = [replace(run, split="dev") for run in each.runs]
            on_dev[name].append(replace(each, runs=runs))
    titles = [table.title.split(",")[0] for table in tables(compare(Groups("set", on_dev)))]
    assert titles == ["AP on dev", "AP on dev", "AP on dev by set"]
