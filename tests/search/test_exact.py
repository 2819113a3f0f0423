"""Exact search finds what brute force finds."""

import numpy as np
import pytest
import torch

import ltr.similarity
from ltr.search import embeddings as maps
from ltr.search import exact, faiss_index, tiles
from ltr.similarity import Dot
from tests.search.indexed import EVERY, SIMILARITIES, build, embeddings
from tests.search.pretended_gpu import PretendedGPU


def brute_force(queries, docs, similarity, k):
    """Every score by ltr.similarity, in float64."""
    scores = getattr(ltr.similarity, similarity)(
        torch.tensor(queries).double(), torch.tensor(docs).double()
    )
    return tuple(x.numpy() for x in scores.topk(k, dim=1))


@pytest.fixture(params=["faiss", "torch", "gpu"])
def by(request, monkeypatch):
    """The exact searches, with tiles so small that there are many: 5 x 4 of 64 documents and 10
    queries.
    """
    for module in (maps, tiles):
        monkeypatch.setattr(module, "DOCS_AT_ONCE", 64)
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 10)
    monkeypatch.setattr(exact, "FAISS_PAYS", 0)
    if request.param == "torch":
        monkeypatch.setattr(faiss_index, "faiss", None)
        monkeypatch.setattr(exact, "faiss", None)
    if request.param == "gpu":
        PretendedGPU(monkeypatch)
    return request.param


@EVERY
def test_flat_finds_what_brute_force_finds(by, similarity):
    queries = embeddings(33, seed=1)
    docs = embeddings(300, shift=0.5)
    expected, expected_rows = brute_force(queries, docs, similarity, 20)
    scores, rows = build(docs, similarity).search(queries, 20)
    assert scores.dtype == np.float32 and rows.dtype == np.int64
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_torch_is_taken_for_few_queries_and_faiss_for_many(monkeypatch):
    docs = embeddings(40)
    called = []
    knn = exact.faiss.knn
    monkeypatch.setattr(
        exact.faiss,
        "knn",
        lambda *args, **kwargs: called.append(len(args[0])) or knn(*args, **kwargs),
    )
    monkeypatch.setattr(exact, "FAISS_PAYS", 30 * 16)
    index = build(docs, "dot")
    for n in (29, 30):
        index.search(embeddings(n), 3)
    assert called == [30]


@EVERY
@pytest.mark.parametrize("k", [5, 70])
def test_of_equal_scores_the_larger_row_comes_first_and_stays(by, similarity, k):
    """300 documents at four places: some 75 share a query's best score, so k cuts a tie; 5 does so
    in each tile too.
    """
    places = np.array([[4, 0], [0, 4], [-4, 0], [0, -4]], dtype=np.float32)
    which = np.random.default_rng(0).integers(0, 4, 300)
    which[0], which[299] = 0, 1
    scores, rows = build(places[which], similarity).search(places, k)
    for place in range(4):
        best = np.flatnonzero(which == place)[::-1]
        n = min(k, len(best))
        assert rows[place, :n].tolist() == best[:n].tolist()
        assert len(set(scores[place, :n].tolist())) == 1


def test_a_row_further_down_wins_only_by_its_score(by):
    """Scores 1, 3, 3, 2, -0 and 0: 0 and -0 are one score."""
    docs = np.array([[1.0], [3.0], [3.0], [2.0], [-0.0], [0.0]], dtype=np.float32)
    scores, rows = build(docs, "dot").search(np.array([[1.0], [-1.0]], dtype=np.float32), 6)
    assert rows.tolist() == [[2, 1, 3, 0, 5, 4], [5, 4, 0, 3, 2, 1]]
    assert scores.tolist() == [[3, 3, 2, 1, 0, 0], [0, 0, -1, -2, -3, -3]]


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF2,Flat"])
def test_fewer_documents_than_asked_for_are_filled_up(factory):
    docs = np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    scores, rows = build(
        docs, "euclidean", factory, **({"probes": 2} if "IVF" in factory else {})
    ).search(docs, 4)
    assert rows.tolist() == [[0, 1, -1, -1], [1, 0, -1, -1]]
    np.testing.assert_allclose(scores, [[0, -(5**0.5), -np.inf, -np.inf]] * 2, rtol=1e-6)


def test_no_queries_find_nothing(by):
    scores, rows = build(embeddings(5), "dot").search(embeddings(0), 3)
    assert scores.shape == rows.shape == (0, 3)


@pytest.mark.parametrize("factory", ["Flat", "HNSW32"])
@pytest.mark.parametrize("similarity", ["euclidean", "squared_euclidean"])
def test_distances_keep_their_digits_far_from_the_origin(similarity, factory):
    """All embeddings 1000 away from 0 and 1 apart: by products of the embeddings as they are,
    float32 has no digit left.
    """
    queries = embeddings(20, seed=1) + 1000
    docs = embeddings(200) + 1000
    expected, expected_rows = brute_force(queries, docs, similarity, 5)
    scores, rows = build(docs, similarity, factory).search(queries, 5)
    np.testing.assert_allclose(scores, expected, rtol=1e-3)
    assert (rows == expected_rows).mean() > 0.97


def test_an_embedding_of_length_0_has_cosine_0(by):
    docs = np.array([[0.0, 0.0], [0.0, -5.0], [0.0, 2.0]], dtype=np.float32)
    scores, rows = build(docs, "cosine").search(np.array([[0.0, 3.0]], dtype=np.float32), 3)
    assert rows.tolist() == [[2, 0, 1]] and scores.tolist() == [[1.0, 0.0, -1.0]]


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_a_memory_map_is_read_and_left_as_it_is(tmp_path, by, factory):
    if factory != "Flat" and by == "torch":
        pytest.skip("faiss's")
    docs = embeddings(200, shift=1.0)
    np.save(tmp_path / "docs.npy", docs)
    mapped = np.load(tmp_path / "docs.npy", mmap_mode="r")
    for similarity in SIMILARITIES:
        options = {"probes": 4} if factory != "Flat" else {}
        found = build(mapped, similarity, factory, **options).search(docs[:7], 4)
        np.testing.assert_array_equal(found[1], brute_force(docs[:7], docs, similarity, 4)[1])
    np.testing.assert_array_equal(np.load(tmp_path / "docs.npy"), docs)


def test_autocast_does_not_round_the_scores(by):
    docs = embeddings(100)
    index = build(docs, "dot")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = index.search(docs[:12], 5)
    np.testing.assert_array_equal(inside[0], index.search(docs[:12], 5)[0])


@pytest.mark.parametrize("kept", [1, 2, 100])
def test_queries_are_prepared_once_as_far_as_they_are_kept(by, kept, monkeypatch):
    """33 queries in tiles of 10, 300 documents in 5 tiles. The rows that are prepared: each document
    once; a query of a kept tile once, another once for each tile of documents. On a GPU all stay.
    """
    monkeypatch.setattr(exact, "TILES_KEPT", kept)
    queries = embeddings(33, seed=1)
    docs = embeddings(300)
    seen = []
    prepare_in_place = Dot.prepare_in_place

    def counted(similarity, rows, centre):
        seen.append(len(rows))
        prepare_in_place(similarity, rows, centre)

    monkeypatch.setattr(Dot, "prepare_in_place", counted)
    _, rows = build(docs, "dot").search(queries, 20)
    n_kept = 33 if by == "gpu" else min(10 * kept, 33)
    assert sum(seen) == 300 + n_kept + 5 * (33 - n_kept) and max(seen) <= 64
    np.testing.assert_array_equal(rows, brute_force(queries, docs, "dot", 20)[1])
