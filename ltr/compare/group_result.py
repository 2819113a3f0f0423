"""What a comparison finds by one metric in one group of queries: the mean of each experiment, and each
difference from a baseline with its tests.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from ltr.compare.experiment import Experiment, check_alike
from ltr.compare.looked_at import look_at, notes_on_looks
from ltr.compare.looks import Look
from ltr.compare.ranges import infinite_beyond_range, interval_of_difference
from ltr.compare.statistics import (
    ROUNDING,
    Estimate,
    differences_by_query,
    estimate,
    randomisation_p,
)
from ltr.compare.tested_run import Run
from ltr.errors import InputError
from ltr.metrics import MEASURES, bare_name, measure_named

MANY_SEEDS = 10  # fewer may have been added one by one, until p was small
# Seeds on the side that has fewer, and how many times as many the other side has: below the first
# and above the second, the test finds false differences too often (experiments/significance.py).
ENOUGH_SEEDS = 5
UNEVEN = 2


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment by one metric.

    Attributes:
        experiment: the runs; in a result over all sets, those on the first set.
        estimate: the mean over seeds and queries, with what it varies by.
        deviation: of the means of the seeds; None with one seed.
        start: mean on dev before training, None where no run measured it.
        ceiling: the best value that a ranker of its candidates could reach; None where there is no
            limit or it is not known.
        seconds: of training, the mean over the seeds that say it; None where none does.
    """

    experiment: Experiment
    estimate: Estimate
    deviation: float | None
    start: float | None
    ceiling: float | None
    seconds: float | None


@dataclass(frozen=True)
class Comparison:
    """An experiment against a baseline.

    Attributes:
        name, baseline: of the experiments.
        difference: the experiment's mean minus the baseline's.
        p: of ``difference``, over queries and seeds, and over all looks where there is one;
            ``p_models`` where either has one seed only.
        p_models: of the randomisation test over the queries: do these very models differ?
        effect: Cohen's d of the queries, above 0 where the experiment is better: the mean of their
            differences over their deviation; NaN if all queries differ by the same, or none does.
        wins, ties, losses: queries on which the experiment is better, equal, worse, by the means
            over the seeds.
        detectable: the difference that this data shows with a probability of 0.8, at the strictest
            level of Holm's; infinite where so few queries can show none.
        corrected: ``p`` after Holm's correction over the whole family.
        verdict: in words.
        look: at which seeds are compared that ``ltr grid --until_shown`` trains one after the other;
            None: their number was decided before.
    """

    name: str
    baseline: str
    difference: Estimate
    p: float
    p_models: float
    effect: float
    wins: int
    ties: int
    losses: int
    detectable: float
    corrected: float = math.nan
    verdict: str = ""
    look: Look | None = None

    @property
    def has_several_seeds(self) -> bool:
        """Whether both experiments have."""
        return _has_several_seeds(self.difference)

    def level(self, alpha: float) -> float:
        """What ``difference.p`` is held against: of a look, its part of ``alpha``."""
        return alpha if self.look is None else self.look.level(alpha)

    @property
    def confidence(self) -> float:
        """That of an interval of 95 %; of a look, of one which together with those of all other looks
        holds the difference in 95 % of the cases.
        """
        return 1 - self.level(0.05)

    def interval(self, metric: str) -> tuple[float, float]:
        """The 95 % interval of the difference, as far as the metric goes."""
        return interval_of_difference(self.difference, metric, self.confidence)


@dataclass(frozen=True)
class GroupResult:
    """What a comparison has found by one metric in one group of queries, or of the means over the
    groups.

    Attributes:
        metric: its name, as ``nDCG@10``.
        convention: how it is counted, in words.
        n_queries: those that have a value.
        rows: one for each experiment.
        comparisons: each experiment against each baseline.
        notes: what must stand beside the numbers.
        level: of one comparison, the strictest of the family.
        lower_is_better: whether the metric counts what is wrong.
    """

    metric: str
    convention: str
    n_queries: int
    rows: list[ExperimentResult]
    comparisons: list[Comparison]
    notes: list[str]
    level: float
    lower_is_better: bool


