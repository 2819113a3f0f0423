"""What a page shows of two experiments query by query: both rankings side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ltr.compare.documents import Ranking, row_of, text_of
from ltr.compare.experiment import Experiment
from ltr.compare.group_result import Comparison, GroupResult
from ltr.compare.statistics import differences_by_query

QUERIES = 1000  # of a comparison, those that differ most: what a page can hold
DOCUMENTS = 5  # of a ranking
LETTERS = 200  # of a text


def explorer(
    experiments: Sequence[Experiment],
    results: Sequence[GroupResult],
    rankings: Mapping[str, Ranking],
) -> dict[str, Any] | None:
    """The queries on which experiments differ, as JSON says it, each text once; None where none
    differs, or nothing is known of what was ranked.

    * ``documents``, ``queries``: ids and beginnings of texts;
    * ``grades``: by query, of its judged documents that are shown, pairs of document and grade;
    * ``rankings``: by experiment and query, ``top``, pairs of document and score, and ``others``,
      pairs of document and rank: of what the other experiments have on top;
    * ``comparisons``: of each the queries, those that differ most first, with the difference and the
      values of both.

    Queries and documents are named by their places.

    Args:
        experiments: of the first run of each are the rankings; values are means over the seeds.
        results: their comparisons, by metric.
        rankings: by experiment; empty for none.
    """
    if not rankings:
        return None
    experiment_of = {experiment.name: experiment for experiment in experiments}
    query_places: dict[str, int] = {}
    comparisons = []
    for result in results:
        for comparison in result.comparisons:
            pair = (experiment_of[comparison.name], experiment_of[comparison.baseline])
            shown = _compared(comparison, pair, result, query_places)
            if shown["rows"]:
                comparisons.append(shown)
    if not comparisons:
        return None
    doc_places: dict[str, int] = {}
    tops = {name: _tops(rankings[name], query_places, doc_places) for name in rankings}
    collection = next(iter(rankings.values())).collection
    return {
        "documents": [[doc, text_of(collection.corpus, doc, LETTERS)] for doc in doc_places],
        "queries": [[name, text_of(collection.queries, name, LETTERS)] for name in query_places],
        "grades": _grades(next(iter(rankings.values())), query_places, doc_places, tops),
        "rankings": {
            name: _with_others(ranking, query_places, doc_places, tops, name)
            for name, ranking in rankings.items()
        },
        "comparisons": comparisons,
    }


def differences_of_queries(
    experiment: Experiment, base: Experiment, metric: str
) -> dict[str, float]:
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


def _compared(
    comparison: Comparison,
    pair: tuple[Experiment, Experiment],
    result: GroupResult,
    query_places: dict[str, int],
) -> dict[str, Any]:
    """A comparison with its queries, to which ``query_places`` gives places."""
    differences = differences_of_queries(*pair, result.metric)
    differing = [query for query, difference in differences.items() if difference != 0]
    differing.sort(key=lambda query: -abs(differences[query]))
    shown = differing[:QUERIES]
    values = [each.values(result.metric, shown).mean(axis=0) for each in pair] if shown else []
    rows = []
    for number, query in enumerate(shown):
        place = query_places.setdefault(query, len(query_places))
        sides = [float(of_side[number]) for of_side in values]
        rows.append([place, differences[query], *sides])
    return {
        "metric": result.metric,
        "sides": [comparison.name, comparison.baseline],
        "lower_is_better": result.lower_is_better,
        "differing": len(differing),
        "compared": len(differences),
        "rows": rows,
    }


Top = list[tuple[int, float]]  # documents by place, and their scores


def _tops(
    ranking: Ranking, query_places: Mapping[str, int], doc_places: dict[str, int]
) -> list[Top]:
    """The first documents of each query, to which ``doc_places`` gives places."""
    tops = []
    for query in query_places:
        top = []
        for doc, score in ranking.documents.get(query, [])[:DOCUMENTS]:
            top.append((doc_places.setdefault(doc, len(doc_places)), float(f"{score:.7g}")))
        tops.append(top)
    return tops


def _with_others(
    ranking: Ranking,
    query_places: Mapping[str, int],
    doc_places: Mapping[str, int],
    tops: Mapping[str, Sequence[Top]],
    name: str,
) -> list[dict[str, Any]]:
    """The first documents of each query, and the ranks of those that others have there."""
    rows = []
    for query, number in query_places.items():
        top = tops[name][number]
        wanted = {doc for of_name in tops.values() for doc, _ in of_name[number]}
        wanted -= {doc for doc, _ in top}
        others = []
        for rank, (doc, _) in enumerate(ranking.documents.get(query, []), start=1):
            if doc_places.get(doc) in wanted:
                others.append([doc_places[doc], rank])
        rows.append({"top": top, "others": others})
    return rows


def _grades(
    ranking: Ranking,
    query_places: Mapping[str, int],
    doc_places: Mapping[str, int],
    tops: Mapping[str, Sequence[Top]],
) -> list[list[tuple[int, float]]]:
    """By query, the grades of the judged documents that are shown."""
    collection = ranking.collection
    names = list(doc_places)
    rows = []
    for query, number in query_places.items():
        grade_of = ranking.grades(query)
        grades = []
        for doc in sorted({doc for of_name in tops.values() for doc, _ in of_name[number]}):
            grade = grade_of.get(row_of(collection.corpus, names[doc]))
            if grade is not None:
                grades.append((doc, grade))
        rows.append(grades)
    return rows
