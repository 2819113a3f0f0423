"""Indexes of faiss: as exact as they are asked to be."""

import logging

import numpy as np
import pytest

from ltr.errors import InputError
from ltr.search import faiss_index
from tests.search.indexed import EVERY, build, embeddings


def clustered(n, dim=16, seed=0):
    """Twenty clusters."""
    centres = np.random.default_rng(9).standard_normal((20, dim)) * 3
    return (
        centres[np.arange(n) % 20] + np.random.default_rng(seed).standard_normal((n, dim))
    ).astype(np.float32)


@EVERY
def test_ivf_that_probes_every_cluster_is_exact(similarity):
    queries = embeddings(30, seed=1, shift=0.5)
    docs = embeddings(500, shift=0.5)
    scores, rows = build(docs, similarity, "IVF8,Flat", probes=8).search(queries, 10)
    expected, expected_rows = build(docs, similarity).search(queries, 10)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_more_probes_find_more():
    """Without clusters in the data, neighbours lie in many of the index's."""
    queries = embeddings(100, seed=1)
    docs = embeddings(2000)
    exact = build(docs, "euclidean").search(queries, 10)[1]
    found = [
        build(docs, "euclidean", "IVF36,Flat", probes=n).search(queries, 10)[1]
        for n in (1, 6, 36, None)
    ]
    recall = [_recall(rows, exact) for rows in found]
    assert recall[0] < recall[1] < recall[2] == 1.0
    assert recall[3] == recall[1]  # 6 is the square root


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
@pytest.mark.parametrize(("factory", "least"), [("HNSW32", 0.9), ("IVF16,PQ8x8", 0.5)])
def test_approximate_indexes_find_most_neighbours(similarity, factory, least):
    queries = clustered(100, seed=1)
    docs = clustered(1500)
    exact, exact_rows = build(docs, similarity).search(queries, 10)
    scores, rows = build(docs, similarity, factory).search(queries, 10)
    assert _recall(rows, exact_rows) > least
    assert (np.diff(scores, axis=1) <= 0).all()
    assert np.corrcoef(scores.ravel(), exact.ravel())[0, 1] > 0.9


def _recall(rows, exact):
    return np.mean(
        [len(set(r) & set(e)) / len(e) for r, e in zip(rows.tolist(), exact.tolist(), strict=True)]
    )


def test_ties_of_an_approximate_index_come_larger_row_first():
    docs = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)
    _, rows = build(docs, "dot", "IVF1,Flat").search(np.eye(4, dtype=np.float32), 3)
    assert rows.tolist() == [[2, 1, 0], [5, 4, 3], [8, 7, 6], [11, 10, 9]]


@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF16,PQ4x8", "OPQ4,PQ4x8", "HNSW8_PQ4"])
def test_few_documents_to_learn_from_are_one_logged_line(factory, caplog, capfd):
    """faiss itself would print a line for each k-means: up to 400 times for OPQ."""
    with caplog.at_level(logging.WARNING):
        index = build(embeddings(300), "cosine", factory)
    assert (index.search(embeddings(300), 1)[1][:, 0] == np.arange(300)).mean() > 0.9
    assert capfd.readouterr() == ("", "")
    (record,) = caplog.records
    n = 16 if factory == "IVF16,Flat" else 256
    said = f"{factory}: 300 documents are few to learn {n} centroids from; faiss advises {39 * n}"
    assert record.getMessage() == said


def test_the_sample_to_learn_from_is_seeded(monkeypatch):
    """4 clusters learn from 8 of 400 documents: one seed, one index; another seed, another."""
    monkeypatch.setattr(faiss_index, "MOST_PER_CENTROID", 2)
    docs = embeddings(400)
    found = [
        build(docs, "dot", "IVF4,Flat", probes=1, seed=seed).search(docs, 50)[1]
        for seed in (0, 0, 1)
    ]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()


def test_without_faiss_only_flat_is_built(monkeypatch):
    monkeypatch.setattr(faiss_index, "faiss", None)
    with pytest.raises(
        InputError,
        match="without faiss the index must be 'Flat', got 'HNSW8'; pip install faiss-cpu",
    ):
        build(embeddings(40), "dot", "HNSW8")
