r"""What a split can show: the difference that this many queries, and seeds, can tell from luck.

The machinery is that of ``ltr compare``: :class:`ltr.compare.statistics.Estimate` says what a
difference varies by, and :meth:`~ltr.compare.statistics.Estimate.detectable` which true difference
a test finds with a probability of 0.8, given that the variance is itself an estimate. Were it known,
that would be

.. math:: \delta = \sqrt{v}\,\bigl(t_{1 - \alpha/2} + t_{0.8}\bigr)

Where an experiment was tested with S seeds, its seeds tell the variances of
:math:`x_{sq} = \mu + a_q + b_s + e_{sq}`, and two ways to train that vary alike differ by

.. math:: v = 2\,\mathrm{var}(b_s) / S + 2\,\mathrm{var}(e_{sq}) / (Q S)

Before there is a run, one ranker's values
:math:`x_q` (those of BM25) tell how much queries vary. Of two rankers whose values have this
variance and a correlation :math:`\rho`, the variance of the mean difference over Q queries is

.. math:: v = 2\,(1 - \rho)\, \mathrm{var}(x_q) / Q

With a run beside BM25 both are measured: :math:`v = \mathrm{var}(x_q - y_q) / Q`.
"""

import numpy as np

from ltr.check.judgements import found_by_bm25
from ltr.check.section import Section
from ltr.compare.ranges import possible_difference
from ltr.compare.statistics import Estimate, estimate
from ltr.compare.tables import PLANNED_SEEDS, Table
from ltr.data.collate import padded_lists
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.metrics import MeasuredLists, RankingMetric
from ltr.spans import spans

ALPHA = 0.05
POWER = 0.8
# Of the values of two rankers: of two that are trained alike, and of two of different kinds.
CORRELATIONS = (0.9, 0.5)
WEAK = 0.1  # a split that shows no smaller difference: severe
LISTS = 256  # measured at once
FEW_SEEDS = 4  # from which the named differences are up to some five times as large as from many


def ranked_values(lists: QueryLists, judged: QueryLists, metric: RankingMetric) -> np.ndarray:
    """``[Q]`` float64: the metric of the ranking of each query, in the order of ``lists``; NaN for a
    query that has nothing to find.
    """
    values = [np.empty(0)]
    for span in spans(len(lists.query_rows), LISTS):
        labelled = []
        scores = []
        for query_row in lists.query_rows[span].tolist():
            docs, scores_of_query = lists.of(query_row)
            labelled.append(judged.labelled(query_row, docs))
            scores.append(scores_of_query)
        batch = padded_lists(labelled)
        # Best first, whatever the scores: the first column gets the largest number.
        by_rank = -np.arange(batch.mask.shape[1], dtype=np.float32)
        ranked = batch.labels.new_tensor(by_rank).expand(batch.labels.shape)
        measured = MeasuredLists(ranked, batch.labels, batch.mask, None, batch.ideal)
        values.append(metric.per_query(measured).double().numpy())
    return np.concatenate(values)


def difference_before_runs(variance: float, n_queries: int, correlation: float) -> Estimate:
    """How the difference of two rankers would vary, of one seed each; see the module.

    Args:
        variance: of a ranker's values over queries.
        n_queries: Q.
        correlation: of the values of the two rankers.
    """
    query_variance = 2 * (1 - correlation) * variance / n_queries
    return Estimate(0.0, query_variance, (), (), n_queries, ())


def difference_of_seeds(values: np.ndarray) -> Estimate:
    """How the difference of two ways to train varies, where both vary as these seeds do, and no
    query favours one of them.

    Args:
        values: ``[S, Q]`` of one way to train, S at least 2.
    """
    one = estimate(values)
    # Without a part of the query itself, this is what seed and query make together.
    return Estimate(
        mean=0.0,
        query_variance=2 * one.shared_variances[0],
        seed_variances=one.seed_variances * 2,
        shared_variances=one.shared_variances * 2,
        n_queries=one.n_queries,
        n_seeds=one.n_seeds * 2,
        alike=True,
    )


