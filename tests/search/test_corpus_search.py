"""Evaluation by search: what is found, its grades, two processes against one, what a killed search
leaves.
"""

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from ltr.batch import RankingBatch
from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.models.dual_encoder import DualEncoder
from ltr.processes import rank, shared_folder, world_size
from ltr.search import corpus_search as room
from ltr.search import encoding_places, exact, shards
from ltr.search.corpus_search import SearchedCorpus, batch_of_found, search_corpora, search_corpus
from ltr.search.encoding_places import EncodingsOfRun, TemporaryEncodings
from ltr.search.faiss_index import FaissIndex
from tests.child_processes import fork, run_ranks
from tests.world.collections import write_collection

# of the tiny collection
DOCS = 720
QUERIES = 90


def made(backbone: str, folder, **options) -> tuple[DualEncoder, SearchedCorpus, Collection]:
    """A model of two towers that differ, and the corpus of a collection."""
    collection = open_collection(str(folder))
    torch.manual_seed(1)
    model = DualEncoder(backbone, doc_backbone=backbone, max_length=24, projection=8)
    tables = collection.queries, collection.corpus
    stores = (form.store(table) for table, form in zip(tables, model.reads, strict=True))
    return model, SearchedCorpus(*stores, model.reads, **({"depth": 10} | options)), collection


def matrix(values: np.ndarray, k: int = 10) -> np.ndarray:
    """``[Q, k]``, where every query has found k documents."""
    return values.reshape(-1, k)


@pytest.fixture
def world(backbone, collection_folder):
    return made(backbone, collection_folder)


def every_score(model: DualEncoder, corpus: SearchedCorpus, query_rows: np.ndarray) -> torch.Tensor:
    """``[Q, D]`` float64, of every query and document."""
    with torch.no_grad():
        model.eval()
        queries = model.query_tower(corpus.reads.queries.lay_out(corpus.queries, query_rows))
        docs = model.doc_tower(corpus.reads.docs.lay_out(corpus.docs, np.arange(len(corpus.docs))))
        model.train()
    return model.similarity.score(queries.double(), docs.double())


def test_a_query_finds_what_brute_force_finds(world, tmp_path):
    """Queries in any order; dropout is off though the model trains; nothing stays in the folder."""
    model, corpus, _ = world
    rows = np.random.default_rng(0).permutation(QUERIES)[:20]
    found = search_corpus(model, corpus, rows, TemporaryEncodings(tmp_path / "run"))
    assert found.query_rows.tolist() == sorted(rows.tolist())
    best = every_score(model, corpus, found.query_rows).topk(10)
    np.testing.assert_array_equal(matrix(found.doc_rows), best.indices)
    np.testing.assert_allclose(matrix(found.values), best.values, atol=1e-5)
    assert not list((tmp_path / "run").iterdir()) and model.training


@pytest.mark.parametrize("queries_are_docs", [False, True])
def test_queries_in_blocks_of_any_size_find_the_same(
    world, tmp_path, monkeypatch, queries_are_docs
):
    """Bit by bit, with tiles of one query, which are the same in every block."""
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 1)
    model, corpus, _ = world
    if queries_are_docs:
        corpus = replace(corpus, queries=corpus.docs, own_docs=np.arange(DOCS))
    rows = np.random.default_rng(0).permutation(QUERIES)[:20]
    whole = search_corpus(model, corpus, rows, TemporaryEncodings(tmp_path))
    for queries_of_block in (1, 2, 7):
        monkeypatch.setattr(shards, "FOUND_AT_ONCE", 11 * queries_of_block)
        found = search_corpus(model, corpus, rows, TemporaryEncodings(tmp_path))
        assert found.query_rows.tolist() == sorted(rows.tolist())
        np.testing.assert_array_equal(found.offsets, whole.offsets)
        np.testing.assert_array_equal(found.doc_rows, whole.doc_rows)
        np.testing.assert_array_equal(found.values, whole.values)


def test_an_index_of_faiss_is_the_one_that_was_asked_for(world, tmp_path, monkeypatch):
    """One cluster: exact, but built by faiss."""
    model, corpus, _ = world
    built = []
    build = FaissIndex.build

    def counted(docs, prepare, factory, **options):
        built.append(factory)
        return build(docs, prepare, factory, **options)

    monkeypatch.setattr(FaissIndex, "build", counted)
    rows = np.arange(12)
    exact = search_corpus(model, corpus, rows, TemporaryEncodings(tmp_path))
    found = search_corpus(
        model, replace(corpus, index="IVF1,Flat"), rows, TemporaryEncodings(tmp_path)
    )
    assert built == ["IVF1,Flat"]
    np.testing.assert_array_equal(found.doc_rows, exact.doc_rows)


