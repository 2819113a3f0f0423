"""Experiments against a baseline: differences, tests, and what they say in words."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ltr.compare.runs import Experiment, check_alike
from ltr.compare.statistics import Estimate, estimate, gaps, holm, randomisation_p
from ltr.errors import InputError


@dataclass(frozen=True)
class Row:
    """An experiment by one metric.

    Attributes:
        experiment: the runs.
        mean: over seeds and queries, with what it varies by.
        deviation: of the means of the seeds; None with one seed.
        start: mean on dev before training, None where no run measured it.
        ceiling: the best value that a ranker of its candidates could reach; None where there is no
            limit or it is not known.
        seconds: of training, the mean over the seeds; None where no run says it.
    """

    experiment: Experiment
    mean: Estimate
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
        p: over queries and seeds; with one seed of either, that of ``p_models``.
        p_models: of the randomisation test over the queries: do these very models differ?
        effect: Cohen's d of the queries: the mean of their differences over their deviation; NaN if
            none differs.
        wins, ties, losses: queries on which the experiment is better, equal, worse, by the means
            over the seeds.
        detectable: the difference that this data shows with a probability of 0.8, at the level of
            the family's first test.
        has_seeds: whether both have several seeds.
        corrected: ``p`` after Holm's correction over the whole family.
        verdict: in words.
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
    has_seeds: bool
    corrected: float = math.nan
    verdict: str = ""


@dataclass(frozen=True)
class Compared:
    """What a comparison has found.

    Attributes:
        metric: the metric, and how it is counted.
        convention: the same in words.
        n_queries: those that have a value.
        rows: one for each experiment.
        comparisons: each experiment against each baseline, all one family.
        notes: what must stand beside the numbers.
        lower_is_better: whether the metric counts what is wrong.
    """

    metric: str
    convention: str
    n_queries: int
    rows: list[Row]
    comparisons: list[Comparison]
    notes: list[str]
    lower_is_better: bool = False


def compare(
    made: Sequence[Experiment],
    metrics: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] | None = None,
    alpha: float = 0.05,
) -> list[Compared]:
    """Compare experiments with baselines among them, by one or several metrics: all of it is one
    family.

    Args:
        made: the experiments.
        metrics: none: the first one of the first run.
        pairs: names of an experiment and of its baseline; None: each with the first one
            (:func:`against`).
        alpha: the level of the whole family.

    Raises:
        InputError: if the runs can't be compared.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must be above 0 and below 1, got {alpha}", option="alpha")
    asked = list(dict.fromkeys(metrics)) or list(made[0].runs[0].test.get("conventions", {}))[:1]
    if not asked:
        raise InputError(f"{made[0].runs[0].folder} was measured by no metric; test it again")
    pairs = against([one.name for one in made]) if pairs is None else pairs
    level = alpha / max(1, len(pairs) * len(asked))  # of the smallest p of the family
    found = [_by_metric(made, metric, pairs, level) for metric in asked]
    corrected = iter(holm([one.p for by_metric in found for one in by_metric.comparisons]))
    return [
        replace(
            one,
            comparisons=[_judged(each, next(corrected), alpha, one) for each in one.comparisons],
        )
        for one in found
    ]


def against(names: Sequence[str], baselines: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Each experiment with each baseline, no two of them twice; an InputError if a baseline is none
    of them.
    """
    pairs: list[tuple[str, str]] = []
    for base in dict.fromkeys(_named(name, names) for name in baselines) or [names[0]]:
        pairs += [(name, base) for name in names if name != base and (base, name) not in pairs]
    return pairs


def _by_metric(
    made: Sequence[Experiment], metric: str, pairs: Sequence[tuple[str, str]], level: float
) -> Compared:
    notes = check_alike(made, metric)
    first = made[0].runs[0]
    n_seeds = [len(one.runs) for one in made]
    if 1 < min(n_seeds) < 3 < max(n_seeds):
        text = f"{min(n_seeds)} and {max(n_seeds)} seeds are compared: false differences are then likelier than the level says"
        notes = [*notes, f"{text}; train as many of each"]
    queries = [
        q
        for q in first.values[metric]
        if all(math.isfinite(run.values[metric][q]) for one in made for run in one.runs)
    ]
    if len(queries) < 2:
        raise InputError(f"two queries or more must have a {metric}, got {len(queries)}")
    values = {one.name: one.values(metric, queries) for one in made}
    lower_is_better = metric in first.test.get("lower_is_better", ())
    return Compared(
        metric=metric,
        convention=first.test["conventions"][metric],
        n_queries=len(queries),
        rows=[_row(one, metric, values[one.name]) for one in made],
        comparisons=[
            _comparison(name, base, values, level, lower_is_better) for name, base in pairs
        ],
        lower_is_better=lower_is_better,
        notes=notes,
    )


def _comparison(
    name: str, base: str, values: Mapping[str, np.ndarray], level: float, lower_is_better: bool
) -> Comparison:
    difference = estimate(values[name], values[base])
    by_query = gaps(values[name], values[base])
    gains = -by_query if lower_is_better else by_query
    has_seeds = min(len(values[name]), len(values[base])) > 1
    p_models = randomisation_p(by_query)
    deviation = float(gains.std(ddof=1))
    return Comparison(
        name=name,
        baseline=base,
        difference=difference,
        p=difference.p if has_seeds else p_models,
        p_models=p_models,
        effect=float(gains.mean()) / deviation if deviation else math.nan,
        wins=int((gains > 0).sum()),
        ties=int((gains == 0).sum()),
        losses=int((gains < 0).sum()),
        detectable=difference.detectable(level),
        has_seeds=has_seeds,
    )


def _judged(one: Comparison, corrected: float, alpha: float, of: Compared) -> Comparison:
    gain = -one.difference.mean if of.lower_is_better else one.difference.mean
    if one.wins == one.losses == 0:
        verdict = "equal"
    elif corrected <= alpha:
        verdict = "better" if gain > 0 else "worse"
    else:
        verdict = f"not shown (this data could show a difference of {one.detectable:.3f})"
    if not one.has_seeds:
        verdict += "; one seed: of these models alone"
    return replace(one, corrected=corrected, verdict=verdict)


def _row(one: Experiment, metric: str, values: np.ndarray) -> Row:
    starts = one.starts(metric)
    ceilings = {run.test.get("ceiling", {}).get(metric) for run in one.runs}
    ceiling = next(iter(ceilings)) if len(ceilings) == 1 else None
    seconds = [
        run.metrics["fit"]["seconds"] for run in one.runs if "seconds" in run.metrics.get("fit", {})
    ]
    return Row(
        experiment=one,
        mean=estimate(values),
        deviation=statistics.stdev(values.mean(axis=1).tolist()) if len(values) > 1 else None,
        start=statistics.mean(starts) if starts else None,
        ceiling=ceiling if ceiling is not None and ceiling < 1 else None,
        seconds=statistics.mean(seconds) if seconds else None,
    )


def _named(name: str, known: Sequence[str]) -> str:
    """The experiment that is meant: by its name, or by the end of its path."""
    found = [one for one in known if one == name] or [
        one for one in known if f"/{one}".endswith(f"/{name.strip('/')}")
    ]
    found = found or [one for one in known if f"/{name.strip('/')}".endswith(f"/{one}")]
    if len(found) != 1:
        raise InputError(
            f"the baseline must be one of {', '.join(known)}, got {name!r}", option="baseline"
        )
    return found[0]