def group_result(
    metric: str,
    experiments: Sequence[Experiment],
    pairs: Sequence[tuple[str, str]] = (),
    level: float = 0.05,
) -> GroupResult:
    """The comparisons by one metric in one group, without what needs the whole family: verdicts and
    corrected p values.

    Args:
        metric: its name.
        experiments: the experiments.
        pairs: names of an experiment and of its baseline.
        level: of one test, for what it could detect.

    Raises:
        InputError: if the runs can't be compared.
    """
    check_alike(experiments, metric)
    notes = _candidates_note(experiments)
    notes += _precisions_note(experiments)
    named = {experiment.name: experiment for experiment in experiments}
    n_seeds = {experiment.name: len(experiment.runs) for experiment in experiments}
    notes += _uneven_seeds_note([(n_seeds[name], n_seeds[base]) for name, base in pairs])
    looks = {(name, base): look_at(named[name], named[base]) for name, base in pairs}
    without_look = [(name, base) for name, base in pairs if looks[name, base] is None]
    notes += _few_seeds_note([min(n_seeds[name], n_seeds[base]) for name, base in without_look])
    notes += notes_on_looks([(named[name], named[base]) for name, base in pairs])
    notes += _missing_values_note(experiments, metric)
    values = values_by_experiment(experiments, metric)
    report = experiments[0].runs[0].report
    lower_is_better = metric in report["lower_is_better"]
    rows = [_row(experiment, metric, values[experiment.name]) for experiment in experiments]
    comparisons = []
    for name, base in pairs:
        comparisons.append(
            _comparison_over_queries(
                name, base, values, level, metric, lower_is_better, looks[name, base]
            )
        )
    return GroupResult(
        metric=metric,
        convention=report["conventions"][metric],
        n_queries=next(iter(values.values())).shape[1],
        rows=rows,
        comparisons=comparisons,
        notes=notes,
        level=level,
        lower_is_better=lower_is_better,
    )


def _candidates_note(experiments: Sequence[Experiment]) -> list[str]:
    """A note where the runs ranked different candidates."""
    # The first experiment that ranked some candidates is named with them.
    experiment_of_candidates: dict[tuple[str | None, str], str] = {}
    for experiment in experiments:
        for run in experiment.runs:
            # The report has their name, and among what was evaluated their digest.
            digest = run.report["evaluated"].get("candidates")
            candidates = (digest, _candidates_in_words(run))
            experiment_of_candidates.setdefault(candidates, experiment.name)
    if len(experiment_of_candidates) == 1:
        return []
    said = set()
    ranked = []
    for (_, words), name in experiment_of_candidates.items():
        ranked.append(f"{name}: {words}{', of other content' if words in said else ''}")
        said.add(words)
    return [f"the runs rank other candidates, so whole systems are compared ({'; '.join(ranked)})"]


def _precisions_note(experiments: Sequence[Experiment]) -> list[str]:
    """A note where experiments were trained in different precisions."""
    experiments_of_precision: dict[str, list[str]] = {}
    for experiment in experiments:
        config = experiment.runs[0].config  # seeds of one experiment share a precision
        # A plugin may have said another one.
        if config and not config["trainer"].get("plugins"):
            names = experiments_of_precision.setdefault(config["trainer"]["precision"], [])
            names.append(experiment.name)
    if len(experiments_of_precision) < 2:
        return []
    trained = [
        f"{', '.join(names)}: {precision}" for precision, names in experiments_of_precision.items()
    ]
    return [f"the experiments were trained in different precisions ({'; '.join(trained)})"]


def _candidates_in_words(run: Run) -> str:
    """What a run ranked, as its options say: ``bm25, 50 deep``, ``corpus, 100 deep, index Flat``."""
    words = run.report.get("candidates", "its own")
    if "bm25" in run.report:
        words += f" with {run.report['bm25']}"
    if run.report.get("depth") is not None:
        words += f", {run.report['depth']} deep"
    if "index" in run.report:
        words += f", index {run.report['index']}"
    return words


def _uneven_seeds_note(numbers: Iterable[tuple[int, int]]) -> list[str]:
    """A note where a side of a comparison has fewer than five seeds and the other more than twice
    as many. With a single seed the test over queries is taken, which needs no others.
    """
    uneven = set()
    for pair in numbers:
        fewer, more = sorted(pair)
        if 1 < fewer < ENOUGH_SEEDS and more > UNEVEN * fewer:
            uneven.add(f"{fewer} and {more}")
    if not uneven:
        return []
    return [
        f"{', '.join(sorted(uneven))} seeds are compared: false differences are then likelier than the level says; train as many of each"
    ]


def _missing_values_note(experiments: Sequence[Experiment], metric: str) -> list[str]:
    """A note where a query has a value in some runs only, which tell means of other queries."""
    _, has_value = _queries_and_values(experiments, metric)
    n_missing = int((has_value.any(axis=0) & ~has_value.all(axis=0)).sum())
    if not n_missing:
        return []
    return [
        f"{n_missing} of {has_value.shape[1]} queries have a value of {metric} in some runs and none in others, and are left out of all; the runs were tested by other versions of ltr, or rank other documents"
    ]


def _few_seeds_note(numbers: Iterable[int]) -> list[str]:
    """A note where seeds are few, and so may be added: nobody knows who has looked before."""
    if not any(1 < number < MANY_SEEDS for number in numbers):
        return []
    return [
        "p and the verdicts hold for a number of seeds that was decided before the first look: who looks after each added seed finds false differences more often than the level says"
    ]


