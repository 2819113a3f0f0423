"""What is said across groups: the means over several data sets, and how the mean of an experiment changes
from one split to another.

Letters of shapes: S seeds, Q queries of a set.
"""

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np

from ltr.compare.group_result import (
    Comparison,
    GroupResult,
    Row,
    queries_with_values,
    uncorrected_comparison,
    values_by_experiment,
)
from ltr.compare.query_groups import Groups
from ltr.compare.run import tested_weights
from ltr.compare.statistics import (
    ROUNDING,
    Estimate,
    differences_by_query,
    estimate_of_change,
    estimate_of_mean,
    randomisation_p,
)
from ltr.errors import InputError


def mean_over_sets(
    results: Sequence[GroupResult],
    groups: Groups,
    pairs: Sequence[tuple[str, str]],
    level: float,
) -> GroupResult:
    """The comparisons of the means over the sets by one metric, without what needs the whole family.

    Args:
        results: of each set.
        groups: the experiments on each set.
        pairs: names of an experiment and of its baseline.
        level: of one test, for what it could detect.
    """
    first = results[0]
    # Of each experiment, its values ``[S, Q]`` on each set.
    values_of: dict[str, list[np.ndarray]] = {row.experiment.name: [] for row in first.rows}
    for experiments in groups.experiments.values():
        for name, values in values_by_experiment(experiments, first.metric).items():
            values_of[name].append(values)
    rows = []
    for row in first.rows:
        on_sets = values_of[row.experiment.name]
        by_seed = np.mean([values.mean(axis=1) for values in on_sets], axis=0)
        rows.append(
            Row(
                experiment=row.experiment,
                mean=estimate_of_mean(on_sets),
                deviation=stdev(by_seed.tolist()) if len(by_seed) > 1 else None,
                start=None,
                ceiling=None,
                seconds=row.seconds,
            )
        )
    comparisons = []
    for name, base in pairs:
        comparisons.append(
            _comparison_over_sets(name, base, values_of[name], values_of[base], level, first)
        )
    notes = [note for result in results for note in result.notes]
    conventions = {result.convention for result in results}
    return GroupResult(
        metric=first.metric,
        convention="; ".join(sorted(conventions)),
        n_queries=sum(result.n_queries for result in results),
        rows=rows,
        comparisons=comparisons,
        notes=list(dict.fromkeys(notes)),
        lower_is_better=first.lower_is_better,
    )


def _comparison_over_sets(
    name: str,
    base: str,
    values: Sequence[np.ndarray],
    base_values: Sequence[np.ndarray],
    level: float,
    first: GroupResult,
) -> Comparison:
    r"""An experiment against a baseline by their means over the sets.

    The randomisation test flips the signs of the queries, each weighted as in the mean,
    :math:`d_{kq} / (K Q_k)`. The effect is the mean difference over the root of the mean variance
    within a set.
    """
    by_query = []
    for on_set, base_on_set in zip(values, base_values, strict=True):
        by_query.append(differences_by_query(on_set, base_on_set))
    weighted = [differences / (len(values) * len(differences)) for differences in by_query]
    sign = -1 if first.lower_is_better else 1  # above 0 is better, whatever the metric
    gains = sign * np.array([differences.mean() for differences in by_query])
    variances = [differences.var(ddof=1) for differences in by_query]
    return uncorrected_comparison(
        name,
        base,
        estimate_of_mean(values, base_values),
        randomisation_p(np.concatenate(weighted)),
        np.where(abs(gains) < ROUNDING, 0.0, gains),
        deviation=math.sqrt(np.mean(variances)),
        has_several_seeds=min(len(values[0]), len(base_values[0])) > 1,
        level=level,
        metric=first.metric,
    )


def check_weights(groups: Groups) -> None:
    """Check that each run was tested by the same weights on all splits."""
    for experiments in groups.experiments.values():
        for experiment, experiment_there in zip(groups.first, experiments, strict=True):
            for run, run_there in zip(experiment.runs, experiment_there.runs, strict=True):
                weights = tested_weights(run)
                weights_there = tested_weights(run_there)
                if weights != weights_there:
                    raise InputError(
                        f"{run.folder} must have been tested by the same weights on all splits, and was by {weights} on {run.split} and by {weights_there} on {run_there.split}; test it again: ltr test {run.folder} --split {run.split} {run_there.split}"
                    )


def changes_of_means(groups: Groups, metric: str) -> dict[str, dict[str, Estimate]]:
    """Of each split but the first, by the name of an experiment: how its mean changes from the first
    split to this one.
    """
    queries = queries_with_values(groups.first, metric)
    values = values_by_experiment(groups.first, metric)
    _, *other_splits = groups.experiments
    changes: dict[str, dict[str, Estimate]] = {}
    for split in other_splits:
        experiments = groups.experiments[split]
        queries_there = queries_with_values(experiments, metric)
        changes[split] = {}
        for name, values_there in values_by_experiment(experiments, metric).items():
            changes[split][name] = estimate_of_change(
                values[name], values_there, queries, queries_there
            )
    return changes
