"""A corpus in shares: what one, two and three processes find together is what numpy finds in
float64.
"""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from ltr import processes
from ltr.data.collection import open_collection
from ltr.data.layouts import SingleTexts
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.processes import by_every_rank, rank, world_size
from ltr.search import embeddings, exact, shards
from ltr.search.embed_texts import encode_in_memory
from ltr.search.embedder import Embedder
from ltr.search.encoding_places import TemporaryEncodings, texts_of_store
from ltr.search.index import DenseIndex
from ltr.search.shards import Shards, encode_everywhere, query_spans, share_of
from ltr.similarity import similarity_of
from ltr.spans import RowSpans
from tests.child_processes import run_ranks

SIMILARITIES = ("dot", "cosine", "euclidean", "squared_euclidean")
EVERY = pytest.mark.parametrize("similarity", SIMILARITIES)
RNG = np.random.default_rng(0)
DOCS, QUERIES = (RNG.standard_normal((n, 8)).astype(np.float32) + 0.5 for n in (200, 23))
# pairs of a query and a document
AT = RNG.integers(0, 23, 90)
OF = RNG.integers(0, 200, 90)
TIED = np.array(
    [[4, 0], [0, 4], [-4, 0], [0, -4]], dtype=np.float32
)  # four places, of 50 documents each
TIED_DOCS = TIED[RNG.permutation(200) % 4]  # their mean is 0: every number is exact
NEAR = np.array(
    [[1, 0, 0], [0, 1, 2**-11.5], [-1, 0, 0], [0, -1, -(2**-11.5)]], dtype=np.float32
)  # to the origin


def every_score(queries: np.ndarray, docs: np.ndarray, similarity: str) -> np.ndarray:
    """``[Q, D]`` float64."""
    queries = queries.astype(np.float64)
    docs = docs.astype(np.float64)
    distances = np.sqrt(((queries[:, None] - docs) ** 2).sum(axis=2))
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(docs, axis=1)
    products = queries @ docs.T
    scores = {
        "dot": products,
        "cosine": products / lengths,
        "euclidean": -distances,
        "squared_euclidean": -(distances**2),
    }
    return scores[similarity]


def best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest and their columns; of equal ones the later column first."""
    rows = np.stack([np.lexsort((np.arange(len(row)), row))[::-1][:k] for row in scores])
    return np.take_along_axis(scores, rows, axis=1), rows


def corpus(
    docs: np.ndarray = DOCS, similarity: str = "dot", *options: str, empty: int = -1
) -> Shards:
    """This process's share: every W-th document; that of ``empty`` goes to the last process."""
    owners = np.arange(len(docs)) % world_size()
    owners[owners == empty] = world_size() - 1
    rows = np.flatnonzero(owners == rank())
    return Shards(docs[rows], RowSpans.from_rows(rows), similarity_of(similarity), *options)


def tiles() -> list[tuple[object, str, int]]:
    """So small that there are many, of queries, documents and what is exchanged."""
    return [
        (exact, "QUERIES_AT_ONCE", 10),
        (exact, "DOCS_AT_ONCE", 32),
        (embeddings, "DOCS_AT_ONCE", 32),
        (shards, "DOCS_AT_ONCE", 7),
        (processes, "ROWS_AT_ONCE", 11),
        (shards, "QUERIES_AT_ONCE", 5),
    ]


@pytest.fixture
def small(monkeypatch):
    for module, name, size in tiles():
        monkeypatch.setattr(module, name, size)


def read(backbone: str, folder: str) -> tuple[TextEncoder, TokenStore, SingleTexts]:
    tokenizer = load_tokenizer(backbone)
    return TextEncoder(load_encoder(backbone)[0]), TokenStore.open(open_collection(folder).corpus, tokenizer), SingleTexts(
        tokenizer, 12
    )  # fmt: skip


# One process


@EVERY
def test_the_best_are_those_of_brute_force(small, similarity):
    scores, rows = corpus(similarity=similarity).search(QUERIES, 9)
    expected, expected_rows = best(every_score(QUERIES, DOCS, similarity), 9)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert scores.dtype == np.float32 and rows.dtype == np.int64


