"""Runs that were tested on several sources together, compared on each and by their mean."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ltr.__main__ import main
from ltr.compare.comparison import compare
from ltr.compare.experiment import Experiment, check_alike
from ltr.compare.query_groups import Groups, grouped
from ltr.compare.tested_run import Run
from ltr.errors import InputError
from tests.world.tested_runs import QUERIES, report_of, write_run


def of_two_sources(name, values, sources=("a", "b")):
    """An experiment of one seed with values by SOURCE/QUERY."""
    # The macro mean is not read here.
    report = report_of("AP", 0.5, sources=list(sources), ceiling={"AP": 0.9})
    run = Run(Path(name), 0, {}, {"test": report, "start": {"AP": 0.1}}, {"AP": values})
    return Experiment(name, [run])


def test_values_by_hand():
    """Source a has 0.2 and 0.4, mean 0.3; of b one query has no value: 0.9. Each counts alike in the
    mean: 0.6, and not (0.2 + 0.4 + 0.9) / 3 = 0.5.
    """
    base = {"a/1": 0.2, "a/2": 0.4, "b/1": 0.9, "b/2": math.nan, "b/3": 0.9}
    new = {query: value + 0.1 for query, value in base.items()}
    groups = grouped([of_two_sources("base", base), of_two_sources("new", new)])
    assert list(groups.experiments) == ["a", "b"]
    (on_a, _), (on_b, _) = groups.experiments.values()
    assert on_a.runs[0].by_query == {"AP": {"1": 0.2, "2": 0.4}}
    assert on_a.means("AP") == [pytest.approx(0.3)] and on_b.means("AP") == [pytest.approx(0.9)]
    assert on_a.starts("AP") == [] and not on_a.runs[0].sources
    (result,) = compare(groups)
    assert [row.estimate.mean for row in result.main.rows] == pytest.approx([0.6, 0.7])
    assert result.main.comparisons[0].difference.mean == pytest.approx(0.1)


def test_a_source_whose_queries_have_no_value_has_no_mean():
    groups = grouped([of_two_sources("base", {"a/1": math.nan, "b/1": 0.5})])
    (experiment,) = groups.experiments["a"]
    assert experiment.runs[0].report["AP"] is None and math.isnan(experiment.means("AP")[0])


def test_texts_of_a_source_that_differ_are_refused():
    """The judgements are the same, and a document of source b has another text."""
    values = {"a/1": 0.5, "a/2": 0.5, "b/1": 0.5, "b/2": 0.5}
    first = of_two_sources("first", values)
    second = of_two_sources("second", values)
    texts = {"a queries": "q", "a documents": "d", "b queries": "q", "b documents": "d"}
    first.runs[0].report["evaluated"].update(texts)
    second.runs[0].report["evaluated"].update(texts | {"b documents": "other"})
    by_source = grouped([first, second]).experiments
    check_alike(by_source["a"], "AP")
    with pytest.raises(InputError, match="were tested on other texts of documents"):
        check_alike(by_source["b"], "AP")


def test_other_sources_are_refused():
    values = {"a/1": 0.5, "a/2": 0.5}
    first = of_two_sources("first", values)
    second = of_two_sources("second", values, sources=("a",))
    alone = replace(second.runs[0], results={"test": {"AP": 0.5}})
    with pytest.raises(InputError, match="tested on other sources, a, b and a; test both"):
        grouped([first, second])
    with pytest.raises(InputError, match="other sources, a, b and one collection"):
        grouped([first, Experiment("alone", [alone])])
    assert list(grouped([Experiment("alone", [alone])]).experiments) == ["test"]
    with pytest.raises(InputError, match="a mean over all queries is none of its metrics"):
        compare(Groups("split", {"test": [first]}))


def test_the_command(here, capsys):
    """Two runs of two sources, of which the second is better on b alone."""
    base = [0.3 + 0.01 * number for number in range(40)]
    new = base[:10] + [value + 0.2 for value in base[10:]]
    for name, values in (("base", base), ("new", new)):
        mean = (sum(values[:10]) / 10 + sum(values[10:]) / 30) / 2
        report = {"sources": ["a", "b"], "AP": mean}
        run = write_run(here / "runs" / name, values, report=report, lr=len(name) / 10)
        lines = (run / "per_query.tsv").read_text()
        for number, query in enumerate(QUERIES):
            source = "a" if number < 10 else "b"
            lines = lines.replace(f"\n{query}\t", f"\n{source}/{query}\t")
        (run / "per_query.tsv").write_text(lines)
    assert main(["compare", "runs/base", "runs/new", "--csv", "out.csv", "--html", "out.html"]) == 0
    said = capsys.readouterr().out
    assert "mean of 2 sets" in said and "by set" in said
    with open("out.csv", newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert {row["set"] for row in rows} >= {"a", "b"}
    assert main(["compare", "runs/base", "runs/new", "--plan", "0.1"]) == 2
    assert "--plan is of one data set, and these runs were tested on several" in (
        capsys.readouterr().err
    )
