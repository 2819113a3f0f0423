"""A comparison as lines of CSV, with all digits."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from ltr.compare.comparison import Comparison, MetricResult, Row
from ltr.compare.ranges import interval_of_difference, interval_of_mean
from ltr.compare.splits import SplitResult
from ltr.compare.statistics import Estimate
from ltr.compare.suites import SuiteResult
from ltr.compare.tables import effect_or_none

FirstCells = Callable[[Row], Sequence[object]]  # what stands before the columns of an experiment

# The columns of the CSV: of an experiment, and of its comparison with a baseline.
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
    """A line for each experiment, metric and baseline, with all digits; an experiment that is
    compared with none has one line, with empty comparison columns. Of another split than test, the
    first column names it.
    """
    split = results[0].rows[0].experiment.split
    if split == "test":
        return _csv([], [(_same([]), result) for result in results])
    return _csv(["split"], [(_same([split]), result) for result in results])


def suite_csv(results: Sequence[SuiteResult]) -> str:
    """The same for each set, which the first column names; it is empty for the mean of the sets."""
    of_sets: list[tuple[FirstCells, MetricResult]] = []
    for result in results:
        of_sets.append((_same([""]), result.of_mean))
        for name, of_set in result.of_sets.items():
            of_sets.append((_same([name]), of_set))
    return _csv(["set"], of_sets)


def split_csv(results: Sequence[SplitResult]) -> str:
    """The same for each split, which the first column names. Behind it stands how the mean of the
    experiment changes from the first split to this one, with its 95 % interval; nothing for the
    first.
    """
    of_splits: list[tuple[FirstCells, MetricResult]] = []
    for result in results:
        for split, of_split in result.of_splits.items():
            of_splits.append(
                (_with_change(split, result.changes.get(split, {}), of_split.metric), of_split)
            )
    return _csv(["split", "change", "change_low", "change_high"], of_splits)


def _same(cells: Sequence[object]) -> FirstCells:
    """The same cells for each row."""
    return lambda row: cells


def _with_change(split: str, changes: Mapping[str, Estimate], metric: str) -> FirstCells:
    """The split, and the change of the row's experiment, as far as there is one."""

    def cells(row: Row) -> Sequence[object]:
        change = changes.get(row.experiment.name)
        if change is None:
            return [split, None, None, None]
        return [split, change.mean, *interval_of_difference(change, metric)]

    return cells


def _csv(header: list[str], results: Sequence[tuple[FirstCells, MetricResult]]) -> str:
    """Lines of results, each with cells that stand before its own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")

    def write(cells: Sequence[object]) -> None:
        writer.writerow([_no_formula(cell) for cell in cells])

    write(header + EXPERIMENT_COLUMNS + COMPARISON_COLUMNS)
    for first_cells_of, result in results:
        for row in result.rows:
            of_experiment = [*first_cells_of(row), *_experiment_values(row, result)]
            has_baseline = False
            for comparison in result.comparisons:
                if comparison.name == row.experiment.name:
                    has_baseline = True
                    write(of_experiment + _comparison_values(comparison, result.metric))
            if not has_baseline:
                write(of_experiment + [None] * len(COMPARISON_COLUMNS))
    return out.getvalue()


def _no_formula(cell: object) -> object:
    """A cell; a name that a spreadsheet would compute is told to be text, by an apostrophe."""
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return f"'{cell}"
    return cell


def _experiment_values(row: Row, result: MetricResult) -> list[object]:
    """In the order of :data:`EXPERIMENT_COLUMNS`."""
    low, high = interval_of_mean(row.mean, result.metric)
    return [
        result.metric,
        row.experiment.name,
        len(row.experiment.runs),
        result.n_queries,
        row.mean.mean,
        row.deviation,
        low,
        high,
        row.start,
        row.ceiling,
        row.seconds,
    ]


def _comparison_values(comparison: Comparison, metric: str) -> list[object]:
    """In the order of :data:`COMPARISON_COLUMNS`."""
    low, high = interval_of_difference(comparison.difference, metric)
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