@EVERY
@pytest.mark.parametrize("k", [5, 70])
def test_of_equal_scores_the_larger_row_comes_first_and_stays(small, similarity, k):
    found = corpus(TIED_DOCS, similarity).search(TIED, k)
    np.testing.assert_array_equal(found[1], best(every_score(TIED, TIED_DOCS, similarity), k)[1])
    for ours, flat in zip(
        found, DenseIndex.build(TIED_DOCS, similarity_of(similarity)).search(TIED, k), strict=True
    ):
        np.testing.assert_array_equal(ours, flat)


def test_documents_have_the_numbers_that_they_are_given():
    """Documents 3, 4 and 9 at 1, 5 and 2, of which the query at 2 has the products 2, 10 and 4; the
    fourth is not there.
    """
    alone = Shards(
        np.array([[1.0], [5.0], [2.0]], dtype=np.float32),
        RowSpans.from_rows(np.array([3, 4, 9])),
        similarity_of("dot"),
    )
    scores, rows = alone.search(np.array([[2.0]], dtype=np.float32), 4)
    assert rows.tolist() == [[4, 9, 3, -1]] and scores.tolist() == [[10, 4, 2, -np.inf]]
    scores, distances = alone.scores_of_pairs(
        np.array([[2.0], [0.0]], dtype=np.float32), np.array([1, 0, 0]), np.array([9, 9, 4])
    )
    assert scores.tolist() == [0, 4, 10] and distances.tolist() == [2, 0, 3]
    with pytest.raises(AssertionError, match="every document of a pair is in one share"):
        alone.scores_of_pairs(QUERIES[:, :1], np.array([0]), np.array([5]))


def test_a_root_makes_equal_scores_of_squares_that_differ():
    """In float32 the roots of 1 and of 1 + 2⁻²³ are both 1: the nearer documents are found, though
    their rows are smaller.
    """
    scores, rows = corpus(NEAR, "euclidean").search(np.zeros((1, 3), dtype=np.float32), 3)
    assert rows.tolist() == [[3, 2, 0]] and scores.tolist() == [[-1, -1, -1]]


@EVERY
def test_scores_and_distances_of_pairs(small, similarity):
    scores, distances = corpus(similarity=similarity).scores_of_pairs(QUERIES, AT, OF)
    np.testing.assert_allclose(
        scores, every_score(QUERIES, DOCS, similarity)[AT, OF], rtol=1e-5, atol=1e-5
    )
    a = QUERIES
    d = DOCS
    if similarity == "cosine":
        a, d = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, d))
    np.testing.assert_allclose(distances, -every_score(a, d, "euclidean")[AT, OF], rtol=1e-5)
    assert scores.dtype == distances.dtype == np.float32


def test_the_recall_of_an_approximate_index():
    approximate = corpus(DOCS, "euclidean", "IVF16,Flat")
    found = approximate.search(QUERIES, 10)[1]
    expected = best(every_score(QUERIES, DOCS, "euclidean"), 10)[1]
    share = np.mean(
        [
            len(set(one) & set(other)) / 10
            for one, other in zip(found.tolist(), expected.tolist(), strict=True)
        ]
    )
    assert 0.2 < share < 1 and approximate.recall(QUERIES, 10) == pytest.approx(share)
    assert (
        corpus(similarity="euclidean").recall(QUERIES, 10)
        == corpus(DOCS, "euclidean", "IVF1,Flat").recall(QUERIES, 300)
        == 1
    )


def encoded(backbone: str, folder: str, out: Path):
    """The encoding of the corpus, in three shards, by all processes."""
    encoder, store, form = read(backbone, folder)
    embedder = Embedder(encoder, form, ["a model"], nullcontext, "32-true")
    return TemporaryEncodings(out).encoding_of(embedder, texts_of_store(store), "float32")


def test_a_share_is_that_of_all_for_one_process(backbone, collection_folder, tmp_path):
    world = read(backbone, str(collection_folder))
    expected = encode_in_memory(*world, np.arange(720))
    with encoded(backbone, str(collection_folder), tmp_path) as encoding:
        docs, rows = share_of(encoding)
        np.testing.assert_allclose(docs[:], expected, atol=1e-6)
        assert encoding.plan.n_shards == 3
    assert len(rows) == 720
    np.testing.assert_array_equal(rows[np.arange(720)], np.arange(720))
    some = np.array([7, 0, 700, 7])
    np.testing.assert_allclose(encode_everywhere(*world, some), expected[some], atol=1e-5)
    assert list(tmp_path.iterdir()) == [], "the encoding has gone"
    with pytest.raises(ValueError, match="at least one text"):
        encode_everywhere(*world, some[:0])


