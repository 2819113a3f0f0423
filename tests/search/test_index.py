import logging

import numpy as np
import pytest
import torch

import ltr.similarity
from ltr.data import files
from ltr.errors import InputError
from ltr.search import approximate, exact
from ltr.search import embeddings as maps
from ltr.search.index import DenseIndex

SIMILARITIES = ("dot", "cosine", "euclidean", "squared_euclidean")
EVERY = pytest.mark.parametrize("similarity", SIMILARITIES)


def embeddings(n, dim=16, seed=0, shift=0.0):
    return (np.random.default_rng(seed).standard_normal((n, dim)) + shift).astype(np.float32)


def clustered(n, dim=16, seed=0):
    """Twenty clusters."""
    centres = np.random.default_rng(9).standard_normal((20, dim)) * 3
    return (centres[np.arange(n) % 20] + np.random.default_rng(seed).standard_normal((n, dim))).astype(np.float32)


def brute_force(queries, docs, similarity, k):
    """Every score by ltr.similarity, in float64."""
    scores = getattr(ltr.similarity, similarity)(torch.tensor(queries).double(), torch.tensor(docs).double())
    return tuple(x.numpy() for x in scores.topk(k, dim=1))


@pytest.fixture(params=["faiss", "torch"])
def by(request, monkeypatch):
    """Both exact searches, with tiles so small that there are many: 5 x 4 of 64 documents and 10 queries."""
    for module in (exact, maps):
        monkeypatch.setattr(module, "DOCS", 64)
    monkeypatch.setattr(exact, "QUERIES", 10)
    monkeypatch.setattr(exact, "FAISS_PAYS", 0)
    if request.param == "torch":
        monkeypatch.setattr(approximate, "faiss", None)
        monkeypatch.setattr(exact, "faiss", None)
    return request.param


# Exact


@EVERY
def test_flat_finds_what_brute_force_finds(by, similarity):
    queries, docs = embeddings(33, seed=1), embeddings(300, shift=0.5)
    expected, expected_rows = brute_force(queries, docs, similarity, 20)
    scores, rows = DenseIndex.build(docs, similarity).search(queries, 20)
    assert scores.dtype == np.float32 and rows.dtype == np.int64
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_torch_is_taken_for_few_queries_and_faiss_for_many(monkeypatch):
    docs, called = embeddings(40), []
    knn = exact.faiss.knn
    monkeypatch.setattr(exact.faiss, "knn", lambda *args, **kwargs: called.append(len(args[0])) or knn(*args, **kwargs))
    monkeypatch.setattr(exact, "FAISS_PAYS", 30 * 16)
    index = DenseIndex.build(docs, "dot")
    for n in (29, 30):
        index.search(embeddings(n), 3)
    assert called == [30]


@EVERY
@pytest.mark.parametrize("k", [5, 70])
def test_of_equal_scores_the_larger_row_comes_first_and_stays(by, similarity, k):
    """300 documents at four places: some 75 share a query's best score, so k cuts a tie; 5 does so in each tile too."""
    places = np.array([[4, 0], [0, 4], [-4, 0], [0, -4]], dtype=np.float32)
    which = np.random.default_rng(0).integers(0, 4, 300)
    which[0], which[299] = 0, 1
    scores, rows = DenseIndex.build(places[which], similarity).search(places, k)
    for place in range(4):
        best = np.flatnonzero(which == place)[::-1]
        n = min(k, len(best))
        assert rows[place, :n].tolist() == best[:n].tolist()
        assert len(set(scores[place, :n].tolist())) == 1


