"""The comparison of experiments by their means over several data sets.

Letters of shapes: S seeds, Q queries of a set.
"""

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np

from ltr.compare.group_result import (
    Comparison,
    ExperimentResult,
    GroupResult,
    uncorrected_comparison,
    values_by_experiment,
)
from ltr.compare.looked_at import look_at
from ltr.compare.looks import Look
from ltr.compare.query_groups import Groups
from ltr.compare.statistics import (
    OFF_BY,
    ROUNDING,
    differences_by_query,
    estimate_over_sets,
    randomisation_p,
)


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
            ExperimentResult(
                experiment=row.experiment,
                estimate=estimate_over_sets(on_sets),
                deviation=stdev(by_seed.tolist()) if len(by_seed) > 1 else None,
                start=None,
                ceiling=None,
                seconds=row.seconds,
            )
        )
    comparisons = []
    named = {row.experiment.name: row.experiment for row in first.rows}
    for name, base in pairs:
        comparisons.append(
            _comparison_over_sets(
                name,
                base,
                values_of[name],
                values_of[base],
                level,
                first.metric,
                first.lower_is_better,
                look_at(named[name], named[base]),
            )
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
        level=level,
        lower_is_better=first.lower_is_better,
    )


def _comparison_over_sets(
    name: str,
    base: str,
    values: Sequence[np.ndarray],
    base_values: Sequence[np.ndarray],
    level: float,
    metric: str,
    lower_is_better: bool,
    look: Look | None,
) -> Comparison:
    r"""An experiment against a baseline by their means over the sets.

    The randomisation test flips the signs of the queries, each weighted as in the mean,
    :math:`d_{kq} / (K Q_k)`. The effect is the mean difference over the root of the mean variance
    within a set.
    """
    by_query = []
    for on_set, base_on_set in zip(values, base_values, strict=True):
        by_query.append(differences_by_query(on_set, base_on_set))
    weighted = np.concatenate(
        [differences / (len(values) * len(differences)) for differences in by_query]
    )
    sign = -1 if lower_is_better else 1  # above 0 is better, whatever the metric
    gains = sign * np.array([differences.mean() for differences in by_query])
    variances = [differences.var(ddof=1) for differences in by_query]
    return uncorrected_comparison(
        name,
        base,
        estimate_over_sets(values, base_values),
        randomisation_p(weighted, off_by=OFF_BY / len(weighted)),
        np.where(abs(gains) < ROUNDING, 0.0, gains),
        query_deviation=math.sqrt(np.mean(variances)),
        level=level,
        metric=metric,
        look=look,
    )