def test_texts_that_are_their_own_queries_never_find_themselves(world, tmp_path):
    model, corpus, _ = world
    corpus = replace(corpus, queries=corpus.docs, own_docs=np.arange(DOCS), depth=DOCS)
    found = search_corpus(model, corpus, np.arange(5), TemporaryEncodings(tmp_path))
    for row in range(5):
        assert sorted(found.of(row)[0].tolist()) == [doc for doc in range(DOCS) if doc != row]


def test_a_text_that_is_not_among_its_own_best_loses_the_last_one_instead(world, tmp_path):
    """Two towers: a text read as a query need not be nearest to itself read as a document."""
    model, corpus, _ = world
    corpus = replace(corpus, queries=corpus.docs, own_docs=np.arange(DOCS), depth=3)
    rows = np.arange(40)
    scores = every_score(model, corpus, rows)
    scores[rows, rows] = -torch.inf
    found = search_corpus(model, corpus, rows, TemporaryEncodings(tmp_path))
    np.testing.assert_array_equal(matrix(found.doc_rows, 3), scores.topk(3).indices)


def test_only_some_queries_are_documents(world, tmp_path):
    """Others lose nothing, in a search of the best three and of all."""
    model, corpus, _ = world
    own_docs = np.full(QUERIES, -1)
    own_docs[[1, 4, 7]] = [2, 0, 9]
    rows = np.arange(10)
    for depth in (3, DOCS):
        found = search_corpus(
            model,
            replace(corpus, own_docs=own_docs, depth=depth),
            rows,
            TemporaryEncodings(tmp_path),
        )
        scores = every_score(model, corpus, rows)
        for row in rows.tolist():
            order = scores[row].argsort(descending=True).tolist()
            if own_docs[row] >= 0:
                order.remove(own_docs[row])
            assert found.of(row)[0].tolist() == order[:depth]


def test_texts_are_read_in_the_given_precision_and_scores_are_float32(world, tmp_path):
    model, corpus, _ = world
    seen = {}
    for name in ("query_tower", "doc_tower"):
        tower = getattr(model, name)
        tower.register_forward_pre_hook(
            lambda *_, name=name: seen.update({name: torch.is_autocast_enabled("cpu")})
        )
    for half in (False, True):
        precision = partial(torch.autocast, "cpu", torch.bfloat16, enabled=half)
        found = search_corpus(
            model, corpus, np.arange(3), TemporaryEncodings(tmp_path), precision=precision
        )
        assert seen == {"query_tower": half, "doc_tower": half} and found.values.dtype == np.float32
        assert not torch.is_autocast_enabled("cpu")


def test_a_trial_searches_a_part_of_the_corpus_exactly(world, tmp_path, monkeypatch, caplog):
    model, corpus, _ = world
    monkeypatch.setattr(room, "TRIAL_DOCS", 7)
    with caplog.at_level(logging.INFO, "ltr"):
        found = search_corpus(
            model,
            replace(corpus, index="IVF8,Flat"),
            np.arange(4),
            TemporaryEncodings(tmp_path),
            trial=True,
        )
    assert np.sort(matrix(found.doc_rows, 7), axis=1).tolist() == [list(range(7))] * 4
    assert "a trial run searches 7 of 720 documents" in caplog.text


def test_no_queries_find_nothing(world, tmp_path):
    model, corpus, _ = world
    found = search_corpus(model, corpus, np.empty(0, dtype=np.int64), TemporaryEncodings(tmp_path))
    assert len(found.query_rows) == len(found.doc_rows) == 0