def test_a_row_further_down_wins_only_by_its_score(by):
    """Scores 1, 3, 3, 2, -0 and 0: 0 and -0 are one score."""
    docs = np.array([[1.0], [3.0], [3.0], [2.0], [-0.0], [0.0]], dtype=np.float32)
    scores, rows = DenseIndex.build(docs, "dot").search(np.array([[1.0], [-1.0]], dtype=np.float32), 6)
    assert rows.tolist() == [[2, 1, 3, 0, 5, 4], [5, 4, 0, 3, 2, 1]]
    assert scores.tolist() == [[3, 3, 2, 1, 0, 0], [0, 0, -1, -2, -3, -3]]


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF2,Flat"])
def test_fewer_documents_than_asked_for_are_filled_up(factory):
    docs = np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    scores, rows = DenseIndex.build(docs, "euclidean", factory, **({"probes": 2} if "IVF" in factory else {})).search(docs, 4)
    assert rows.tolist() == [[0, 1, -1, -1], [1, 0, -1, -1]]
    np.testing.assert_allclose(scores, [[0, -(5**0.5), -np.inf, -np.inf]] * 2, rtol=1e-6)


def test_no_queries_find_nothing(by):
    scores, rows = DenseIndex.build(embeddings(5), "dot").search(embeddings(0), 3)
    assert scores.shape == rows.shape == (0, 3)


@pytest.mark.parametrize("factory", ["Flat", "HNSW32"])
@pytest.mark.parametrize("similarity", ["euclidean", "squared_euclidean"])
def test_distances_keep_their_digits_far_from_the_origin(similarity, factory):
    """All embeddings 1000 away from 0 and 1 apart: by products of the embeddings as they are, float32 has no digit left."""
    queries, docs = embeddings(20, seed=1) + 1000, embeddings(200) + 1000
    expected, expected_rows = brute_force(queries, docs, similarity, 5)
    scores, rows = DenseIndex.build(docs, similarity, factory).search(queries, 5)
    np.testing.assert_allclose(scores, expected, rtol=1e-3)
    assert (rows == expected_rows).mean() > 0.97


def test_an_embedding_of_length_0_has_cosine_0(by):
    docs = np.array([[0.0, 0.0], [0.0, -5.0], [0.0, 2.0]], dtype=np.float32)
    scores, rows = DenseIndex.build(docs, "cosine").search(np.array([[0.0, 3.0]], dtype=np.float32), 3)
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
        found = DenseIndex.build(mapped, similarity, factory, **options).search(docs[:7], 4)
        np.testing.assert_array_equal(found[1], brute_force(docs[:7], docs, similarity, 4)[1])
    np.testing.assert_array_equal(np.load(tmp_path / "docs.npy"), docs)


def test_autocast_does_not_round_the_scores(by):
    docs = embeddings(100)
    index = DenseIndex.build(docs, "dot")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = index.search(docs[:12], 5)
    np.testing.assert_array_equal(inside[0], index.search(docs[:12], 5)[0])


# faiss's


@EVERY
def test_ivf_that_probes_every_cluster_is_exact(similarity):
    queries, docs = embeddings(30, seed=1, shift=0.5), embeddings(500, shift=0.5)
    scores, rows = DenseIndex.build(docs, similarity, "IVF8,Flat", probes=8).search(queries, 10)
    expected, expected_rows = DenseIndex.build(docs, similarity).search(queries, 10)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_more_probes_find_more():
    """Without clusters in the data, neighbours lie in many of the index's."""
    queries, docs = embeddings(100, seed=1), embeddings(2000)
    exact = DenseIndex.build(docs, "euclidean").search(queries, 10)[1]
    found = [DenseIndex.build(docs, "euclidean", "IVF36,Flat", probes=n).search(queries, 10)[1] for n in (1, 6, 36, None)]
    recall = [_recall(rows, exact) for rows in found]
    assert recall[0] < recall[1] < recall[2] == 1.0
    assert recall[3] == recall[1]  # 6 is the square root


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
@pytest.mark.parametrize(("factory", "least"), [("HNSW32", 0.9), ("IVF16,PQ8x8", 0.5)])
def test_approximate_indexes_find_most_neighbours(similarity, factory, least):
    queries, docs = clustered(100, seed=1), clustered(1500)
    exact, exact_rows = DenseIndex.build(docs, similarity).search(queries, 10)
    scores, rows = DenseIndex.build(docs, similarity, factory).search(queries, 10)
    assert _recall(rows, exact_rows) > least
    assert (np.diff(scores, axis=1) <= 0).all()
    assert np.corrcoef(scores.ravel(), exact.ravel())[0, 1] > 0.9


