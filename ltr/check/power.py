r"""What a split can show: the difference that this many queries, and seeds, can tell from luck.

The machinery is that of ``ltr compare``: :class:`ltr.compare.statistics.Estimate` says what a
difference varies by, and :meth:`~ltr.compare.statistics.Estimate.detectable` which true difference
a test finds with a probability of 0.8, given that the variance is itself an estimate.

Where an experiment was tested with S seeds, its seeds tell the variances of
:math:`x_{sq} = \mu + a_q + b_s + e_{sq}`, and two ways to train that vary alike differ by

.. math:: v = 2\,\mathrm{var}(b_s) / S + 2\,\mathrm{var}(e_{sq}) / (Q S)

Before there is a run, one ranker's values
:math:`x_q` (those of BM25) tell how much queries vary. Of two rankers whose values have this
variance and a correlation :math:`\rho`, the variance of the mean difference over Q queries is

.. math:: v = 2\,(1 - \rho)\, \mathrm{var}(x_q) / Q

With a run beside BM25 both are measured: :math:`v = \mathrm{var}(x_q - y_q) / Q`.

What a threshold of ``ltr calibrate`` would keep follows from the number of dev queries alone, see
:func:`ltr.use.calibration.conformal.coverage_interval`.
"""

import math
from dataclasses import replace

import numpy as np

from ltr.check.judgements import found_by_bm25, sample_of
from ltr.check.section import Section
from ltr.compare.query_values import values_by_query
from ltr.compare.ranges import infinite_beyond_range
from ltr.compare.statistics import PLANNED_SEEDS, Estimate, estimate
from ltr.compare.tables import Table
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists, values_of
from ltr.datamodules import Evaluation
from ltr.metrics import RankingMetric
from ltr.use.calibration.conformal import SHOWN, coverage_interval, queries_needed

ALPHA = 0.05
POWER = 0.8
# Of the values of two rankers: of two that are trained alike, and of two of different kinds.
CORRELATIONS = (0.9, 0.5)
WEAK = 0.1  # a split that shows no smaller difference: severe
FEW_SEEDS = 4  # from which the named differences are up to some five times as large as from many


def ranked_values(lists: QueryLists, judged: QueryLists, metric: RankingMetric) -> np.ndarray:
    """``[Q]`` float64: the metric of the ranking of each query, in the order of ``lists``, whatever
    their scores; NaN for a query that has nothing to find.
    """
    by_place = lists._replace(values=-lists.place_in_list.astype(np.float32))
    (values,) = values_by_query(by_place, judged.of_queries(lists.query_rows), [metric])
    return values


def difference_before_runs(variance: float, n_queries: int, correlation: float) -> Estimate:
    """How the difference of two rankers would vary, of one seed each; see the module.

    Args:
        variance: of a ranker's values over queries.
        n_queries: Q.
        correlation: of the values of the two rankers.
    """
    query_variance = 2 * (1 - correlation) * variance / n_queries
    return Estimate(
        mean=0.0,
        query_variance=query_variance,
        seed_variances=(),
        shared_variances=(),
        n_queries=n_queries,
        n_seeds=(),
    )


def difference_of_seeds(values: np.ndarray) -> Estimate:
    """How the difference of two ways to train varies, where both vary as these seeds do, and no
    query favours one of them.

    Args:
        values: ``[S, Q]`` of one way to train, S at least 2.
    """
    one = estimate(values)
    (seed_variance,) = one.seed_variances
    (shared_variance,) = one.shared_variances
    (n_seeds,) = one.n_seeds
    return Estimate(
        mean=0.0,
        query_variance=2 * shared_variance,  # no query favours either, so only e_sq is left
        seed_variances=(seed_variance, seed_variance),  # of both rankers
        shared_variances=(shared_variance, shared_variance),
        n_queries=one.n_queries,
        n_seeds=(n_seeds, n_seeds),
        alike=True,
    )