def power_section(
    collection: Collection,
    metric_name: str,
    ranked: QueryLists | None = None,
    seed_values: np.ndarray | None = None,
) -> Section:
    """The smallest difference that each split can show with a probability of 0.8.

    Args:
        collection: its splits; ``train`` is left out.
        metric_name: what is measured, as ``nDCG@10``.
        ranked: what a run ranks, best first; None for none.
        seed_values: ``[S, Q]``, the test values of runs of S seeds; None where there are fewer than
            two.
    """
    metric = RankingMetric(metric_name)
    rows = []
    severe = []
    entries: dict[str, object] = {"metric": metric_name, "alpha": ALPHA, "power": POWER}

    def shown_by(difference: Estimate) -> float:
        return possible_difference(difference.detectable(ALPHA, POWER), metric_name)

    for split, judged in collection.qrels.items():
        if split == "train":
            continue
        n_queries = int((judged.n_relevant() > 0).sum())
        lists = found_by_bm25(collection, split)
        values = ranked_values(lists, judged, metric)
        known = values[np.isfinite(values)]
        if len(known) < 2 or n_queries < 2:
            severe.append(
                f"{split} can show no difference: two queries at least must have a relevant document, and one that BM25 finds; {n_queries:,} have the former, {len(known):,} both"
            )
            continue
        split_entries: dict[str, object] = {"queries": n_queries, "bm25": float(known.mean())}
        variance = float(known.var(ddof=1))
        for correlation in CORRELATIONS:
            shown = shown_by(difference_before_runs(variance, n_queries, correlation))
            what = f"two rankers whose values correlate by {correlation}"
            rows.append([split, what, f"{n_queries:,}", _difference_in_words(shown)])
            split_entries[f"correlation_{correlation}"] = _or_none(shown)
        shown = shown_by(difference_before_runs(variance, n_queries, max(CORRELATIONS)))
        if shown > WEAK:
            what = "any difference" if np.isinf(shown) else f"a difference below {shown:.3f}"
            severe.append(
                f"{split} has {n_queries:,} queries: it can't show {what} in {metric_name}, even of rankers that are much alike"
            )
        measured = None if ranked is None else _against_run(lists, values, ranked, judged, metric)
        if measured is not None:
            shown = shown_by(measured.planned(n_queries, 1))
            rows.append(
                [split, "the run and BM25, measured", f"{n_queries:,}", _difference_in_words(shown)]
            )
            split_entries["run_and_bm25"] = _or_none(shown)
        if seed_values is not None and split == "test":
            n_tested = seed_values.shape[1]
            by_seeds: dict[str, float | None] = {}
            for n_seeds in PLANNED_SEEDS:
                shown = shown_by(difference_of_seeds(seed_values).planned(n_tested, n_seeds))
                what = f"two ways to train, {n_seeds} seeds each, as these seeds vary"
                rows.append([split, what, f"{n_tested:,}", _difference_in_words(shown)])
                by_seeds[str(n_seeds)] = _or_none(shown)
            split_entries["seeds"] = by_seeds
        entries[split] = split_entries
    header = ["split", "of", "queries", f"smallest difference in {metric_name}"]
    title = f"shown with a probability of {POWER:g} at level {ALPHA:g}"
    table = Table(title, header, rows, text_columns=header[1:2])
    lines = []
    if rows and seed_values is None:
        lines.append(
            "these are of two models, one seed each; how seeds vary shows once two of an experiment are tested: ltr check RUN"
        )
    if seed_values is not None and len(seed_values) < FEW_SEEDS:
        lines.append(
            f"{len(seed_values)} seeds tell little of how seeds vary, so the differences named for more seeds are large; each further seed makes them smaller"
        )
    return Section("What dev and test can show", [table] if rows else [], lines, severe, entries)


def _against_run(
    lists: QueryLists,
    values: np.ndarray,
    ranked: QueryLists,
    judged: QueryLists,
    metric: RankingMetric,
) -> Estimate | None:
    """The difference of a run and BM25 over the queries that both have; None for fewer than two."""
    both = np.isin(lists.query_rows, ranked.query_rows) & np.isfinite(values)
    if both.sum() < 2:
        return None
    places = np.searchsorted(ranked.query_rows, lists.query_rows[both])
    run_values = ranked_values(ranked.lists_at(places), judged, metric)
    return estimate(run_values[None], values[both][None])


def _difference_in_words(difference: float) -> str:
    return "none" if np.isinf(difference) else f"{difference:.3f}"


def _or_none(difference: float) -> float | None:
    return None if np.isinf(difference) else difference
