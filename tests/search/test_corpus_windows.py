"""A search over windows finds the documents with the best ones: against the scores of all windows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ltr.data.collection import open_collection
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.search import corpus_windows as room
from ltr.search.corpus_search import SearchedCorpus, search_corpus
from ltr.search.corpus_windows import WindowsOfCorpus
from ltr.search.encoding_places import TemporaryEncodings
from ltr.search.scores import pair_scores
from ltr.use.corpus_encoding import CorpusEncoding
from ltr.use.retriever import Retriever, table_of_texts
from tests.child_processes import run_ranks

QUERIES = np.array([0, 7, 31])
K = 5


def world(backbone: str, folder: Path, windows: Windows | None, similarity: str = "cosine"):
    collection = open_collection(str(folder))
    torch.manual_seed(1)
    model = DualEncoder(backbone, max_length=24, similarity=similarity, windows=windows)
    stores = (
        form.store(table)
        for form, table in zip(model.reads, (collection.queries, collection.corpus), strict=True)
    )
    return model.eval(), SearchedCorpus(*stores, model.reads, depth=K)


def every_score(model: DualEncoder, corpus: SearchedCorpus) -> np.ndarray:
    """``[Q, D]``: pair by pair, which looks at each window of each document."""
    rows = np.arange(len(corpus.docs))
    pairs = np.repeat(QUERIES, len(rows)), np.tile(rows, len(QUERIES))
    return pair_scores(model, corpus.queries, corpus.docs, *pairs).reshape(len(QUERIES), -1)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("score", ["best", "mean"])
def test_a_query_finds_what_brute_force_finds(
    backbone, collection_folder, tmp_path, similarity, score
):
    if score == "mean" and similarity != "dot":
        pytest.skip("has no one embedding")
    windows = Windows(4, 2, score)
    model, corpus = world(backbone, collection_folder, windows, similarity)
    found = search_corpus(model, corpus, QUERIES, TemporaryEncodings(tmp_path))
    scores = every_score(model, corpus)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    np.testing.assert_allclose(
        found.values.reshape(-1, K), np.take_along_axis(scores, best, axis=1), atol=1e-5
    )
    np.testing.assert_array_equal(found.doc_rows.reshape(-1, K), best)
    plain = world(backbone, collection_folder, None, similarity)
    cut = search_corpus(*plain, QUERIES, TemporaryEncodings(tmp_path))
    assert (cut.doc_rows != found.doc_rows).any(), "windows say something"


def test_an_index_may_have_as_many_clusters_as_there_are_windows(backbone, collection_folder):
    _, corpus = world(backbone, collection_folder, Windows(4, 2))
    n_windows = WindowsOfCorpus(corpus.docs, corpus.reads.docs, len(corpus.docs)).n_windows
    assert n_windows > len(corpus.docs)
    replace(corpus, index=f"IVF{n_windows},Flat").check(8, {})
    with pytest.raises(InputError, match=f"clusters .* more than the {n_windows} documents"):
        replace(corpus, index=f"IVF{n_windows + 1},Flat").check(8, {})


def of_counts(*counts: int) -> WindowsOfCorpus:
    """Documents with so many windows each."""
    corpus = WindowsOfCorpus.__new__(WindowsOfCorpus)
    corpus._offsets = np.cumsum([0, *counts])
    corpus.n_windows = sum(counts)
    return corpus


def search_of(scores: np.ndarray, depths: list[int]):
    """An exact search of windows, of whose scores it is given."""

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        depths.append(k)
        of_queries = scores[queries[:, 0].astype(int)]
        order = np.lexsort(
            (np.broadcast_to(-np.arange(scores.shape[1]), of_queries.shape), -of_queries)
        )
        rows = order[:, :k]
        return np.take_along_axis(of_queries, rows, axis=1), rows

    return search


def test_the_order_by_hand_and_ties_by_row():
    """Documents 0, 1 and 2 have windows 0 to 2, 3, and 4 and 5. Query 0: document 0 by its window
    of 9, then 2 before 1, which have 7 both.
    """
    scores = np.array([[9, 8, 1, 7, 7, 2], [0, 0, 0, 0, 0, 0]], np.float32)
    found = of_counts(3, 1, 2).search(search_of(scores, []), np.array([[0], [1]]), 3)
    assert found[1].tolist() == [[0, 2, 1], [2, 1, 0]]
    assert found[0].tolist() == [[9, 7, 7], [0, 0, 0]]


def test_a_query_whose_windows_are_of_few_documents_is_searched_deeper():
    """Of query 0 the 40 best windows are of one document; of query 1 the first two are of two."""
    scores = np.zeros((2, 43), np.float32)
    scores[0, :40] = np.arange(40, 0, -1)
    scores[1, 40:] = [3, 2, 1]
    depths = []
    rows = of_counts(40, 1, 1, 1).search(search_of(scores, depths), np.array([[0], [1]]), 2)[1]
    assert rows.tolist() == [[0, 3], [1, 2]]
    assert depths == [4, 8, 16, 32, 43]


@pytest.mark.parametrize("seed", range(20))
def test_any_windows_are_ranked_as_by_brute_force(seed):
    """Of many ties."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 9, size=rng.integers(1, 30))
    scores = rng.integers(0, 6, size=(7, counts.sum())).astype(np.float32)
    k = int(rng.integers(1, len(counts) + 1))
    queries = np.arange(7)[:, None]
    found_scores, rows = of_counts(*counts).search(search_of(scores, []), queries, k)
    bounds = np.cumsum(counts)[:-1]
    for query in range(7):
        best = np.array([each.max() for each in np.split(scores[query], bounds)])
        order = np.lexsort((-np.arange(len(best)), -best))[:k]
        assert rows[query].tolist() == order.tolist()
        assert found_scores[query].tolist() == best[order].tolist()


