"""A comparison as one self-contained HTML page."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from ltr.compare import figures
from ltr.compare.comparison import MetricResult
from ltr.compare.documents import LETTERS, Ranking, TopDocument, collection_of, text_of
from ltr.compare.experiment import Experiment
from ltr.compare.group_result import GroupResult
from ltr.compare.html import rendered
from ltr.compare.statistics import differences_by_query
from ltr.compare.tables import Table
from ltr.metrics import MEASURES, bare_name, measure_named

log = logging.getLogger(__name__)

QUERIES = 10  # shown of a comparison
DOCUMENTS = 5  # shown of a query
RANKS = 20  # of the figure of the precision


class Side(NamedTuple):
    """What one experiment ranks for a query."""

    name: str
    value: float
    documents: list[TopDocument]


@dataclass(frozen=True)
class DifferingQuery:
    """A query on which two experiments differ.

    Attributes:
        text: its id and text.
        difference: of the metric, the experiment minus the baseline.
        gain: the difference, above 0 where the experiment is better.
        sides: the experiment and the baseline.
    """

    text: str
    difference: float
    gain: float
    sides: list[Side]


def page(results: Sequence[MetricResult], tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The tables, sortable. Of one group also the metric over training, the differences by query, the
    precision at each rank, and the queries on which two experiments differ most, with the documents
    that the first run of each puts on top.

    It is one file, and asks for nothing from elsewhere. All texts are escaped.

    Args:
        results: of the comparison.
        tables, notes: what they say.
    """
    first = results[0]
    experiments = [row.experiment for row in first.main.rows]
    drawings: dict[str, Markup] = {}
    differing: dict[str, list[DifferingQuery]] = {}
    if first.over_sets is not None:
        title = f"{len(experiments)} experiments on {len(first.groups)} sets"
    elif first.changes:
        title = f"{len(experiments)} experiments on {', '.join(first.groups)}"
    else:
        metrics = ", ".join(result.main.metric for result in results)
        title = f"{len(experiments)} experiments by {metrics}"
        on_group = [result.main for result in results]
        rankings = _rankings(experiments)
        drawings = _drawings(experiments, on_group, rankings)
        differing = _differing(experiments, on_group, rankings)
    return rendered(
        "ltr.compare",
        "page.html",
        title=title,
        tables=tables,
        notes=notes,
        drawings=drawings,
        differing=differing,
    )


def _drawings(
    experiments: Sequence[Experiment],
    results: Sequence[GroupResult],
    rankings: Mapping[str, Ranking],
) -> dict[str, Markup]:
    """The figures of one group, by their captions."""
    experiment_of = {experiment.name: experiment for experiment in experiments}
    number_of = {experiment.name: number for number, experiment in enumerate(experiments)}
    drawings = {}
    for result in results:
        metric = result.metric
        by_step = figures.over_training(experiments, metric)
        if by_step is not None:
            caption = f"{metric} on dev over training, by seed; step 0 is before training"
            drawings[caption] = Markup(by_step)
        by_seconds = figures.over_training(experiments, metric, by="seconds")
        if by_seconds is not None:
            caption = f"{metric} on dev by seconds of training, refreshes of negatives among them and validations not"
            drawings[caption] = Markup(by_seconds)
        for comparison in result.comparisons:
            name = comparison.name
            base = comparison.baseline
            difference_of_query = _differences(experiment_of[name], experiment_of[base], metric)
            caption = f"{metric} by query: {name} minus {base}, means over the seeds"
            values = np.array(list(difference_of_query.values()))
            figure = figures.differences(values, metric, name, base, number_of[name])
            drawings[caption] = Markup(figure)
    if rankings:
        metric = results[0].metric
        level = measure_named(metric).level if bare_name(metric) in MEASURES else None
        by_rank = {name: ranking.precision(RANKS, level) for name, ranking in rankings.items()}
        caption = "Precision at each rank, first seed of each experiment"
        if level is not None:
            caption += f", of documents of grade {level} and above"
        drawings[caption] = Markup(figures.precision(by_rank))
    return drawings


def _differing(
    experiments: Sequence[Experiment],
    results: Sequence[GroupResult],
    rankings: Mapping[str, Ranking],
) -> dict[str, list[DifferingQuery]]:
    """The queries on which two experiments differ most, by the titles of their sections; none
    without rankings.
    """
    if not rankings:
        return {}
    experiment_of = {experiment.name: experiment for experiment in experiments}
    differing = {}
    for result in results:
        for comparison in result.comparisons:
            pair = (experiment_of[comparison.name], experiment_of[comparison.baseline])
            queries = _most_differing(result, pair, rankings)
            if queries:
                title = f"Where {comparison.name} and {comparison.baseline} differ most in {result.metric}"
                differing[title] = queries
    return differing


def _rankings(experiments: Sequence[Experiment]) -> dict[str, Ranking]:
    """What the first run of each experiment ranks, by experiment; empty where one lacks its run
    file, or the texts are gone, and a warning says which.
    """
    collection = collection_of(experiments[0].runs[0])
    if collection is None:
        return {}
    rankings = {}
    for experiment in experiments:
        run = experiment.runs[0]
        file = run.place.test_run
        if not file.is_file():
            log.warning(
                "documents are not shown: there is no %s; a cross-validation has none of its own",
                file,
            )
            return {}
        rankings[experiment.name] = Ranking(run, collection)
    return rankings


def _differences(experiment: Experiment, base: Experiment, metric: str) -> dict[str, float]:
    """By query, the difference of the means over the seeds, where both have a value."""
    queries = experiment.queries(metric)
    differences = differences_by_query(
        experiment.values(metric, queries), base.values(metric, queries)
    )
    difference_of_query = {}
    for query, difference in zip(queries, differences.tolist(), strict=True):
        if np.isfinite(difference):
            difference_of_query[query] = difference
    return difference_of_query


def _most_differing(
    result: GroupResult,
    pair: tuple[Experiment, Experiment],
    rankings: Mapping[str, Ranking],
) -> list[DifferingQuery]:
    """The queries on which an experiment and its baseline differ most, the largest difference
    first.
    """
    difference_of_query = _differences(*pair, result.metric)
    largest_first = sorted(difference_of_query, key=lambda query: -abs(difference_of_query[query]))
    most_differing = []
    for query in largest_first[:QUERIES]:
        difference = difference_of_query[query]
        if difference == 0:
            break  # nor do those that follow differ
        sides = []
        for experiment in pair:
            value = float(experiment.values(result.metric, [query]).mean())
            top = rankings[experiment.name].top(query, DOCUMENTS)
            sides.append(Side(experiment.name, value, top))
        texts = rankings[pair[0].name].collection.queries
        text = f"{query}: {text_of(texts, query, LETTERS)}"
        gain = -difference if result.lower_is_better else difference
        most_differing.append(DifferingQuery(text, difference, gain, sides))
    return most_differing