def _recall(rows, exact):
    return np.mean([len(set(r) & set(e)) / len(e) for r, e in zip(rows.tolist(), exact.tolist(), strict=True)])


def test_ties_of_an_approximate_index_come_larger_row_first():
    docs = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)
    _, rows = DenseIndex.build(docs, "dot", "IVF1,Flat").search(np.eye(4, dtype=np.float32), 3)
    assert rows.tolist() == [[2, 1, 0], [5, 4, 3], [8, 7, 6], [11, 10, 9]]


@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF16,PQ4x8", "OPQ4,PQ4x8", "HNSW8_PQ4"])
def test_few_documents_to_learn_from_are_one_logged_line(factory, caplog, capfd):
    """faiss itself would print a line for each k-means: up to 400 times for OPQ."""
    with caplog.at_level(logging.WARNING):
        index = DenseIndex.build(embeddings(300), "cosine", factory)
    assert (index.search(embeddings(300), 1)[1][:, 0] == np.arange(300)).mean() > 0.9
    assert capfd.readouterr() == ("", "")
    (record,) = caplog.records
    n = 16 if factory == "IVF16,Flat" else 256
    said = f"{factory}: 300 documents are few to learn {n} centroids from; faiss advises {39 * n}"
    assert record.getMessage() == said


def test_the_sample_to_learn_from_is_seeded(monkeypatch):
    """4 clusters learn from 8 of 400 documents: one seed, one index; another seed, another."""
    monkeypatch.setattr(approximate, "ENOUGH", 2)
    docs = embeddings(400)
    found = [DenseIndex.build(docs, "dot", "IVF4,Flat", probes=1, seed=seed).search(docs, 50)[1] for seed in (0, 0, 1)]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()


# Keeping


