"""A comparison as one self-contained HTML page."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ltr.compare import figures
from ltr.compare.comparison import MetricResult
from ltr.compare.documents import Ranking, collection_of
from ltr.compare.experiment import Experiment
from ltr.compare.explorer import differences_of_queries, explorer
from ltr.compare.group_result import GroupResult
from ltr.compare.html import rendered
from ltr.compare.tables import Table
from ltr.metrics import MEASURES, bare_name, measure_named

log = logging.getLogger(__name__)

RANKS = 20  # of the figure of the precision


def page(results: Sequence[MetricResult], tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The tables, sortable. Of one group also the metric over training, the differences by query, the
    precision at each rank, and the queries on which two experiments differ, with the documents that
    the first run of each puts on top.

    It is one file, and asks for nothing from elsewhere. All texts are escaped.
    """
    first = results[0]
    experiments = [row.experiment for row in first.main.rows]
    drawings: dict[str, Markup] = {}
    explored: Markup | None = None
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
        explored = _json_of(explorer(experiments, on_group, rankings))
    return rendered(
        "ltr.compare",
        "page.html",
        title=title,
        tables=tables,
        notes=notes,
        drawings=drawings,
        explored=explored,
    )


def _json_of(explored: dict[str, Any] | None) -> Markup | None:
    """As a script element of a page holds it, which ends at the first ``</script>``."""
    if explored is None:
        return None
    text = json.dumps(explored, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


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
            difference_of_query = differences_of_queries(
                experiment_of[name], experiment_of[base], metric
            )
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
        file = run.ranking
        if not file.is_file():
            log.warning(
                "documents are not shown: there is no %s; a cross-validation has none of its own",
                file,
            )
            return {}
        ranking = Ranking(run, collection)
        if run.file is not None and not ranking.has_only_known_documents():
            log.warning(
                "documents are not shown: %s ranks some that are not in %s",
                file,
                collection.source,
            )
            return {}
        rankings[experiment.name] = ranking
    return rankings
