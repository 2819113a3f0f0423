"""A comparison as lines of CSV, with all digits."""

import csv
import io
from collections.abc import Callable, Sequence

from ltr.compare.comparison import MetricResult
from ltr.compare.group_result import Comparison, ExperimentResult, GroupResult
from ltr.compare.ranges import interval_of_difference, interval_of_mean
from ltr.compare.statistics import Estimate
from ltr.compare.tables import effect_or_none

# The columns of the CSV: of a change between splits, of an experiment, and of its comparison with a
# baseline; the values of the last two by the metric's result.
CHANGE_COLUMNS = ["change", "change_low", "change_high"]
EXPERIMENT_COLUMNS: dict[str, Callable[[ExperimentResult, GroupResult], object]] = {
    "metric": lambda row, result: result.metric,
    "experiment": lambda row, result: row.experiment.name,
    "seeds": lambda row, result: len(row.experiment.runs),
    "queries": lambda row, result: result.n_queries,
    "mean": lambda row, result: row.estimate.mean,
    "deviation": lambda row, result: row.deviation,
    "low": lambda row, result: interval_of_mean(row.estimate, result.metric)[0],
    "high": lambda row, result: interval_of_mean(row.estimate, result.metric)[1],
    "start": lambda row, result: row.start,
    "ceiling": lambda row, result: row.ceiling,
    "seconds": lambda row, result: row.seconds,
}
COMPARISON_COLUMNS: dict[str, Callable[[Comparison, GroupResult], object]] = {
    "baseline": lambda comparison, result: comparison.baseline,
    "difference": lambda comparison, result: comparison.difference.mean,
    "difference_low": lambda comparison, result: comparison.interval(result.metric)[0],
    "difference_high": lambda comparison, result: comparison.interval(result.metric)[1],
    "p": lambda comparison, result: comparison.p,
    "p_corrected": lambda comparison, result: comparison.corrected,
    "p_models": lambda comparison, result: comparison.p_models,
    "effect": lambda comparison, result: effect_or_none(comparison),
    "wins": lambda comparison, result: comparison.wins,
    "ties": lambda comparison, result: comparison.ties,
    "losses": lambda comparison, result: comparison.losses,
    "detectable": lambda comparison, result: comparison.detectable,
    "verdict": lambda comparison, result: comparison.verdict,
}


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

    write([*header, *EXPERIMENT_COLUMNS, *COMPARISON_COLUMNS])
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
                cells += [value(row, group_result) for value in EXPERIMENT_COLUMNS.values()]
                compared: list[list[object]] = []
                for comparison in group_result.comparisons:
                    if comparison.name == row.experiment.name:
                        values = COMPARISON_COLUMNS.values()
                        compared.append([value(comparison, group_result) for value in values])
                for values_of_comparison in compared or [[None] * len(COMPARISON_COLUMNS)]:
                    write(cells + values_of_comparison)
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