@EVERY
@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW8"])
def test_an_opened_index_searches_as_the_one_that_was_saved(tmp_path, similarity, factory):
    docs = embeddings(200, shift=1.0)
    index = DenseIndex.build(docs, similarity, factory, probes=None if factory == "Flat" else 3)
    index.save(tmp_path / "index")
    again = DenseIndex.open(tmp_path / "index")
    for one, other in zip(index.search(docs[:20], 5), again.search(docs[:20], 5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (again.similarity, again.factory, again.probes, len(again), again.dimension) == (
        similarity,
        factory,
        index.probes,
        200,
        16,
    )


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "take_room", lambda file: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        DenseIndex.build(embeddings(5), "dot").save(tmp_path / "index")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_folder_that_is_there_is_not_taken_for_the_index(tmp_path):
    index = DenseIndex.build(embeddings(5), "dot")
    index.save(tmp_path / "index")
    with pytest.raises(InputError, match="index: an index is saved into a new folder, but this one exists"):
        index.save(tmp_path / "index")


def test_a_damaged_index_is_refused(tmp_path):
    for number, (factory, name) in enumerate((("Flat", "embeddings.npy"), ("HNSW8", "index.faiss"), ("Flat", "manifest.json"))):
        folder = tmp_path / str(number)
        DenseIndex.build(embeddings(5), "dot", factory).save(folder)
        (folder / name).write_bytes(b"hello, world")
        said = rf"{number} must hold a whole index, as DenseIndex.save writes it, got .*; build it ag"
        with pytest.raises(InputError, match="0/embeddings.npy: expected a whole .npy file" if number == 0 else said):
            DenseIndex.open(folder)
    for cut in (0, 60, 200):  # empty, in the header, in the numbers
        (tmp_path / "0/embeddings.npy").write_bytes((tmp_path / "2/embeddings.npy").read_bytes()[:cut])
        with pytest.raises(InputError, match="0/embeddings.npy: expected a whole .npy file, got an error .*; make it again"):
            DenseIndex.open(tmp_path / "0")
    for manifest in ("[" * 100_000, "[]"):
        (folder / "manifest.json").write_text(manifest)
        with pytest.raises(InputError, match="2 must hold a whole index"):
            DenseIndex.open(folder)
    DenseIndex.build(embeddings(5), "euclidean").save(tmp_path / "3")
    (tmp_path / "3/centre.npy").write_bytes(b"")
    with pytest.raises(InputError, match="3/centre.npy: expected a whole .npy file"):
        DenseIndex.open(tmp_path / "3")
    with pytest.raises(InputError, match="none must hold a whole index"):
        DenseIndex.open(tmp_path / "none")


def test_a_manifest_of_another_index_is_refused(tmp_path):
    for n in (5, 6):
        DenseIndex.build(embeddings(n), "dot").save(tmp_path / str(n))
    (tmp_path / "5/embeddings.npy").write_bytes((tmp_path / "6/embeddings.npy").read_bytes())
    with pytest.raises(InputError, match=r"says \(5, 16\) documents and dimensions, its index has \(6, 16\); build it again"):
        DenseIndex.open(tmp_path / "5")


# Bad input

BAD = [
    ({"similarity": "l2"}, "similarity must be one of dot, cosine, euclidean, squared_euclidean, got 'l2'"),
    ({"factory": "Falt"}, r"one that faiss can build of 40 embeddings .* got 'Falt': could not parse index string Falt$"),
    ({"factory": "PQ5x8"}, "got 'PQ5x8': .*should be a multiple of the number of subquantizers"),
    ({"factory": "PQ4x8"}, r"got 'PQ4x8': .*Number of training points \(40\) should be at least as large as number of clu.*256"),
    ({"factory": "IVF41,Flat"}, "the 41 clusters of 'IVF41,Flat' can't be more than the 40 documents; ask for fewer clusters"),
    ({"probes": 3}, "probes must be at least 1, and with an IVF or HNSW index, got 3 with 'Flat'"),
    ({"factory": "HNSW8", "probes": 0}, "probes must be at least 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        DenseIndex.build(embeddings(40), **({"similarity": "dot"} | options))
    assert "\n" not in str(caught.value) and ".cpp" not in str(caught.value)


def test_bad_embeddings_and_queries_are_refused(monkeypatch):
    monkeypatch.setattr(maps, "DOCS", 4)
    docs = embeddings(10)
    docs[6, 3] = np.inf
    with pytest.raises(InputError, match="embeddings must be finite, got NaN or infinity in row 6"):
        DenseIndex.build(docs, "dot")
    with pytest.raises(InputError, match=r"at least one document, got \(0, 16\)"):
        DenseIndex.build(docs[:0], "dot")
    index = DenseIndex.build(docs[:6], "dot")
    with pytest.raises(InputError, match="queries must be finite, got NaN or infinity in row 1"):
        index.search(docs[5:7], 1)
    with pytest.raises(InputError, match=r"queries must be \[Q, 16\] as the documents, got \(6, 8\)"):
        index.search(docs[:6, :8], 1)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        index.search(docs[:6], 0)


def test_without_faiss_only_flat_is_built_and_opened(tmp_path, monkeypatch):
    DenseIndex.build(embeddings(40), "dot", "HNSW8").save(tmp_path / "index")
    monkeypatch.setattr(approximate, "faiss", None)
    for ask in (lambda: DenseIndex.build(embeddings(40), "dot", "HNSW8"), lambda: DenseIndex.open(tmp_path / "index")):
        with pytest.raises(InputError, match="without faiss the index must be 'Flat', got 'HNSW8'; pip install faiss-cpu"):
            ask()