def power_section(
    collection: Collection,
    metric_name: str,
    ranked: QueryLists | None = None,
    seed_values: np.ndarray | None = None,
    evaluation: Evaluation | None = None,
) -> Section:
    """The smallest difference that each split can show with a probability of 0.8.

    Args:
        collection: its splits; ``train`` is left out.
        metric_name: what is measured, as ``nDCG@10``.
        ranked: what a run ranks, best first; None for none.
        seed_values: ``[S, Q]``, the test values of runs of S seeds; None where there are fewer than
            two.
        evaluation: which candidates a run ranks, for what a threshold would keep; None: as a run does
            that says nothing of it.
    """
    metric = RankingMetric(metric_name)
    level = metric.measure.level
    to_find = metric.measure.to_find if level is not None else "a relevant document"
    rows = []
    severe = []
    entries: dict[str, object] = {"metric": metric_name, "alpha": ALPHA, "power": POWER}

    def add_row(split: str, what: str, n_queries: int, difference: Estimate) -> float | None:
        """Returns the smallest difference that the row names; None where it names none."""
        smallest = infinite_beyond_range(difference.detectable(ALPHA, POWER), metric_name)
        is_none = math.isinf(smallest)
        rows.append([split, what, f"{n_queries:,}", "none" if is_none else f"{smallest:.3f}"])
        return None if is_none else smallest

    for split, judged in collection.qrels.items():
        if split == "train":
            continue
        n_queries = int((judged.zero_below(level).n_relevant() > 0).sum())
        lists = found_by_bm25(collection, split)
        values = ranked_values(lists, judged, metric)
        known = values[np.isfinite(values)]
        if len(known) < 2 or n_queries < 2:
            severe.append(
                f"{split} can show no difference: two queries at least must have {to_find}, and one that BM25 finds; {n_queries:,} have the former, {len(known):,} both"
            )
            continue
        split_entries: dict[str, object] = {"queries": n_queries, "bm25": float(known.mean())}
        variance = float(known.var(ddof=1))
        smallest_of: dict[float, float | None] = {}
        for correlation in CORRELATIONS:
            what = f"two rankers whose values correlate by {correlation}"
            difference = difference_before_runs(variance, n_queries, correlation)
            smallest_of[correlation] = add_row(split, what, n_queries, difference)
            split_entries[f"correlation_{correlation}"] = smallest_of[correlation]
        smallest = smallest_of[max(CORRELATIONS)]
        if smallest is None or smallest > WEAK:
            what = "any difference" if smallest is None else f"a difference below {smallest:.3f}"
            severe.append(
                f"{split} has {n_queries:,} queries: it can't show {what} in {metric_name}, even of rankers that are much alike"
            )
        measured = None if ranked is None else _against_run(lists, values, ranked, judged, metric)
        if measured is not None:
            difference = measured.planned(n_queries, 1)
            split_entries["run_and_bm25"] = add_row(
                split, "the run and BM25, measured", n_queries, difference
            )
        if seed_values is not None and split == "test":
            n_tested = seed_values.shape[1]
            by_seeds: dict[str, float | None] = {}
            for n_seeds in PLANNED_SEEDS:
                what = f"two ways to train, {n_seeds} seeds each, as these seeds vary"
                difference = difference_of_seeds(seed_values).planned(n_tested, n_seeds)
                by_seeds[str(n_seeds)] = add_row(split, what, n_tested, difference)
            split_entries["seeds"] = by_seeds
        entries[split] = split_entries
    header = ["split", "of", "queries", f"smallest difference in {metric_name}"]
    title = f"shown with a probability of {POWER:g} at level {ALPHA:g}"
    table = Table(title, header, rows, text_columns=["of"])
    lines = []
    if not collection.qrels.keys() - {"train"}:
        lines.append("there is neither dev nor test")
    if rows and seed_values is None:
        lines.append(
            "these are of two models, one seed each; how seeds vary shows once two of an experiment are tested: ltr check RUN"
        )
    if seed_values is not None and len(seed_values) < FEW_SEEDS:
        lines.append(
            f"{len(seed_values)} seeds tell little of how seeds vary, so the differences named for more seeds are large; each further seed makes them smaller"
        )
    if "dev" in collection.qrels:
        n_answerable = answerable_queries(collection, "dev", evaluation)
        lines.append(promise_line(n_answerable))
        is_enough = n_answerable >= queries_needed(SHOWN)
        entries["promise"] = {
            "promise": SHOWN,
            "queries": n_answerable,
            "new_queries": list(coverage_interval(SHOWN, n_answerable)) if is_enough else None,
        }
    return Section(
        "What dev and test can show",
        [table] if rows else [],
        lines=lines,
        severe=severe,
        entries=entries,
    )


def answerable_queries(
    collection: Collection, split: str, evaluation: Evaluation | None = None
) -> int:
    """How many queries of a split have a relevant document among their candidates: its pools, or the
    best of BM25, which also stand for what a search of the corpus will find. Of more than 1,000 queries
    the latter is told by a sample.
    """
    if evaluation is None:
        evaluation = Evaluation()
    if evaluation.candidates is None:  # ltr calibrate takes auto then
        evaluation = replace(evaluation, candidates="auto")
    evaluation = evaluation.of_split(collection, split)
    judged = collection.learnt(split)
    query_rows = judged.query_rows
    if evaluation.candidates == "candidates":
        candidates = collection.best_of_pools(split, evaluation.depth, option="candidates")
    else:
        candidates = found_by_bm25(collection, split).cut(evaluation.depth)
        query_rows = sample_of(query_rows)
    n_answerable = 0
    for query_row in query_rows.tolist():
        docs, _ = candidates.of(query_row)
        n_answerable += int((values_of(docs, *judged.of(query_row)) > 0).any())
    return round(n_answerable * len(judged.query_rows) / len(query_rows))


def promise_line(n_answerable: int) -> str:
    """What a threshold would keep of new queries that was set by so many of dev."""
    needed = queries_needed(SHOWN)
    what = f"all relevant documents of {SHOWN:.0%} of queries (ltr calibrate)"
    if n_answerable < needed:
        return f"dev: a threshold that is to keep {what} needs {needed} queries with a relevant document among their candidates, and there are {n_answerable}"
    low, high = coverage_interval(SHOWN, n_answerable)
    return f"dev: a threshold that is to keep {what}, set by {n_answerable:,} queries with a relevant document among their candidates, keeps them of {low:.1%} to {high:.1%} of new ones in 90% of draws"


def _against_run(
    lists: QueryLists,
    values: np.ndarray,
    ranked: QueryLists,
    judged: QueryLists,
    metric: RankingMetric,
) -> Estimate | None:
    """The difference of a run and BM25 over the queries with both values; None for one."""
    is_ranked = np.isin(lists.query_rows, ranked.query_rows)
    places = np.searchsorted(ranked.query_rows, lists.query_rows[is_ranked])
    run_values = ranked_values(ranked.lists_at(places), judged, metric)
    bm25_values = values[is_ranked]
    has_both = np.isfinite(run_values) & np.isfinite(bm25_values)
    if has_both.sum() < 2:
        return None
    return estimate(run_values[None, has_both], bm25_values[None, has_both])
