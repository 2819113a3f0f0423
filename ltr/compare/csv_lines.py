"""A comparison as lines of CSV, with all digits."""

import csv
import io
from collections.abc import Sequence

from ltr.compare.comparison import MetricResult
from ltr.compare.group_result import Comparison, ExperimentResult, GroupResult
from ltr.compare.ranges import interval_of_difference, interval_of_mean
from ltr.compare.statistics import Estimate
from ltr.compare.tables import effect_or_none

# The columns of the CSV: of a change between splits, of an experiment, and of its comparison with a
# baseline.
CHANGE_COLUMNS = ["change", "change_low", "change_high"]
EXPERIMENT_COLUMNS = [
    "metric",
    "experiment",
    "seeds",
    "queries",
    "mean",
    "deviation",
    "low",
    "high",
    "start",
    "ceiling",
    "seconds",
]
COMPARISON_COLUMNS = [
    "baseline",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_corrected",
    "p_models",
    "effect",
    "wins",
    "ties",
    "losses",
    "detectable",
    "verdict",
]


def as_csv(results: Sequence[MetricResult]) -> str:
    """A line for each group, experiment, metric and baseline, with all digits; an experiment that is
    compared with none has one line, with empty comparison columns.

    The first column names the split or the set; it is empty for the mean of the sets, and not there
    where test is the only split. Of several splits, how the mean of the experiment changes from the
    first split to this one comes next, with its 95 % interval; nothing for the first.
    """
    only_test = list(results[0].groups) == ["test"]
    names_group = results[0].over_sets is not None or not only_test
    has_changes = bool(results[0].changes)
    header: list[str] = [results[0].by] if names_group else []
    if has_changes:
        header += CHANGE_COLUMNS
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")

    def write(cells: Sequence[object]) -> None:
        writer.writerow([_no_formula(cell) for cell in cells])

    write(header + EXPERIMENT_COLUMNS + COMPARISON_COLUMNS)
    for result in results:
        groups = (
            result.groups if result.over_sets is None else {"": result.over_sets} | result.groups
        )
        for group, group_result in groups.items():
            for row in group_result.rows:
                cells: list[object] = [group] if names_group else []
                if has_changes:
                    change = result.changes.get(group, {}).get(row.experiment.name)
                    cells += _change_values(change, group_result.metric)
                cells += _experiment_values(row, group_result)
                has_baseline = False
                for comparison in group_result.comparisons:
                    if comparison.name == row.experiment.name:
                        has_baseline = True
                        write(cells + _comparison_values(comparison, group_result.metric))
                if not has_baseline:
                    write(cells + [None] * len(COMPARISON_COLUMNS))
    return out.getvalue()


def _no_formula(cell: object) -> object:
    """A cell; a name that a spreadsheet would compute is told to be text, by an apostrophe."""
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return f"'{cell}"
    return cell


def _change_values(change: Estimate | None, metric: str) -> list[object]:
    """In the order of :data:`CHANGE_COLUMNS`."""
    if change is None:
        return [None] * len(CHANGE_COLUMNS)
    return [change.mean, *interval_of_difference(change, metric)]


def _experiment_values(row: ExperimentResult, result: GroupResult) -> list[object]:
    """In the order of :data:`EXPERIMENT_COLUMNS`."""
    low, high = interval_of_mean(row.estimate, result.metric)
    return [
        result.metric,
        row.experiment.name,
        len(row.experiment.runs),
        result.n_queries,
        row.estimate.mean,
        row.deviation,
        low,
        high,
        row.start,
        row.ceiling,
        row.seconds,
    ]


def _comparison_values(comparison: Comparison, metric: str) -> list[object]:
    """In the order of :data:`COMPARISON_COLUMNS`."""
    low, high = comparison.interval(metric)
    return [
        comparison.baseline,
        comparison.difference.mean,
        low,
        high,
        comparison.p,
        comparison.corrected,
        comparison.p_models,
        effect_or_none(comparison),
        comparison.wins,
        comparison.ties,
        comparison.losses,
        comparison.detectable,
        comparison.verdict,
    ]
