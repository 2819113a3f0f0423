"""A comparison as lines of CSV."""

import csv
import io

from ltr.compare.comparison import compare
from ltr.compare.csv_lines import COMPARISON_COLUMNS, as_csv
from ltr.compare.runs import experiments


def test_csv_has_a_line_for_each_baseline_and_one_for_an_experiment_without(runs):
    pairs = [("good", "base"), ("good", "same")]
    lines = list(csv.DictReader(io.StringIO(as_csv(compare(experiments(["runs"]), pairs=pairs)))))
    named = [(line["experiment"], line["baseline"]) for line in lines]
    assert named == [("base", ""), ("good", "base"), ("good", "same"), ("same", "")]
    assert all(lines[0][column] == "" for column in COMPARISON_COLUMNS)
    assert lines[1]["verdict"] == "better" and lines[0]["seeds"] == "3"
