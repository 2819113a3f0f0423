"""Rows and judgements that several tests of sampling use."""

import numpy as np

from ltr.data.query_lists import QueryLists
from ltr.data.sampling.list_rows import ListRows


def labels_by_epoch(rows: ListRows, epochs: int) -> list[dict[int, float]]:
    lists = [rows.draw(epoch, 0) for epoch in range(epochs)]
    assert all(len(set(one.doc_rows.tolist())) == len(one.doc_rows) for one in lists)
    return [dict(zip(one.doc_rows.tolist(), one.labels.tolist(), strict=True)) for one in lists]


def many_judged(n_queries=11, n_relevant=5) -> QueryLists:
    """Query q has 1 to 5 relevant documents of grades 1 to 3, and a judged irrelevant one; rows 10
    q to 10 q + 5.
    """
    rows = [
        (q, 10 * q + d, d % 3 + 1 if d else 0)
        for q in range(n_queries)
        for d in range(q % n_relevant + 2)
    ]
    return QueryLists.from_rows(*zip(*rows, strict=True))


def shuffled_labels(*sizes: int) -> np.ndarray:
    """Labels 0, 1, … of so many texts each, in any order."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
