"""Experiments on several splits of their data: what they differ by on each, and what changes from one
to the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ltr.compare.comparison import (
    MetricResult,
    compare_by,
    judged,
    metrics_to_test,
    queries_with_values,
    values_by_experiment,
)
from ltr.compare.run import exact_weights
from ltr.compare.runs import Experiment
from ltr.compare.statistics import Estimate, estimate_of_change
from ltr.errors import InputError


@dataclass(frozen=True)
class SplitResult:
    """What a comparison on several splits has found by one metric.

    Attributes:
        of_splits: by the name of the split.
        changes: of each split but the first, by the name of an experiment: its mean there minus its
            mean on the first split.
    """

    of_splits: dict[str, MetricResult]
    changes: dict[str, dict[str, Estimate]]


def compare_splits(
    experiments_of_split: Mapping[str, Sequence[Experiment]],
    metrics: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    alpha: float = 0.05,
) -> list[SplitResult]:
    """Compare experiments with baselines on several splits, by one or several metrics: all of it is
    one family.

    Args:
        experiments_of_split: the same experiments on each split, by its name; the first split is the
            one that changes are counted from.
        metrics: by default the first one that the first run was measured by.
        pairs: names of an experiment and of its baseline.
        alpha: the level of the family.

    Raises:
        InputError: if the runs can't be compared, or one was tested by other weights on another
            split.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must be above 0 and below 1, got {alpha}", option="alpha")
    first_split, *other_splits = experiments_of_split
    first = experiments_of_split[first_split]
    for split in other_splits:
        _check_weights(first, experiments_of_split[split])
    metrics = metrics_to_test(first, metrics)
    n_comparisons = max(1, len(pairs) * len(metrics) * len(experiments_of_split))
    found = []
    for metric in metrics:
        for split, experiments in experiments_of_split.items():
            try:
                found.append(compare_by(metric, experiments, pairs, level=alpha / n_comparisons))
            except InputError as error:
                raise InputError(f"{split}: {error.message}", option=error.option) from None
    found = judged(found, alpha)
    results = []
    for metric in metrics:
        of_splits = {split: found.pop(0) for split in experiments_of_split}
        changes = {}
        for split in other_splits:
            changes[split] = _changes(first, experiments_of_split[split], metric)
        results.append(SplitResult(of_splits, changes))
    return results


def _check_weights(first: Sequence[Experiment], others: Sequence[Experiment]) -> None:
    """Check that each run was tested by the same weights on two splits."""
    for experiment, other in zip(first, others, strict=True):
        for run, run_there in zip(experiment.runs, other.runs, strict=True):
            weights = exact_weights(run)
            weights_there = exact_weights(run_there)
            if weights != weights_there:
                raise InputError(
                    f"{run.folder} must have been tested by the same weights on all splits, and was by {weights} on {run.split} and by {weights_there} on {run_there.split}; test it again: ltr test {run.folder} --split {run.split} {run_there.split}"
                )


def _changes(
    first: Sequence[Experiment], others: Sequence[Experiment], metric: str
) -> dict[str, Estimate]:
    """Of each experiment, how its mean changes from a first split to another one."""
    queries = queries_with_values(first, metric)
    queries_there = queries_with_values(others, metric)
    values = values_by_experiment(first, metric)
    values_there = values_by_experiment(others, metric)
    changes = {}
    for name in values:
        changes[name] = estimate_of_change(values[name], values_there[name], queries, queries_there)
    return changes
