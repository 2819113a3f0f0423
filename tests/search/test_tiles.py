"""Documents on a GPU: sent as they are stored while it computes, once where they stay, and without
a wait for what it computes. The GPU is pretended.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.search import exact, tiles
from ltr.search.index import DenseIndex
from ltr.search.tiles import Tiles, TilesOnGPU
from ltr.similarity import Dot, similarity_of
from tests.search.indexed import EVERY, build, embeddings
from tests.search.pretended_gpu import PretendedGPU
from tests.search.stored import stored

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(tiles, "DOCS_AT_ONCE", 64)
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 10)
    monkeypatch.setattr(exact, "faiss", None)


def copies(gpu):
    """Rows and numbers of each copy of the last pass over documents."""
    return [(len(what[1]), what[1].dtype) for kind, what in gpu.sending.log if kind == "copy"]


@EVERY
@pytest.mark.parametrize("numbers", ["float16", "int8", "float32"])
def test_halves_travel_as_halves_and_are_found_as_on_the_cpu(
    tmp_path, similarity, numbers, monkeypatch
):
    """200 documents in shards of 30: tiles of 64 begin and end inside of shards."""
    docs = stored(tmp_path / "shards", embeddings(200, shift=0.5), numbers, rows=30).embeddings()
    queries = embeddings(23, seed=1)
    scores, rows = build(docs, similarity).search(queries, 7)
    gpu = PretendedGPU(monkeypatch)
    scores_there, rows_there = build(docs, similarity).search(queries, 7)
    np.testing.assert_array_equal(rows_there, rows)
    np.testing.assert_allclose(scores_there, scores, rtol=1e-5, atol=1e-6)
    dtype = torch.float16 if numbers == "float16" else torch.float32
    assert copies(gpu) == [(64, dtype), (64, dtype), (64, dtype), (8, dtype)]


@pytest.mark.parametrize("k", [3, 70, 1000])
@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_where_no_number_is_rounded_scores_and_rows_are_those_of_the_cpu(
    similarity, k, monkeypatch
):
    """Whole numbers, many of them equal: ties inside of tiles, across them, and at the k-th place.
    The mean, which is taken from distances, is 0.
    """
    rng = np.random.default_rng(0)
    half = rng.integers(-1, 2, (150, 4)).astype(np.float32)
    docs = np.concatenate([half, -half])
    queries = rng.integers(-1, 2, (33, 4)).astype(np.float32)
    expected = build(docs, similarity).search(queries, k)
    PretendedGPU(monkeypatch)
    found = build(docs, similarity).search(queries, k)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


def test_a_tie_is_looked_at_again_only_where_it_is_at_the_last_place(monkeypatch):
    """Query 0 finds documents 0 to 9 equal, of which two are wanted; query 1 finds them last, behind
    two better ones of another tile.
    """
    docs = np.zeros((130, 2), np.float32)
    docs[:10] = 1
    docs[100:102] = [[0, 3], [0, 2]]
    queries = np.array([[1, 0], [0, 1]], np.float32)
    PretendedGPU(monkeypatch)
    again = []
    best_by_key = exact.best_by_key

    def recorded(queries, *args):
        again.append(queries.tolist())
        return best_by_key(queries, *args)

    monkeypatch.setattr(exact, "best_by_key", recorded)
    scores, rows = build(docs, "dot").search(queries, 2)
    assert rows.tolist() == [[9, 8], [100, 101]] and scores.tolist() == [[1, 1], [3, 2]]
    assert again == [[[1.0, 0.0]]] * 3  # with each tile


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for a GPU: reads of a number, and of how many there are."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        booleans = [
            index
            for index in (args[1] if name.startswith(("index", "_index")) else ())
            if isinstance(index, torch.Tensor) and index.dtype == torch.bool
        ]
        if name in self.READS or booleans:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@EVERY
def test_the_host_waits_as_often_for_many_tiles_as_for_few(similarity, monkeypatch):
    """On top comes one wait for each tile: for its place to be free."""
    gpu = PretendedGPU(monkeypatch)
    to_host = Counter()
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: to_host.update(["cpu"]) or cpu(tensor))
    counts = []
    for n in (65, 640):  # 2 tiles, 10 tiles
        to_host.clear()
        index = build(embeddings(n), similarity)
        with Reads() as reads:
            index.search(embeddings(25, seed=1), 5)
        counts.append((reads.counts, to_host.copy()))
        assert len(copies(gpu)) == -(-n // 64)
    assert counts[0] == counts[1]
    assert counts[0][1]["cpu"] == 2  # the keys, and which of them are open
    assert sum(counts[0][0].values()) <= 1


def test_no_place_is_overwritten_before_it_was_read(monkeypatch):
    """A place on the host: the host has waited for what was sent from there. A place on the GPU:
    sending has waited for the tile that lay there to be prepared.
    """
    expected = list(Tiles(embeddings(300), Dot(), None))
    gpu = PretendedGPU(monkeypatch)
    prepare = Dot.prepare_in_place
    read_into = tiles.read_into

    def copies_of(stream, place, n):
        """The tiles that the first n entries of a stream's log have copied from or to a place."""
        copies = [what for kind, what in stream.log[:n] if kind == "copy"]
        return [tile for tile, what in enumerate(copies) if place in (x.data_ptr() for x in what)]

    def recorded_prepare(similarity, rows, centre):
        prepare(similarity, rows, centre)
        gpu.computing.log.append(("prepared", len(rows)))

    def checked_read(out, docs, span):
        place = torch.from_numpy(out).data_ptr()
        known = copies_of(gpu.sending, place, gpu.sending.n_known)
        assert copies_of(gpu.sending, place, None) == known
        read_into(out, docs, span)

    monkeypatch.setattr(Dot, "prepare_in_place", recorded_prepare)
    monkeypatch.setattr(tiles, "read_into", checked_read)
    docs = TilesOnGPU(embeddings(300), Dot(), None, CPU, stay=False)
    for tile, expected_tile in zip(docs, expected, strict=True):
        assert tile.equal(expected_tile)
    assert len(copies(gpu)) == 5
    n_prepared = 0  # tiles that were prepared before what comes next
    for number, (kind, what) in enumerate(gpu.sending.log):
        if kind == "wait":
            done = gpu.computing.log[: what.n_done]
            n_prepared = sum(kind == "prepared" for kind, _ in done)
        else:
            before = copies_of(gpu.sending, what[0].data_ptr(), number)
            assert not before or max(before) < n_prepared