def test_found_documents_get_the_grades_of_their_judgements():
    """Query 7 is judged for documents 4 (grade 2), 0 (grade 0) and 9 (not found); of query 3 one
    document was found.
    """
    found = QueryLists.from_matrix(
        np.array([3, 7]),
        doc_rows=np.array([[6, -1, -1], [4, 2, 0]]),
        values=np.array([[0.5, -np.inf, -np.inf], [0.9, 0.8, 0.1]], dtype=np.float32),
    )
    batch = RankingBatch(
        labels=torch.zeros(2, 0),
        mask=torch.zeros(2, 0, dtype=torch.bool),
        query_rows=torch.tensor([7, 3]),
        doc_rows=torch.zeros(2, 0, dtype=torch.long),
        judged_rows=torch.tensor([[9, 4, 0], [6, -1, -1]]),
        judged_grades=torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]),
    )
    scores, lists = batch_of_found(found, batch)
    assert (
        lists.labels.tolist() == [[2.0, 0.0, 0.0], [3.0, 0.0, 0.0]]
        and lists.labels.dtype == torch.float32
    )
    assert lists.mask.tolist() == [[True, True, True], [True, False, False]]
    assert lists.doc_rows.tolist() == [[4, 2, 0], [6, 0, 0]]
    assert scores.tolist() == [pytest.approx([0.9, 0.8, 0.1]), [0.5, 0.0, 0.0]]
    # Document 0 is judged for the first query, 2 is not; in the second the columns behind are padding.
    assert lists.judged.tolist() == [[True, False, True], [True, False, False]]


def test_found_documents_of_unjudged_queries_have_grade_0(world, tmp_path):
    model, corpus, _ = world
    found = search_corpus(model, corpus, np.arange(2), TemporaryEncodings(tmp_path))
    nothing = torch.zeros(2, 0)
    batch = RankingBatch(nothing, nothing.bool(), torch.tensor([1, 0]), nothing.long())
    _, lists = batch_of_found(
        found, batch._replace(judged_rows=nothing.long(), judged_grades=nothing)
    )
    assert lists.labels.shape == (2, 10) and not lists.labels.any()
    assert lists.judged.shape == (2, 10) and not lists.judged.any()
    np.testing.assert_array_equal(lists.doc_rows, matrix(found.doc_rows)[::-1])


