"""A comparison as lines of CSV, with all digits."""

import csv
import io
from collections.abc import Sequence

from ltr.compare.comparison import Comparison, MetricResult, Row
from ltr.compare.suites import SuiteResult
from ltr.compare.tables import effect_or_none

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
    compared with none has one line, with empty comparison columns.
    """
    return _csv([], [([], result) for result in results])


def suite_csv(results: Sequence[SuiteResult]) -> str:
    """The same for each set, which the first column names; it is empty for the mean of the sets."""
    of_sets: list[tuple[list[str], MetricResult]] = []
    for result in results:
        of_sets.append(([""], result.of_mean))
        of_sets += [([name], of_set) for name, of_set in result.of_sets.items()]
    return _csv(["set"], of_sets)


def _csv(header: list[str], results: Sequence[tuple[list[str], MetricResult]]) -> str:
    """Lines of results, each with cells that stand before its own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header + EXPERIMENT_COLUMNS + COMPARISON_COLUMNS)
    for first_cells, result in results:
        for row in result.rows:
            of_experiment = [*first_cells, *_experiment_values(row, result)]
            has_baseline = False
            for comparison in result.comparisons:
                if comparison.name == row.experiment.name:
                    has_baseline = True
                    writer.writerow(of_experiment + _comparison_values(comparison))
            if not has_baseline:
                writer.writerow(of_experiment + [None] * len(COMPARISON_COLUMNS))
    return out.getvalue()


def _experiment_values(row: Row, result: MetricResult) -> list[object]:
    """In the order of :data:`EXPERIMENT_COLUMNS`."""
    low, high = row.mean.interval()
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


def _comparison_values(comparison: Comparison) -> list[object]:
    """In the order of :data:`COMPARISON_COLUMNS`."""
    low, high = comparison.difference.interval()
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