@pytest.fixture
def reads(monkeypatch):
    """How many rows of documents each read from where they lie had."""
    reads = []
    read_into = tiles.read_into

    def recorded(out, docs, span):
        reads.append(span.stop - span.start)
        read_into(out, docs, span)

    monkeypatch.setattr(tiles, "read_into", recorded)
    return reads


@EVERY
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_documents_that_stay_are_read_once(similarity, dtype, reads, monkeypatch):
    docs = embeddings(200, shift=0.5).astype(dtype)
    queries = embeddings(23, seed=1)
    expected = build(docs, similarity).search(queries, 7)
    gpu = PretendedGPU(monkeypatch)
    index = build(docs, similarity, stay=True)
    for _ in range(3):
        scores, rows = index.search(queries, 7)
        np.testing.assert_array_equal(rows, expected[1])
        np.testing.assert_allclose(scores, expected[0], rtol=1e-5, atol=1e-6)
    assert reads == [64, 64, 64, 8]
    assert len(copies(gpu)) == 4


def test_documents_stay_only_where_asked_and_within_a_quarter_of_the_free_memory(
    reads, monkeypatch
):
    """200 halves of 16 dimensions are 6,400 bytes."""
    gpu = PretendedGPU(monkeypatch)
    docs = embeddings(200).astype(np.float16)
    for stay, n_free, n_passes in [(True, 25600, 1), (True, 25599, 2), (False, 25600, 2)]:
        gpu.n_free = n_free
        reads.clear()
        index = build(docs, "dot", stay=stay)
        for _ in range(2):
            index.search(docs[:3], 2)
        assert sum(reads) == 200 * n_passes


def test_a_pass_that_was_broken_off_leaves_nothing_there(reads, monkeypatch):
    PretendedGPU(monkeypatch)
    docs = TilesOnGPU(embeddings(200), Dot(), None, CPU, stay=True)
    next(iter(docs))
    assert sum(len(tile) for tile in docs) == 200 and sum(reads) == 64 + 200


def test_of_two_that_search_at_first_one_keeps_what_it_sends(reads, monkeypatch):
    PretendedGPU(monkeypatch)
    docs = TilesOnGPU(embeddings(200), Dot(), None, CPU, stay=True)
    rooms = []
    room_for_all = docs._room_for_all
    monkeypatch.setattr(docs, "_room_for_all", lambda: rooms.append(1) or room_for_all())
    first, second = iter(docs), iter(docs)
    pairs = list(zip(first, second, strict=True))
    assert all(one.equal(other) for one, other in pairs) and len(rooms) == 1
    reads.clear()
    assert sum(len(tile) for tile in docs) == 200 and not reads


def test_where_memory_is_taken_meanwhile_documents_are_sent_each_time(reads, monkeypatch):
    PretendedGPU(monkeypatch)
    docs = embeddings(200)
    empty = torch.empty

    def taken(*shape, **options):
        if shape == ((200, 16),):
            raise torch.OutOfMemoryError
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", taken)
    index = build(docs, "dot", stay=True)
    for _ in range(2):
        index.search(docs[:3], 2)
    assert sum(reads) == 400


def test_queries_beyond_the_memory_for_them_let_all_documents_go_by_again(reads, monkeypatch):
    """Tiles of 10 queries of 16 dimensions: 2 of them are 320 numbers."""
    docs, queries = embeddings(200), embeddings(45, seed=1)
    expected = build(docs, "dot").search(queries, 7)
    monkeypatch.setattr(exact, "NUMBERS_ON_GPU", 320 + 159)
    PretendedGPU(monkeypatch)
    scores, rows = build(docs, "dot").search(queries, 7)
    assert sum(reads) == 200 * 3
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_allclose(scores, expected[0], rtol=1e-5, atol=1e-6)


def test_queries_may_be_an_array_that_runs_backwards(monkeypatch):
    docs, queries = embeddings(200), embeddings(5, seed=1)[::-1]
    expected = build(docs, "dot").search(queries.copy(), 7)
    PretendedGPU(monkeypatch)
    np.testing.assert_array_equal(build(docs, "dot").search(queries, 7)[1], expected[1])


def test_a_share_without_documents_finds_none(monkeypatch):
    PretendedGPU(monkeypatch)
    mean = np.zeros(16, np.float32)
    index = DenseIndex.build(embeddings(0), similarity_of("euclidean"), mean=mean)
    scores, rows = index.search(embeddings(3), 2)
    assert (rows == -1).all() and (scores == -np.inf).all()


def test_only_a_gpu_of_cuda_is_sent_documents():
    docs = embeddings(5)
    for device in ("cpu", "mps"):
        assert not tiles.tiles_of(docs, Dot(), None, torch.device(device)).on_gpu
    on_gpu = tiles.tiles_of(docs, Dot(), None, torch.device("cuda:1"))
    assert on_gpu.on_gpu and on_gpu.device == torch.device("cuda:1")
