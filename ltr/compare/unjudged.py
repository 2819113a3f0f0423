"""Documents that nobody judged: whether a verdict hangs on what they are."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, get_args

import numpy as np

from ltr.compare.comparison import compare
from ltr.compare.experiment import Experiment
from ltr.compare.named_judgements import Judgements
from ltr.compare.query_groups import Groups
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import (
    RankedFile,
    are_pairs_of,
    measured_experiments,
)
from ltr.compare.tables import Table
from ltr.compare.unjudged_bounds import ABSENT, RankedQuery, difference_bounds
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.metrics import RankingMetric

Unjudged = Literal["irrelevant", "left out", "relevant"]
UNJUDGED: tuple[Unjudged, ...] = get_args(Unjudged)
EACH_ITS_OWN = "each of its own grade"
FIRST = 10  # ranks of which is told how many are not judged


def unjudged_tables(
    rankings: Sequence[RankedFile],
    judgements: Judgements,
    metrics: Sequence[RankingMetric],
    pairs: Sequence[tuple[str, str]],
    alpha: float,
) -> list[Table]:
    """What each comparison says where documents without a judgement are irrelevant, are left out of all
    rankings, or are as relevant as any, and how far it can move where each is what it is; none where
    all are judged.

    Args:
        rankings, judgements, metrics: as they are compared.
        pairs: names of an experiment and of its baseline.
        alpha: the level of each family of tests.
    """
    all_judged = [are_pairs_of(each.lists, judgements.lists).all() for each in rankings]
    if not pairs or all(all_judged):
        return []
    share_of = _shares(rankings, judgements)
    names = [metric.name for metric in metrics]
    cells: dict[tuple[str, str, str], list[str]] = {}
    measured = measured_experiments(rankings, judgements, metrics)
    for unjudged in UNJUDGED:
        experiments = measured_experiments(*treated(rankings, judgements, unjudged), metrics)
        experiments = _of_the_same_queries(experiments, measured)
        groups = Groups("split", {judgements.split: experiments})
        words = _differences_in_words(groups, names, pairs, alpha)
        for name, pair in product(names, pairs):
            cells.setdefault((name, *pair), []).append(words.get((name, *pair), ""))
    bounds = _bounds(rankings, judgements, metrics, pairs, measured)
    rows = []
    for (metric, name, baseline), differences in cells.items():
        shares = f"{share_of[name]:.1%} / {share_of[baseline]:.1%}"
        range_in_words = ""
        if (metric, name, baseline) in bounds:
            low, high = bounds[metric, name, baseline]
            range_in_words = f"{low:+.4f} to {high:+.4f}"
        rows.append([f"{metric}: {name} − {baseline}", shares, *differences, range_in_words])
    title = "documents without a judgement: the differences where all of them are …"
    text_columns = [*UNJUDGED, EACH_ITS_OWN]
    header = ["comparison", f"not judged of the first {FIRST}", *text_columns]
    return [Table(title, header, rows, text_columns)]


def _bounds(
    rankings: Sequence[RankedFile],
    judgements: Judgements,
    metrics: Sequence[RankingMetric],
    pairs: Sequence[tuple[str, str]],
    measured: Sequence[Experiment],
) -> dict[tuple[str, str, str], tuple[float, float]]:
    """By metric and pair the smallest and the largest difference, over the queries that were measured,
    for all grades of documents without a judgement; none for a metric of the list alone.
    """
    by_query = measured[0].runs[0].by_query
    rows_of_name: dict[str, list[int]] = {}
    for row, ranking in enumerate(rankings):
        rows_of_name.setdefault(ranking.name, []).append(row)
    judged = judgements.lists
    largest = float(judged.values.max())
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    query_ids = judgements.query_ids
    for place in track(range(len(query_ids)), "bounding", "queries"):
        judged_docs, judged_grades = judged.of(judged.query_rows[place])
        ranked = [ranking.lists.of(judged.query_rows[place])[0] for ranking in rankings]
        docs = np.unique(np.concatenate([judged_docs, *ranked]))
        grades = np.full(len(docs), np.nan)
        grades[np.searchsorted(docs, judged_docs)] = judged_grades
        ranks = np.full((len(rankings), len(docs)), ABSENT)
        for row, ranked_docs in enumerate(ranked):
            ranks[row, np.searchsorted(docs, ranked_docs)] = 1 + np.arange(len(ranked_docs))
        for metric, (name, baseline) in product(metrics, pairs):
            if math.isnan(by_query[metric.name][query_ids[place]]):
                continue
            query = RankedQuery(
                ranks[rows_of_name[name]], ranks[rows_of_name[baseline]], grades, largest
            )
            bounds = difference_bounds(metric.measure, query)
            if bounds is not None:
                found.setdefault((metric.name, name, baseline), []).append(bounds)
    return {key: tuple(np.mean(of_queries, axis=0)) for key, of_queries in found.items()}


def _of_the_same_queries(
    experiments: Sequence[Experiment], others: Sequence[Experiment]
) -> list[Experiment]:
    """Experiments with values for those queries alone that have one in others."""
    kept = []
    for experiment, other in zip(experiments, others, strict=True):
        runs = []
        for run, other_run in zip(experiment.runs, other.runs, strict=True):
            by_query: dict[str, dict[str, float]] = {}
            for metric, values in run.by_query.items():
                of_other = other_run.by_query[metric]
                by_query[metric] = {
                    query: math.nan if math.isnan(of_other[query]) else value
                    for query, value in values.items()
                }
            runs.append(replace(run, by_query=by_query))
        kept.append(Experiment(experiment.name, runs))
    return kept


def _differences_in_words(
    groups: Groups, metrics: Sequence[str], pairs: Sequence[tuple[str, str]], alpha: float
) -> dict[tuple[str, str, str], str]:
    """By metric and pair the difference and its verdict, all one family; a metric of which too few
    queries have a value is left out.
    """
    try:
        results = compare(groups, metrics, pairs, alpha)
    except InputError:
        if len(metrics) == 1:
            return {}
        of_all: dict[tuple[str, str, str], str] = {}
        for metric in metrics:
            of_all |= _differences_in_words(groups, [metric], pairs, alpha / len(metrics))
        return of_all
    words = {}
    for result in results:
        for found in result.main.comparisons:
            verdict, _, _ = found.verdict.partition(" (")
            told = f"{found.difference.mean:+.4f} {verdict.partition(';')[0]}"
            words[result.main.metric, found.name, found.baseline] = told
    return words


def _shares(rankings: Sequence[RankedFile], judgements: Judgements) -> dict[str, float]:
    """By experiment, the share of documents without a judgement among the first of its lists."""
    judged = RankingMetric(f"Judged@{FIRST}")
    shares: dict[str, list[float]] = {}
    for ranking in rankings:
        (values,) = values_by_query(ranking.lists, judgements.lists, [judged])
        has_documents = np.isin(judgements.lists.query_rows, ranking.lists.query_rows)
        shares.setdefault(ranking.name, []).append(1 - float(values[has_documents].mean()))
    return {name: float(np.mean(of_seeds)) for name, of_seeds in shares.items()}


def treated(
    rankings: Sequence[RankedFile], judgements: Judgements, unjudged: Unjudged
) -> tuple[list[RankedFile], Judgements]:
    """Rankings and judgements with another answer to what a document is that nobody judged.

    Args:
        rankings, judgements: as they are.
        unjudged: ``irrelevant``: as they are; ``left out``: the rankings without these documents;
            ``relevant``: each that some ranking has is judged, with the largest grade that there is.
    """
    judged = judgements.lists
    if unjudged == "irrelevant":
        return list(rankings), judgements
    n_docs = len(judgements.docs.ids)
    kept = []
    absent = []
    for ranking in rankings:
        lists = ranking.lists
        is_judged = are_pairs_of(lists, judged)
        kept.append(replace(ranking, lists=lists.where(is_judged)))
        absent.append(lists.where(~is_judged))
    if unjudged == "left out":
        return kept, judgements
    queries = np.concatenate([lists.query_of_doc for lists in absent])
    docs = np.concatenate([lists.doc_rows for lists in absent])
    pairs = np.unique(queries * n_docs + docs)
    grades = np.full(len(pairs), judged.values.max())
    others = QueryLists.from_rows(pairs // n_docs, pairs % n_docs, grades)
    return list(rankings), judgements.with_documents(others)