@pytest.mark.parametrize(
    ("k", "sizes"),
    [(1, [900]), (2, [500, 400]), (10, [100] * 9), (100, [10] * 90), (2000, [1] * 900)],
)
def test_queries_are_searched_for_in_whole_tiles(monkeypatch, k, sizes):
    """1,000 documents may be found at once; a tile has 100 queries, where so many have room."""
    monkeypatch.setattr(shards, "FOUND_AT_ONCE", 1000)
    monkeypatch.setattr(shards, "QUERIES_AT_ONCE", 100)
    cut = list(query_spans(900, k))
    assert [span.stop - span.start for span in cut] == sizes and cut[-1].stop == 900


# Several processes


def results(backbone: str, folder: str, out: Path) -> dict[str, np.ndarray]:
    """By name, what must be the same whatever the number of processes."""
    found = {}
    for similarity in SIMILARITIES:
        found[f"scores {similarity}"], found[f"rows {similarity}"] = corpus(
            similarity=similarity
        ).search(QUERIES, 9)
        found[f"ties {similarity}"] = corpus(TIED_DOCS, similarity).search(TIED, 70)[1]
        found[f"pairs {similarity}"] = np.stack(
            corpus(similarity=similarity, empty=0).scores_of_pairs(QUERIES, AT, OF)
        )
    found["scores of two"], found["rows of two"] = corpus(DOCS[:2], "euclidean").search(
        QUERIES, 4
    )  # of three, one has none
    found["rows of the rest"] = corpus(DOCS, "cosine", empty=0).search(QUERIES, 9)[1]
    apart = corpus(DOCS, "dot", "IVF1,Flat", empty=0)  # one cluster of each share: exact
    found["rows of faiss"], found["recall"] = (
        apart.search(QUERIES, 9)[1],
        np.array(apart.recall(QUERIES, 9)),
    )
    found["rows of roots"] = corpus(NEAR, "euclidean").search(
        np.zeros((1, 3), dtype=np.float32), 3
    )[1]
    encoder, store, form = read(backbone, folder)
    found["encoded"] = encode_everywhere(encoder, store, form, np.array([7, 0, 700, 7]))
    found["one text"] = encode_everywhere(encoder, store, form, np.array([3]))
    with encoded(backbone, folder, out) as encoding:
        docs, rows = share_of(encoding)
        # Shards of 256, 256 and 208 texts: the first of two processes has the first and the last.
        n_own = {1: [720], 2: [464, 256], 3: [256, 256, 208]}[world_size()][rank()]
        assert len(docs) == len(rows) == n_own
        found["rows of texts"] = Shards(docs, rows, similarity_of("cosine")).search(
            found["encoded"], 5
        )[1]
    return found


def no_memory(*_: object) -> None:
    raise OSError("no memory")


def _process(number: int, count: int, out: Path, backbone: str, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=number, world_size=count
    )
    for module, name, size in tiles():
        setattr(module, name, size)
    found = results(backbone, folder, out)
    torch.save(found, out / f"{number}")
    broken = DOCS.copy()
    broken[count * 3 + 1] = np.nan  # of process 1
    with pytest.raises(
        InputError, match=f"embeddings must be finite, got NaN or infinity in row {count * 3 + 1};"
    ):
        corpus(broken)
    with pytest.raises(InputError, match="the 5 clusters of 'IVF5,Flat' can't be more than the"):
        corpus(DOCS[: 5 * count - 1], "dot", "IVF5,Flat")
    with pytest.raises(InputError, match="k must be at least 1"):
        corpus().search(QUERIES, 0)
    encoder, store, form = read(backbone, folder)
    if number == 1:
        encoder.register_forward_pre_hook(no_memory)
    with pytest.raises(OSError, match="no memory"):
        encode_everywhere(encoder, store, form, np.arange(6))
    assert by_every_rank(lambda: number) == number
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_several_processes_find_what_one_finds(small, backbone, collection_folder, tmp_path, count):
    alone = results(backbone, str(collection_folder), tmp_path)
    run_ranks(_process, count, tmp_path, backbone, str(collection_folder), n_ranks=count)
    each = [torch.load(tmp_path / str(number), weights_only=False) for number in range(count)]
    for name, expected in alone.items():
        for found in each:
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(found[name], each[0][name], err_msg=name)
    assert alone["recall"] == 1