def test_fewer_windows_than_asked_for_are_found():
    """An approximate index may find none."""

    def search(queries, k):
        scores = np.full((1, k), -np.inf, np.float32)
        rows = np.full((1, k), -1)
        scores[0, 0], rows[0, 0] = 1, 3
        return scores, rows

    scores, rows = of_counts(3, 1, 2).search(search, np.zeros((1, 1)), 2)
    assert rows.tolist() == [[1, -1]] and scores.tolist() == [[1, -np.inf]]


def test_an_index_that_finds_no_more_is_not_searched_to_the_end():
    """It reaches 3 windows of one document, of a corpus of 3,000."""
    depths = []

    def search(queries, k):
        depths.append(k)
        scores = np.full((1, k), -np.inf, np.float32)
        rows = np.full((1, k), -1)
        scores[0, :3], rows[0, :3] = [3, 2, 1], [0, 1, 2]
        return scores, rows

    _, rows = of_counts(1000, 1000, 1000).search(search, np.zeros((1, 1)), 2)
    assert rows.tolist() == [[0, -1]]
    assert len(depths) == 2, "the second search found no more than the first"


def test_a_place_without_a_window_is_no_document():
    """At a depth of 4 an index finds a window of one document, at one of 8 those of two."""

    def search(queries, k):
        found = [5, 0] if k >= 8 else [5]
        scores = np.full((1, k), -np.inf, np.float32)
        rows = np.full((1, k), -1)
        scores[0, : len(found)] = range(len(found), 0, -1)
        rows[0, : len(found)] = found
        return scores, rows

    _, rows = of_counts(3, 1, 2, 9).search(search, np.zeros((1, 1)), 2)
    assert rows.tolist() == [[2, 0]]


def test_windows_are_texts_in_the_order_of_documents_in_any_spans(
    backbone, collection_folder, monkeypatch
):
    monkeypatch.setattr(room, "DOCS_AT_ONCE", 7)
    model, corpus = world(backbone, collection_folder, Windows(4, 2))
    form = model.reads.docs
    rows = np.arange(50)
    expected, counts = form.windows_of(corpus.docs, rows)
    windows = WindowsOfCorpus(corpus.docs, form, 50)
    assert windows.n_windows == len(expected) > 50
    texts = windows.texts()
    for first, stop in ((0, len(expected)), (3, 4), (17, 60), (5, 5)):
        tokens = texts.tokens_between(first, stop)
        assert len(tokens) == stop - first
        for place in range(stop - first):
            np.testing.assert_array_equal(tokens[place], expected[first + place])
    np.testing.assert_array_equal(windows.docs(np.arange(len(expected))), np.repeat(rows, counts))
    assert windows.docs(np.array([[-1, 0]])).tolist() == [[-1, 0]]


def test_a_corpus_in_use_is_searched_by_windows(backbone):
    torch.manual_seed(1)
    model = DualEncoder(backbone, max_length=24, windows=Windows(3, 3))
    texts = [" ".join(f"w{(7 * n + m) % 60}" for m in range(1 + n % 11)) for n in range(40)]
    retriever = Retriever(model)
    found = retriever.search("w3 w4", texts, k=6)
    scores = retriever.score([("w3 w4", text) for text in texts])
    order = np.lexsort((-np.arange(40), -scores))[:6]
    assert [each.place for each in found] == order.tolist()
    assert [each.score for each in found] == pytest.approx(scores[order].tolist(), abs=1e-3)
    assert len(retriever.search("w3", texts, k=100)) == 40


def test_a_folder_of_embeddings_is_refused_where_documents_have_many(backbone, tmp_path):
    model = DualEncoder(backbone, max_length=24, windows=Windows(3, 3))
    with pytest.raises(InputError, match="an encoding in a folder needs one embedding"):
        CorpusEncoding(Retriever(model), table_of_texts(["w1"]), tmp_path / "encoding")
    assert not (tmp_path / "encoding").exists()


def _search(rank: int, backbone: str, folder: str, results: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{results}/store", rank=rank, world_size=2
    )
    model, corpus = world(backbone, Path(folder), Windows(4, 2))
    found = search_corpus(model, corpus, QUERIES[rank::2], TemporaryEncodings(Path(results)))
    np.savez(Path(results, f"{rank}.npz"), **found._asdict())
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_find_what_one_finds(backbone, collection_folder, tmp_path):
    run_ranks(_search, backbone, str(collection_folder), str(tmp_path))
    model, corpus = world(backbone, collection_folder, Windows(4, 2))
    alone = search_corpus(model, corpus, QUERIES, TemporaryEncodings(tmp_path / "alone"))
    for rank in (0, 1):
        part = np.load(tmp_path / f"{rank}.npz")
        assert part["query_rows"].tolist() == QUERIES[rank::2].tolist()
        for place, query in enumerate(part["query_rows"].tolist()):
            rows, scores = alone.of(query)
            assert part["doc_rows"].reshape(-1, K)[place].tolist() == rows.tolist()
            np.testing.assert_allclose(part["values"].reshape(-1, K)[place], scores, atol=1e-5)
