"""The tables of a comparison, in each format."""

import csv
import io

import pytest
from rich.console import Console

from ltr.compare.comparison import compare
from ltr.compare.runs import experiments
from ltr.compare.tables import (
    COMPARISON_COLUMNS,
    Table,
    as_csv,
    footnotes,
    latex,
    markdown,
    p_value,
    tables,
    terminal,
)
from tests.compare.tested import write_run

TABLE = Table("100 % of a_b", ["name", "p"], [["x|y", "< 0.001"], ["bm25-2 [b]", "-0.1 ± 0.2"]])


@pytest.mark.parametrize(
    "p, text",
    [
        (1.0, "1.000"),
        (0.001, "0.001"),
        (0.00099, "< 0.001"),
        (0.0001, "< 0.001"),
        (0.0, "< 0.0001"),
    ],
)
def test_p_values(p, text):
    assert p_value(p) == text


def test_markdown_by_hand():
    assert markdown([TABLE], ["a note"]) == (
        "**100 % of a_b**\n\n"
        "| name | p |\n| --- | --- |\n| x\\|y | < 0.001 |\n| bm25-2 [b] | -0.1 ± 0.2 |\n\n"
        "a note\n"
    )


def test_latex_by_hand():
    """A minus before a number is one; a hyphen within a name stays."""
    assert latex([TABLE], ["a note"]) == (
        "\\begin{table}\n\\begin{tabular}{lr}\n\\toprule\n"
        "name & p \\\\\n\\midrule\n"
        "x|y & $<$ 0.001 \\\\\nbm25-2 [b] & $-$0.1 $\\pm$ 0.2 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\caption{100 \\% of a\\_b}\n\\end{table}\n\n"
        "% a note\n"
    )


def test_on_a_terminal_brackets_are_no_markup():
    out = io.StringIO()
    terminal([TABLE], ["[note]"], Console(file=out, width=60))
    assert "bm25-2 [b]" in out.getvalue() and "[note]" in out.getvalue()


def test_csv_has_a_line_for_each_baseline_and_one_for_an_experiment_without(runs):
    pairs = [("good", "base"), ("good", "same")]
    lines = list(csv.DictReader(io.StringIO(as_csv(compare(experiments(["runs"]), pairs=pairs)))))
    named = [(line["experiment"], line["baseline"]) for line in lines]
    assert named == [("base", ""), ("good", "base"), ("good", "same"), ("same", "")]
    assert all(lines[0][column] == "" for column in COMPARISON_COLUMNS)
    assert lines[1]["verdict"] == "better" and lines[0]["seeds"] == "3"


def test_columns_that_no_run_fills_are_left_out(tmp_path):
    for name, start in (("a", None), ("b", 0.3)):
        write_run(tmp_path / name, [0.5] * 40, loss=name, start=start)
    alone = tables(compare(experiments([str(tmp_path / "a")])))[0]
    assert alone.header == ["experiment", "seeds", "AP", "95 % interval", "ceiling", "training, s"]
    both = tables(compare(experiments([str(tmp_path / "a"), str(tmp_path / "b")])))[1]
    column = both.header.index("before training, dev")
    assert [cells[column] for cells in both.rows] == ["", "0.3000"]


def test_the_last_footnote_says_with_what_the_runs_were_tested(tmp_path):
    for seed, commit in ((1, "c2"), (0, "c1")):
        made = {"ltr": "1.0", "commit": commit, "packages": {"torch": "2"}}
        write_run(tmp_path / f"a/seed={seed}", [0.5] * 40, seed=seed, report={"made": made})
    lines = footnotes(compare(experiments([str(tmp_path / "a")])))
    assert lines[-1] == "seeds 0, 1; ltr 1.0; commit c1, c2; torch 2"


def test_a_plan_tells_several_baselines_apart(runs):
    found = compare(
        experiments(["runs/base", "runs/good", "runs/same"]),
        pairs=[("same", "base"), ("same", "good")],
    )
    comparisons, _, plan = tables(found, plan=0.01)
    names = ["same − base", "same − good"]
    assert [row[0] for row in plan.rows] == [row[0] for row in comparisons.rows] == names