def values_by_experiment(experiments: Sequence[Experiment], metric: str) -> dict[str, np.ndarray]:
    """The values ``[S, Q]`` of each experiment, of the queries that have one in every run.

    Raises:
        InputError: if there are fewer than two.
    """
    queries = queries_with_values(experiments, metric)
    if len(queries) < 2:
        is_known = bare_name(metric) in MEASURES
        to_find = measure_named(metric).to_find if is_known else ""
        needs = f"; it needs queries with {to_find}" if to_find else ""
        raise InputError(
            f"two queries or more must have a value of {metric}, got {len(queries)}{needs}"
        )
    return {experiment.name: experiment.values(metric, queries) for experiment in experiments}


def queries_with_values(experiments: Sequence[Experiment], metric: str) -> list[str]:
    """The queries that have a value in every run."""
    queries, has_value = _queries_and_values(experiments, metric)
    in_every_run: np.ndarray = np.all(has_value, axis=0)
    return [query for query, is_kept in zip(queries, in_every_run, strict=True) if is_kept]


def _queries_and_values(
    experiments: Sequence[Experiment], metric: str
) -> tuple[list[str], np.ndarray]:
    """The queries, and ``[R, Q]`` bool: whether each run has a value of them."""
    queries = experiments[0].queries(metric)
    values = np.concatenate([experiment.values(metric, queries) for experiment in experiments])
    return queries, np.isfinite(values)


def _comparison_over_queries(
    name: str,
    base: str,
    values: Mapping[str, np.ndarray],
    level: float,
    metric: str,
    lower_is_better: bool,
    look: Look | None,
) -> Comparison:
    by_query = differences_by_query(values[name], values[base])
    gains = -by_query if lower_is_better else by_query  # above 0 is better, whatever the metric
    return uncorrected_comparison(
        name,
        base,
        estimate(values[name], values[base]),
        randomisation_p(by_query),
        gains,
        query_deviation=float(gains.std(ddof=1)),
        level=level,
        metric=metric,
        look=look,
    )


def uncorrected_comparison(
    name: str,
    base: str,
    difference: Estimate,
    p_models: float,
    gains: np.ndarray,
    *,
    query_deviation: float,
    level: float,
    metric: str,
    look: Look | None,
) -> Comparison:
    """A comparison without what needs the whole family.

    Args:
        name, base: of the experiments.
        difference: of their means.
        p_models: of the randomisation test over the queries.
        gains: by query or by set, above 0 where the experiment is better.
        query_deviation: of the differences over queries, that the effect is relative to.
        level: the strictest of the family.
        metric: of which no two values differ by more than its range.
        look: of :func:`ltr.compare.looked_at.look_at`.
    """
    effect = math.nan
    if query_deviation > ROUNDING:
        effect = float(gains.mean()) / query_deviation
    p = p_models
    if look is not None:
        difference = look.cautious(difference)
        level = look.level(level)
        p = look.repeated_p(difference.p)
    elif _has_several_seeds(difference):
        p = difference.p
    return Comparison(
        name=name,
        baseline=base,
        difference=difference,
        p=p,
        p_models=p_models,
        effect=effect,
        wins=int((gains > 0).sum()),
        ties=int((gains == 0).sum()),
        losses=int((gains < 0).sum()),
        detectable=infinite_beyond_range(difference.detectable(level), metric),
        look=look,
    )


def _has_several_seeds(difference: Estimate) -> bool:
    """Whether both rankers of a difference have: one of a single seed adds no number of seeds."""
    return len(difference.n_seeds) == 2


def _row(experiment: Experiment, metric: str, values: np.ndarray) -> ExperimentResult:
    deviation = None
    if len(experiment.runs) > 1:
        deviation = stdev(values.mean(axis=1).tolist())
    return ExperimentResult(
        experiment=experiment,
        estimate=estimate(values),
        deviation=deviation,
        start=_mean_or_none(experiment.starts(metric)),
        ceiling=_ceiling(experiment, metric),
        seconds=_mean_or_none(experiment.training_seconds()),
    )


def _ceiling(experiment: Experiment, metric: str) -> float | None:
    """What all runs of an experiment say; None if they differ, or if it is 1, which is no limit."""
    ceilings = {run.report.get("ceiling", {}).get(metric) for run in experiment.runs}
    if len(ceilings) > 1:
        return None
    ceiling = ceilings.pop()
    return ceiling if ceiling is not None and ceiling < 1 else None


def _mean_or_none(numbers: Sequence[float]) -> float | None:
    return mean(numbers) if numbers else None
