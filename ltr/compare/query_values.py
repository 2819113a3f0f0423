"""What metrics say of ranked lists, query by query."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ltr.data.query_lists import QueryLists, values_of
from ltr.metrics import MeasuredLists, RankingMetric

CELLS = 2**22  # of lists that are measured together
SHORT = 64  # cells that a shorter list counts as, for what each list takes


def values_by_query(
    lists: QueryLists, judged: QueryLists, metrics: Sequence[RankingMetric]
) -> np.ndarray:
    """``[M, Q]``: what each of M metrics says of each of Q judged queries; NaN for a query that it
    leaves out.

    Args:
        lists: best first; a query without a list has found nothing.
        judged: with grades as values.
        metrics: what is measured; they are not changed.
    """
    lengths = np.array([len(lists.of(row)[0]) for row in judged.query_rows])
    values = np.empty((len(metrics), len(lengths)))
    for places in _blocks(lengths):
        measured = _measured_lists(lists, judged, judged.query_rows[places])
        for row, metric in enumerate(metrics):
            values[row, places] = metric.per_query(measured).numpy()
    return values


def _blocks(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Places of lists that are measured together, those of like lengths."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * max(SHORT, lengths[order[stop]]) <= CELLS:
            stop += 1
        yield order[start:stop]
        start = stop


def _measured_lists(lists: QueryLists, judged: QueryLists, query_rows: np.ndarray) -> MeasuredLists:
    """The lists of some queries beside their judgements."""
    ranked = [lists.of(row) for row in query_rows]
    known = [judged.of(row) for row in query_rows]
    width = max(1, *(len(docs) for docs, _ in ranked))
    ideal_width = max(1, *(len(docs) for docs, _ in known))
    shape = (len(query_rows), width)
    scores = np.zeros(shape, dtype=np.float32)
    labels = np.zeros(shape, dtype=np.float32)
    mask = np.zeros(shape, dtype=bool)
    is_judged = np.zeros(shape, dtype=bool)
    ideal = np.zeros((len(query_rows), ideal_width), dtype=np.float32)
    for row, ((docs, of_docs), (known_docs, grades)) in enumerate(zip(ranked, known, strict=True)):
        n_docs = len(docs)
        scores[row, :n_docs] = of_docs
        labels[row, :n_docs] = values_of(docs, known_docs, grades)
        mask[row, :n_docs] = True
        is_judged[row, :n_docs] = np.isin(docs, known_docs)
        ideal[row, : len(grades)] = grades
    # Without a tie breaker: the lists are in order.
    return MeasuredLists(
        torch.from_numpy(scores),
        torch.from_numpy(labels),
        torch.from_numpy(mask),
        ideal=torch.from_numpy(ideal),
        judged=torch.from_numpy(is_judged),
    )
