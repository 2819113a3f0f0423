"""A comparison as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ltr import __version__
from ltr.compare import figures
from ltr.compare.comparison import Compared, Comparison
from ltr.compare.documents import Ranking, TopDocument, collection_of, text_of
from ltr.compare.runs import Experiment
from ltr.compare.statistics import gaps
from ltr.compare.tables import Table
from ltr.run.folder import RunFolder

# shown of a comparison, of a query, of the precision
QUERIES = 10
DOCUMENTS = 5
RANKS = 20


class Side(NamedTuple):
    """What one experiment ranks for a query."""

    name: str
    value: float
    documents: list[TopDocument]


@dataclass(frozen=True)
class Query:
    """A query on which two experiments differ."""

    text: str
    difference: float
    gain: float
    sides: list[Side]


def page(
    made: Sequence[Experiment],
    found: Sequence[Compared],
    tables: Sequence[Table],
    notes: Sequence[str],
) -> str:
    """The tables, sortable; the metric over training, the differences by query, the precision at
    each rank; and the queries on which two experiments differ most, with the documents that the
    first run of each puts on top.

    It is one file, and asks for nothing from elsewhere. All texts are escaped.
    """
    rankings = _rankings(made)
    by_name = {one.name: one for one in made}
    drawn = []
    parts = []
    for one in found:
        curve = figures.over_training(made, one.metric)
        if curve is not None:
            drawn.append(
                (
                    f"{one.metric} on dev over training, by seed; step 0 is before training",
                    Markup(curve),
                )
            )
        for each in one.comparisons:
            queries, by_query = _by_query(by_name[each.name], by_name[each.baseline], one.metric)
            caption = (
                f"{one.metric} by query: {each.name} minus {each.baseline}, means over the seeds"
            )
            drawn.append(
                (
                    caption,
                    Markup(figures.differences(by_query, one.metric, each.name, each.baseline)),
                )
            )
            if rankings:
                parts.append(_differing(each, one, queries, by_query, by_name, rankings))
    if rankings:
        by_rank = {name: ranking.precision(RANKS) for name, ranking in rankings.items()}
        drawn.append(
            (
                "Precision at each rank, first seed of each experiment",
                Markup(figures.precision(by_rank)),
            )
        )
    environment = Environment(
        loader=PackageLoader("ltr.compare", "."), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html").render(
        title=f"{len(made)} experiments by {', '.join(one.metric for one in found)}",
        made=f"ltr {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        tables=tables,
        notes=notes,
        figures=drawn,
        parts=parts,
    )


def _rankings(made: Sequence[Experiment]) -> dict[str, Ranking]:
    """The first run of each experiment; none where one lacks its run file, or the texts are gone."""
    runs = {one.name: one.runs[0] for one in made}
    collection = collection_of(next(iter(runs.values())))
    if collection is None or not all(
        RunFolder(run.folder).ranking.is_file() for run in runs.values()
    ):
        return {}
    return {name: Ranking(run, collection) for name, run in runs.items()}


def _by_query(one: Experiment, base: Experiment, metric: str) -> tuple[list[str], np.ndarray]:
    """Queries that both have a value of, and the differences of their means over the seeds."""
    queries = list(one.runs[0].values[metric])
    by_query = gaps(one.values(metric, queries), base.values(metric, queries))
    there = np.isfinite(by_query)
    return [query for query, known in zip(queries, there, strict=True) if known], by_query[there]


def _differing(
    one: Comparison,
    of: Compared,
    queries: list[str],
    by_query: np.ndarray,
    made: dict[str, Experiment],
    rankings: dict[str, Ranking],
) -> tuple[str, list[Query]]:
    """The queries of a comparison that differ most, under their title."""
    order = np.argsort(-abs(by_query), kind="stable")[:QUERIES]
    sign = -1.0 if of.lower_is_better else 1.0
    shown = []
    for at in (int(place) for place in order if by_query[place] != 0):
        query = queries[at]
        difference = float(by_query[at])
        sides = [
            Side(
                name,
                float(made[name].values(of.metric, [query]).mean()),
                rankings[name].top(query, DOCUMENTS),
            )
            for name in (one.name, one.baseline)
        ]
        text = text_of(rankings[one.name].collection.queries, query, letters=300)
        shown.append(Query(f"{query}: {text}", difference, sign * difference, sides))
    return f"Where {one.name} and {one.baseline} differ most in {of.metric}", shown