def test_a_search_that_must_fail_is_refused_before_training(world):
    _, corpus, _ = world
    corpus.check(8, {"nDCG@10": 10, "AP": None})
    for index, message in (
        ("Foo", "faiss can build"),
        ("IVF4096,Flat", "the 4096 clusters .* more than the 720 documents"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            replace(corpus, index=index).check(8, {})
        assert caught.value.option == "evaluation.index"
    with pytest.raises(
        InputError, match="as deep as the metrics look, got a depth of 10 for R@11, P@100"
    ) as caught:
        corpus.check(8, {"nDCG@10": 10, "R@11": 11, "P@100": 100})
    assert caught.value.option == "evaluation.depth"


@pytest.mark.parametrize(("n_processes", "smallest"), [(1, 720), (2, 256), (3, 208), (8, 208)])
def test_the_smallest_share_holds_the_index(world, monkeypatch, n_processes, smallest):
    """720 documents lie in shards of 256, 256 and 208, and a process has every n-th; of 8 processes,
    five have none.
    """
    _, corpus, _ = world
    monkeypatch.setattr(encoding_places, "world_size", lambda: n_processes)
    replace(corpus, index=f"IVF{smallest},Flat").check(8, {})
    message = f"the {smallest + 1} clusters .* more than the {smallest} documents"
    with pytest.raises(InputError, match=message):
        replace(corpus, index=f"IVF{smallest + 1},Flat").check(8, {})


# Files


def test_what_killed_searches_left_is_removed_and_living_ones_are_spared(world, tmp_path):
    model, corpus, _ = world

    def killed() -> None:
        with shared_folder(tmp_path, "encodings"):
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(fork(killed), 0)[1] == signal.SIGKILL
    (killed,) = tmp_path.iterdir()
    living = tmp_path / "encodings-living"
    other = tmp_path / "encodings-of-the-user"
    for folder in (living, other):
        folder.mkdir()
    with FileLock(living / "lock"):
        search_corpus(model, corpus, np.arange(2), TemporaryEncodings(tmp_path))
        assert sorted(tmp_path.iterdir()) == [living, other] and killed.name.startswith(
            "encodings-"
        )


def test_a_search_that_fails_leaves_nothing(world, tmp_path):
    model, corpus, _ = world
    with torch.no_grad():
        next(model.doc_tower.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="embeddings must be finite"):
        search_corpus(model, corpus, np.arange(2), TemporaryEncodings(tmp_path))
    assert not list(tmp_path.iterdir())


# Two processes


@contextmanager
def _folder_of_own(root: Path, name: str) -> Iterator[Path]:
    folder = root / name
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(root)


def _search(number: int, store: str, backbone: str, collection: str, index: str, out: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=number, world_size=2
    )
    assert (rank(), world_size()) == (number, 2)
    model, corpus, _ = made(backbone, collection, index=index)
    encoded = []
    model.doc_tower.register_forward_hook(
        lambda _, texts, __: encoded.append(len(texts[0].lengths))
    )
    shards.FOUND_AT_ONCE = 7 * 10  # seven queries at a time
    own = np.arange(50) if number == 0 else np.arange(50, QUERIES)
    found = search_corpus(model, corpus, own, TemporaryEncodings(out))
    n_encoded = sum(encoded)
    # As on two nodes with disks of their own.
    encoding_places.shared_folder = _folder_of_own
    encoding_places.SECONDS_UNTIL_SEEN = 0.2
    own_disk = TemporaryEncodings(Path(out, f"disk-{number}"))
    with pytest.raises(
        InputError, match="must be reached by every process, and process 1 does not"
    ):
        search_corpus(model, corpus, own, own_disk)
    np.savez(f"{out}/{number}.npz", encoded=n_encoded, **found._asdict())
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("index", ["Flat", pytest.param("HNSW16", marks=pytest.mark.long)])
def test_two_processes_encode_half_each_and_find_what_one_finds(
    backbone, collection_folder, tmp_path, index
):
    out = tmp_path / "run"
    run_ranks(_search, str(tmp_path / "store"), backbone, str(collection_folder), index, out)
    parts = [np.load(out / f"{number}.npz") for number in (0, 1)]
    assert sorted(file.name for file in out.iterdir()) == ["0.npz", "1.npz"]
    # Shards of 256, 256 and 208 texts.
    assert [int(part["encoded"]) for part in parts] == [464, 256]
    model, corpus, _ = made(backbone, collection_folder, index=index)
    alone = search_corpus(model, corpus, np.arange(QUERIES), TemporaryEncodings(tmp_path / "alone"))
    np.testing.assert_array_equal(
        np.concatenate([part["query_rows"] for part in parts]), alone.query_rows
    )
    np.testing.assert_allclose(
        np.concatenate([part["values"] for part in parts]), alone.values, atol=1e-5
    )
    assert (np.concatenate([part["doc_rows"] for part in parts]) == alone.doc_rows).mean() > 0.99


class Counted(EncodingsOfRun):
    """Counts how often texts are encoded."""

    made = 0  # of all of them: they are frozen

    @contextmanager
    def encoding_of(self, embedder, texts, numbers):
        before = set(self.run_folder.rglob("*.npy"))
        with super().encoding_of(embedder, texts, numbers) as encoding:
            Counted.made += bool(set(self.run_folder.rglob("*.npy")) - before)
            yield encoding


def test_several_corpora_are_searched_each_for_its_own_queries(backbone, world, tmp_path):
    """Three sources, of which the first and the last share a corpus: it is encoded once, though a run
    keeps the last encoding alone. Numbers are those among all: 90 queries and 720 documents of the
    first come before the 12 and 96 of the second.
    """
    model, first, _ = world
    _, second, _ = made(backbone, write_collection(tmp_path / "b", n_queries=4, seed=1))
    corpora = [
        first,
        replace(second, first_query=QUERIES, first_doc=DOCS),
        replace(first, first_query=QUERIES + 12),
    ]
    query_rows = np.array([0, 5, QUERIES + 2, QUERIES + 11, QUERIES + 12 + 5])
    run = Counted(tmp_path / "run", "evaluation")
    Counted.made = 0
    found = search_corpora(model, corpora, query_rows, lambda corpus: run)
    assert Counted.made == 2
    assert found.query_rows.tolist() == query_rows.tolist()
    expected = search_corpus(model, first, np.array([0, 5]), run)
    assert found.of(0)[0].tolist() == expected.of(0)[0].tolist()
    for query in (5, QUERIES + 12 + 5):  # the same question of both
        assert found.of(query)[0].tolist() == expected.of(5)[0].tolist()
        np.testing.assert_allclose(found.of(query)[1], expected.of(5)[1], atol=1e-5)
    alone = search_corpus(model, second, np.array([2, 11]), run)
    for query in (2, 11):
        assert found.of(QUERIES + query)[0].tolist() == (alone.of(query)[0] + DOCS).tolist()
