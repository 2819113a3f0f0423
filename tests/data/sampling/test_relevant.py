"""Rows of relevant documents, over an epoch."""

import numpy as np
import pytest

from ltr.data.sampling.relevant import RelevantDraws
from tests.data.sampling.judgements import many_judged


def relevant_rows(size: int, epoch: str, seed: int = 0) -> RelevantDraws:
    """Of the queries 2, 3, 4 and 7, with 3, 4, 5 and 3 relevant documents."""
    return RelevantDraws(many_judged(), many_judged(), np.asarray([2, 3, 4, 7]), size, epoch, seed)


def drawn_pairs(rows: RelevantDraws, epoch: int) -> list[tuple[int, list[int]]]:
    """Query and documents of each row."""
    lists = [rows.draw(epoch, row)[0] for row in range(len(rows.query_rows))]
    assert [len(one.doc_rows) for one in lists] == rows.counts.tolist()
    assert all(one.labels.tolist() == [doc % 10 % 3 + 1 for doc in one.doc_rows] for one in lists)
    return [(one.query_row, one.doc_rows.tolist()) for one in lists]


@pytest.mark.parametrize(
    "size, counts",
    [
        (1, [[1] * 3, [1] * 4, [1] * 5, [1] * 3]),
        (2, [[2, 1], [2, 2], [2, 2, 1], [2, 1]]),
        (3, [[3], [2, 2], [3, 2], [3]]),
    ],
)
def test_an_epoch_over_pairs_has_each_pair_once(size, counts):
    """In rows of nearly one size, and dealt out anew in each epoch."""
    rows = relevant_rows(size, "pairs")
    every = [(q, 10 * q + d) for q, n in ((2, 3), (3, 4), (4, 5), (7, 3)) for d in range(1, n + 1)]
    queries = [
        [query] * len(of_query) for query, of_query in zip([2, 3, 4, 7], counts, strict=True)
    ]
    assert rows.query_rows.tolist() == sum(queries, [])
    assert rows.counts.tolist() == sum(counts, [])
    epochs = [drawn_pairs(rows, epoch) for epoch in range(4)]
    for epoch in epochs:
        assert sorted((query, doc) for query, docs in epoch for doc in docs) == every
    assert len({str(epoch) for epoch in epochs}) == 4
    of_another_seed = relevant_rows(size, "pairs", 1)
    assert epochs != [drawn_pairs(of_another_seed, epoch) for epoch in range(4)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_over_queries_has_each_query_once(size):
    rows = relevant_rows(size, "queries")
    assert [query for query, _ in drawn_pairs(rows, 0)] == [2, 3, 4, 7]
    assert rows.counts.tolist() == [size] * 4
