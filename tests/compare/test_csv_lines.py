"""A comparison as lines of CSV."""

import csv
import io
import math
from dataclasses import replace

from ltr.compare.csv_lines import COMPARISON_COLUMNS, as_csv
from ltr.compare.ranges import (
    RANGES,
    infinite_beyond_range,
    interval_of_difference,
    interval_of_mean,
)
from ltr.compare.tables import footnotes, tables
from ltr.metrics import MEASURES
from tests.world.tested_runs import compared


def test_csv_has_a_line_for_each_baseline_and_one_for_an_experiment_without(runs):
    pairs = [("good", "base"), ("good", "same")]
    lines = list(csv.DictReader(io.StringIO(as_csv(compared(["runs"], pairs=pairs)))))
    named = [(line["experiment"], line["baseline"]) for line in lines]
    assert named == [("base", ""), ("good", "base"), ("good", "same"), ("same", "")]
    assert all(lines[0][column] == "" for column in COMPARISON_COLUMNS)
    assert lines[1]["verdict"] == "better" and lines[0]["seeds"] == "3"


def test_a_name_is_no_formula_and_intervals_stay_inside_the_measure(runs):
    """A spreadsheet computes cells that begin with these signs. The AP of three seeds that vary much
    is not above 1, and no two differ by more; swapped pairs have no largest number.
    """
    (result,) = compared(["runs"])
    row = result.main.rows[0]
    wide = replace(row.estimate, mean=0.83, query_variance=0.1, query_freedom=2.0)
    for sign in "=+-@\t":
        named = replace(row, estimate=wide, experiment=replace(row.experiment, name=f"{sign}1+1"))
        alone = replace(result.main, rows=[named], comparisons=[])
        text = as_csv([replace(result, groups={"test": alone})])
        (line,) = csv.DictReader(io.StringIO(text))
        assert line["experiment"] == f"'{sign}1+1"
        assert (float(line["low"]), float(line["high"])) == (0, 1)
        assert float(line["mean"]) == 0.83
    low, high = wide.interval()
    assert low < -0.5 and high > 2
    assert interval_of_difference(wide, "nDCG@10") == (low, 1) if low > -1 else (-1, 1)
    assert interval_of_mean(wide, "swapped_pairs") == (0, high)
    assert interval_of_difference(wide, "swapped_pairs") == (low, high)
    assert interval_of_mean(wide, "tau") == (max(low, -1), 1)
    assert "0.0000 to 1.0000" in str(tables([replace(result, groups={"test": alone})]))
    cut = [replace(result, groups={"test": alone})]
    assert sum("are cut there" in line for line in footnotes(cut)) == 1
    assert not any("are cut there" in line for line in footnotes([result])), "none goes so far"
    assert set(RANGES) == set(MEASURES)
    assert infinite_beyond_range(0.9, "AP") == 0.9 and infinite_beyond_range(1.1, "AP") == math.inf
    assert (
        infinite_beyond_range(1.1, "tau") == 1.1
        and infinite_beyond_range(3.0, "swapped_pairs") == 3
    )
