"""Experiments over several data sets: where they differ, and whether their means over the sets do.

Letters of shapes: S seeds, Q queries of a set.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

import numpy as np

from ltr.compare.comparison import (
    Comparison,
    MetricResult,
    Row,
    compare_by,
    comparison_of,
    judged,
    metrics_to_test,
    values_by_experiment,
)
from ltr.compare.runs import Experiment
from ltr.compare.statistics import (
    ROUNDING,
    differences_by_query,
    estimate_of_mean,
    randomisation_p,
)
from ltr.errors import InputError


@dataclass(frozen=True)
class SuiteResult:
    """What a comparison over data sets has found by one metric.

    Attributes:
        of_mean: of the means over the sets. Its wins, ties and losses count sets.
        of_sets: of each set by itself, by its name.
    """

    of_mean: MetricResult
    of_sets: dict[str, MetricResult]


def compare_suite(
    experiments_of_set: Mapping[str, Sequence[Experiment]],
    metrics: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    alpha: float = 0.05,
) -> list[SuiteResult]:
    """Compare experiments with baselines over data sets, by one or several metrics.

    The means over the sets are one family of tests: they answer whether experiments differ. The
    sets by themselves are another one, by Holm over all of them: they answer where.

    Args:
        experiments_of_set: the same experiments on each set, by its name.
        metrics: by default the first one that the first run was measured by.
        pairs: names of an experiment and of its baseline.
        alpha: the level of each family.

    Raises:
        InputError: if the runs can't be compared.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must be above 0 and below 1, got {alpha}", option="alpha")
    metrics = metrics_to_test(next(iter(experiments_of_set.values())), metrics)
    n_means = max(1, len(pairs) * len(metrics))
    n_sets = n_means * len(experiments_of_set)
    means = []
    sets = []
    for metric in metrics:
        values_of_set = {}
        for name, experiments in experiments_of_set.items():
            try:
                sets.append(compare_by(metric, experiments, pairs, level=alpha / n_sets))
                values_of_set[name] = values_by_experiment(experiments, metric)
            except InputError as error:
                raise InputError(f"{name}: {error.message}", option=error.option) from None
        of_metric = sets[-len(experiments_of_set) :]
        means.append(_of_mean(of_metric, values_of_set, pairs, level=alpha / n_means))
    judged_means = judged(means, alpha)
    judged_sets = judged(sets, alpha)
    results = []
    for of_mean in judged_means:
        of_sets = {}
        for name in experiments_of_set:
            of_sets[name] = judged_sets.pop(0)
        results.append(SuiteResult(of_mean, of_sets))
    return results


def _of_mean(
    of_sets: Sequence[MetricResult],
    values_of_set: Mapping[str, Mapping[str, np.ndarray]],
    pairs: Sequence[tuple[str, str]],
    level: float,
) -> MetricResult:
    """The comparisons of the means over the sets, without what needs the whole family."""
    first = of_sets[0]
    conventions = {result.convention for result in of_sets}
    rows = []
    for row in first.rows:
        name = row.experiment.name
        values = [of_experiment[name] for of_experiment in values_of_set.values()]
        by_seed = np.mean([of_set.mean(axis=1) for of_set in values], axis=0)
        rows.append(
            Row(
                experiment=row.experiment,
                mean=estimate_of_mean(values),
                deviation=stdev(by_seed.tolist()) if len(by_seed) > 1 else None,
                start=None,
                ceiling=None,
                seconds=row.seconds,
            )
        )
    comparisons = []
    for name, base in pairs:
        comparisons.append(_comparison_of_means(name, base, values_of_set, level, first))
    notes = [note for result in of_sets for note in result.notes]
    return MetricResult(
        metric=first.metric,
        convention="; ".join(sorted(conventions)),
        n_queries=sum(result.n_queries for result in of_sets),
        rows=rows,
        comparisons=comparisons,
        notes=list(dict.fromkeys(notes)),
        lower_is_better=first.lower_is_better,
    )


def _comparison_of_means(
    name: str,
    base: str,
    values_of_set: Mapping[str, Mapping[str, np.ndarray]],
    level: float,
    first: MetricResult,
) -> Comparison:
    r"""An experiment against a baseline by their means over the sets.

    The randomisation test flips the signs of the queries, each weighted as in the mean,
    :math:`d_{kq} / (K Q_k)`. The effect is the mean difference over the root of the mean variance
    within a set.
    """
    values = [of_experiment[name] for of_experiment in values_of_set.values()]
    base_values = [of_experiment[base] for of_experiment in values_of_set.values()]
    difference = estimate_of_mean(values, base_values)
    by_query = []
    for of_set, base_of_set in zip(values, base_values, strict=True):
        by_query.append(differences_by_query(of_set, base_of_set))
    weighted = [differences / (len(values) * len(differences)) for differences in by_query]
    sign = -1 if first.lower_is_better else 1  # above 0 is better, whatever the metric
    gains = sign * np.array([differences.mean() for differences in by_query])
    variances = [differences.var(ddof=1) for differences in by_query]
    return comparison_of(
        name,
        base,
        difference,
        randomisation_p(np.concatenate(weighted)),
        np.where(abs(gains) < ROUNDING, 0.0, gains),
        deviation=math.sqrt(np.mean(variances)),
        has_seeds=min(len(values[0]), len(base_values[0])) > 1,
        level=level,
        metric=first.metric,
    )
