"""Search within a budget: what is chosen, what it finds, and what is refused."""

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ltr.errors import InputError
from ltr.search import budget as room
from ltr.search.budget import (
    Asked,
    Budget,
    bytes_of,
    clusters_of,
    index_within,
    memory_needed,
    recall_of,
    size_text,
)
from ltr.search.codes import CodedIndex, read_codes, size_of_codes, write_codes
from ltr.search.index import DenseIndex
from ltr.similarity import SIMILARITIES
from tests.child_processes import fork
from tests.search.stored import in_clusters, near, stored

DIM = 64
COSINE = SIMILARITIES["cosine"]


def asked_of(queries: np.ndarray, key: str = "q") -> Asked:
    return Asked(len(queries), key, lambda: queries)


def within(encoding, kind: str) -> int:
    """The budget that an index of a kind just fits in."""
    docs = encoding.embeddings()
    return memory_needed(kind, docs.shape, docs.shards[0].bytes_of_row)


@pytest.mark.parametrize("text", ["1.5GB", "4GB", "200MB", "7 kb", "1TB", "999MB", "1KB", "20.5KB"])
def test_sizes_are_read_as_they_are_written(text):
    assert bytes_of(size_text(bytes_of(text))) >= bytes_of(text)


def test_the_least_memory_is_what_the_docs_say():
    """Six copies of 16,384 embeddings in float32, and two tiles of scores of 200 or 1,024 queries."""
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    shape = (16384, 384)
    of_codes = memory_needed("one bit", shape, 768) - size_of_codes(*shape, None)
    of_embeddings = memory_needed("exact", shape, 768) - 16384 * 768
    assert of_codes == 16384 * (24 * 384 + 1600) and size_text(of_codes) == "178MB"
    assert of_embeddings == 16384 * (24 * 384 + 8192) and size_text(of_embeddings) == "286MB"
    assert "16,384 · (24 · dimensions + 1,600)" in page and "178 MB and 286 MB" in page


def test_sizes_by_hand():
    assert bytes_of("1.5GB") == 1_500_000_000 and bytes_of("7 kb") == 7000
    assert (
        size_text(1) == "1KB"
        and size_text(1_000_001) == "2MB"
        and size_text(5_600_000_001) == "5.7GB"
    )


@pytest.mark.parametrize("text", ["", "4", "GB", "-1GB", "0MB", "1GiB", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="--memory must be a number above 0 with a unit"):
        bytes_of(text)


def test_memory_by_hand():
    """1,000 documents of 64 halves: what is compared at a time, 6 times 1,000 × 64 floats, and two
    tiles of scores, for 1,024 queries or for the 200 that are measured; then 128 bytes a document.
    Codes have 8 bytes, and 8 of factors, beside a matrix and a mean. Of many documents 16,384 are
    compared at a time. In clusters a code has 24 bytes, twice while they are added; clusters are
    learnt of 64 documents each, of which there are four copies.
    """
    work = 6 * 4 * 1000 * 64
    assert memory_needed("exact", (1000, 64), 128) == work + 2 * 4 * 1000 * 1024 + 128_000
    work += 2 * 4 * 1000 * 200
    assert memory_needed("one bit", (1000, 64), 128) == work + 16_000 + 4 * 64 * 65
    work = 16_384 * (6 * 4 * 64 + 2 * 4 * 200)
    codes = 24 * 10**8 + 4 * 64 * (64 + 8192) + 16 * 8192
    assert memory_needed("clusters", (10**8, 64), 128) == work + 2 * codes
    assert memory_needed("clusters", (10**6, 384), 768) == 4 * 4 * 384 * 64 * 1024
    assert clusters_of(10**6) == 1024 and clusters_of(10**8) == 8192


def coded(file, docs, similarity, centre, clusters):
    """Codes that score every document again."""

    def prepare(embeddings):
        return similarity.prepare(embeddings, centre)

    write_codes(file, docs, prepare, clusters, squared=similarity.by_distance)
    codes = read_codes(file, docs.shape)
    index = CodedIndex(codes, docs, prepare, candidates=len(docs), probes=clusters or 1)
    return DenseIndex(index, similarity, centre)


@pytest.mark.parametrize("name", ["dot", "squared_euclidean", "euclidean"])
@pytest.mark.parametrize("numbers", ["float32", "float16"])
@pytest.mark.parametrize("clusters", [None, 4])
def test_codes_that_score_all_documents_again_are_exact_to_the_bit(
    tmp_path, name, numbers, clusters
):
    """Of small whole numbers no sum is rounded, in whatever order it is added up. Most scores are
    there several times: ties are broken alike.
    """
    docs = np.random.default_rng(0).integers(-3, 4, size=(600, DIM)).astype(np.float32)
    docs[300:] = -docs[:300]  # so the mean, which is subtracted from distances, is 0
    docs[17] = docs[3]
    docs[317] = docs[303]
    embeddings = stored(tmp_path / "e", docs, numbers).embeddings()
    similarity = SIMILARITIES[name]
    exact = DenseIndex.build(embeddings, similarity)
    again = coded(tmp_path / "codes", embeddings, similarity, exact.centre, clusters)
    queries = np.random.default_rng(1).integers(-3, 4, size=(20, DIM)).astype(np.float32)
    for k in (10, 600):
        found, expected = again.search(queries, k), exact.search(queries, k)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        assert recall_of(found, expected) == 1.0


BRUTE_FORCE = {
    "dot": lambda q, d: q @ d,
    "cosine": lambda q, d: q @ d / np.sqrt((q @ q) * (d @ d)),
    "squared_euclidean": lambda q, d: -((q - d) @ (q - d)),
    "euclidean": lambda q, d: -np.sqrt((q - d) @ (q - d)),
}


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
@pytest.mark.parametrize("numbers", ["float16", "int8"])
@pytest.mark.parametrize("clusters", [None, 4])
def test_codes_that_score_all_documents_again_are_brute_force(tmp_path, name, numbers, clusters):
    """In float64, pair by pair, of the embeddings as they are stored."""
    embeddings = stored(tmp_path / "e", in_clusters(300, DIM), numbers).embeddings()
    similarity = SIMILARITIES[name]
    centre = DenseIndex.build(embeddings, similarity).centre
    again = coded(tmp_path / "codes", embeddings, similarity, centre, clusters)
    docs = embeddings[:].astype(np.float64)
    queries = near(docs, 10)
    scores, rows = again.search(queries, 300)
    score = BRUTE_FORCE[name]
    by_hand = np.array([[score(q, d) for d in docs] for q in queries.astype(np.float64)])
    assert (np.sort(rows, axis=1) == np.arange(300)).all()
    np.testing.assert_allclose(
        scores, np.take_along_axis(by_hand, rows, axis=1), rtol=1e-5, atol=1e-4
    )
    assert (np.diff(scores, axis=1) <= 0).all()


def test_codes_are_of_the_size_that_is_said(tmp_path):
    docs = in_clusters(3000, DIM)
    for clusters in (None, 16):
        file = tmp_path / f"codes-{clusters}"
        write_codes(file, docs, lambda x: x, clusters, squared=False)
        assert abs(file.stat().st_size - size_of_codes(3000, DIM, clusters)) < 2000


def test_a_budget_for_all_embeddings_gives_exact_search(tmp_path):
    docs = in_clusters(2000, DIM)
    encoding = stored(tmp_path / "e", docs, "float32")
    chosen = index_within(Budget(within(encoding, "exact"), 10), encoding, COSINE, None)
    queries = near(docs, 20)
    _, rows = chosen.index.search(queries, 10)
    unit = docs / np.linalg.norm(docs, axis=1, keepdims=True)
    assert chosen.kind == "exact" and chosen.recall == 1.0
    assert (rows == np.argsort(-(queries @ unit.T), axis=1)[:, :10]).mean() > 0.99
    assert not (encoding.folder / "indexes").exists()


def test_a_smaller_budget_gives_codes_with_the_recall_that_was_measured(tmp_path):
    docs = in_clusters(5000, DIM)
    encoding = stored(tmp_path / "e", docs)
    memory = within(encoding, "exact") - 1
    queries = near(docs, 100)
    chosen = index_within(Budget(memory, 10), encoding, COSINE, asked_of(queries))
    assert chosen.kind == "one bit" and chosen.recall >= 0.95
    exact = DenseIndex.build(encoding.embeddings(), COSINE).search(queries, 10)
    assert recall_of(chosen.index.search(queries, 10), exact) == chosen.recall
    (manifest,) = (encoding.folder / "indexes").glob("*.json")
    assert [*json.loads(manifest.read_text())["measured"].values()][0]["recall"] == chosen.recall

    # The second start neither learns codes again nor measures.
    (folder,) = (file for file in manifest.parent.iterdir() if file.is_dir())
    before = (folder / "index.faiss").stat()
    again = Asked(100, "q", lambda: pytest.fail("it measures again"))
    assert index_within(Budget(memory, 10), encoding, COSINE, again).recall == chosen.recall
    assert (folder / "index.faiss").stat() == before


def test_clusters_where_there_are_many_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "FEWEST_FOR_CLUSTERS", 2000)
    docs = in_clusters(4000, DIM)
    encoding = stored(tmp_path / "e", docs)
    memory = within(encoding, "clusters")
    assert memory < within(encoding, "exact")
    chosen = index_within(Budget(memory, 10), encoding, COSINE, asked_of(near(docs, 50)))
    assert chosen.kind == "clusters" and chosen.recall >= 0.95
    # With less memory there is one list of codes.
    chosen = index_within(Budget(memory - 1, 10), encoding, COSINE, asked_of(near(docs, 50)))
    assert chosen.kind == "one bit"


def test_too_little_recall_is_refused_and_the_budget_that_is_named_does(tmp_path):
    """Of documents in one point and noise far below a bit, codes find nothing."""
    rng = np.random.default_rng(0)
    docs = (np.ones(DIM) + 1e-2 * rng.normal(size=(20_000, DIM))).astype(np.float32)
    queries = rng.normal(size=(30, DIM)).astype(np.float32)
    encoding = stored(tmp_path / "e", docs, "float32", rows=5000)
    memory = within(encoding, "one bit")
    with pytest.raises(InputError) as refused:
        index_within(Budget(memory, 10, 1.0), encoding, COSINE, asked_of(queries))
    message = refused.value.message
    assert "must hold an index that finds 1 of the 10 best documents, and of 30 queries" in message
    named = re.search(r"--memory (\S+) holds the embeddings", message)[1]
    assert index_within(Budget(bytes_of(named), 10, 1.0), encoding, COSINE, None).recall == 1.0


def test_what_holds_nothing_is_refused_and_the_budget_that_is_named_does(tmp_path):
    encoding = stored(tmp_path / "e", in_clusters(3000, DIM))
    queries = asked_of(near(in_clusters(3000, DIM), 20))
    with pytest.raises(InputError, match=r"--memory must be at least (\S+) for 3,000") as refused:
        index_within(Budget(1000, 10), encoding, COSINE, queries)
    named = re.search(r"at least (\S+) for", refused.value.message)[1]
    assert index_within(Budget(bytes_of(named), 10), encoding, COSINE, queries).kind == "one bit"


def test_without_queries_only_exact_search_is_had(tmp_path):
    encoding = stored(tmp_path / "e", in_clusters(3000, DIM))
    for asked in (None, asked_of(np.empty((0, DIM), np.float32))):
        with pytest.raises(InputError, match="whose recall is measured on queries, and there are"):
            index_within(Budget(within(encoding, "one bit"), 10), encoding, COSINE, asked)


def test_fewer_documents_than_are_wanted(tmp_path):
    docs = in_clusters(5, DIM)
    encoding = stored(tmp_path / "e", docs)
    memory = within(encoding, "one bit")
    chosen = index_within(Budget(memory, 10), encoding, COSINE, asked_of(near(docs, 3)))
    scores, rows = chosen.index.search(near(docs, 2), 10)
    assert chosen.recall == 1.0 and rows.shape == (2, 10)
    assert (np.sort(rows, axis=1)[:, 5:] == np.arange(5)).all() and (rows[:, 5:] == -1).all()
    assert np.isneginf(scores[:, 5:]).all()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the system says it in /proc")
@pytest.mark.parametrize("kind", ["one bit", "clusters"])
def test_no_more_memory_than_the_budget(tmp_path, monkeypatch, kind):
    """In a process that learns codes, measures them and searches: of 70,000 documents of 256
    dimensions, whose embeddings are 72 MB as they are compared. It has done the same with 3,000
    documents before: what is mapped at the first call, the pages of libraries say, doesn't count.
    """
    monkeypatch.setattr(room, "FEWEST_FOR_CLUSTERS", 10**9 if kind == "one bit" else 1)
    few = stored(tmp_path / "few", in_clusters(3000, 256), "int8", rows=1024)
    docs = in_clusters(70_000, 256)
    encoding = stored(tmp_path / "e", docs, "int8", rows=4096)
    queries = near(docs, 400)
    memory = memory_needed(kind, docs.shape, 10**6)  # as if the embeddings didn't fit

    def search() -> None:
        monkeypatch.setattr(room, "memory_needed", lambda *of: 0 if of[0] == kind else 10**12)
        index_within(Budget(memory, 100, 0.1), few, COSINE, asked_of(queries[:200]))
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        before = in_memory("VmRSS")
        chosen = index_within(Budget(memory, 100, 0.5), encoding, COSINE, asked_of(queries[:200]))
        chosen.index.search(queries, 100)
        assert chosen.kind == kind
        peak = in_memory("VmHWM") - before
        assert peak < memory, f"{peak / 1e6:.0f} MB instead of {memory / 1e6:.0f}"

    assert os.waitstatus_to_exitcode(os.waitpid(fork(search), 0)[1]) == 0


def in_memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", status)[1])


@pytest.mark.parametrize("damage", ["cut", "zeros", "gone"])
def test_damaged_codes_are_made_again(tmp_path, damage):
    docs = in_clusters(3000, DIM)
    encoding = stored(tmp_path / "e", docs)
    budget = Budget(within(encoding, "one bit"), 10)
    asked = asked_of(near(docs, 20))
    recall = index_within(budget, encoding, COSINE, asked).recall
    (file,) = (encoding.folder / "indexes").glob("*/index.faiss")
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[:1000] if damage == "cut" else bytes(len(whole)))
    assert index_within(budget, encoding, COSINE, asked).recall == recall
    assert file.read_bytes() == whole


def test_codes_of_another_encoding_are_refused(tmp_path):
    """A whole index with its seal, in the place of the one that belongs there."""
    files = []
    for count in (3000, 2000):
        docs = in_clusters(count, DIM)
        encoding = stored(tmp_path / f"{count}", docs)
        budget = Budget(within(encoding, "one bit"), 10)
        index_within(budget, encoding, COSINE, asked_of(near(docs, 20)))
        (file,) = (encoding.folder / "indexes").glob("*/index.faiss")
        files.append(file)
    shutil.rmtree(files[1].parent)
    shutil.copytree(files[0].parent, files[1].parent)
    with pytest.raises(InputError) as refused:
        index_within(budget, encoding, COSINE, asked_of(near(docs, 20)))
    message = refused.value.message
    assert "of 2,000 embeddings of 64 dimensions, got one of 3,000 of 64; remove" in message
    shutil.rmtree(files[1].parent)  # as it says
    assert index_within(budget, encoding, COSINE, asked_of(near(docs, 20))).recall >= 0.95


def test_two_processes_make_codes_once(tmp_path):
    docs = in_clusters(20_000, DIM)
    encoding = stored(tmp_path / "e", docs, rows=5000)
    budget = Budget(within(encoding, "one bit"), 10)

    def search() -> None:
        chosen = index_within(budget, encoding, COSINE, asked_of(near(docs, 20)))
        assert chosen.recall >= 0.95

    processes = [fork(search) for _ in range(2)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes] == [0, 0]
    assert len([*(encoding.folder / "indexes").glob("*/index.faiss")]) == 1


def test_a_kill_leaves_no_half_codes(tmp_path):
    docs = in_clusters(60_000, DIM)
    encoding = stored(tmp_path / "e", docs, rows=20_000)
    budget = Budget(within(encoding, "one bit"), 10)
    asked = asked_of(near(docs, 20))
    pid = fork(lambda: index_within(budget, encoding, COSINE, asked))
    while not [*encoding.folder.glob("indexes/*")]:
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert index_within(budget, encoding, COSINE, asked).recall >= 0.95
    (folder,) = (file for file in (encoding.folder / "indexes").iterdir() if file.is_dir())
    left = {file.name for file in folder.parent.iterdir()}
    assert left == {folder.name, f"{folder.name}.json"}, "no lock, and nothing half-written"


@pytest.mark.parametrize("are_made", [False, True])
def test_a_folder_that_can_t_be_written_to_is_told(tmp_path, monkeypatch, are_made):
    """By what the system says of it: root may write everywhere. Also where codes are there, and were
    not measured on these queries; where they were, nothing is written.
    """
    docs = in_clusters(3000, DIM)
    encoding = stored(tmp_path / "e", docs)
    budget = Budget(within(encoding, "one bit"), 10)
    known = asked_of(near(docs, 20), "known")
    if are_made:
        index_within(budget, encoding, COSINE, known)
    before = sorted(encoding.folder.rglob("*"))

    def refuse(folder, name):
        raise InputError(f"{folder} can't be written to, {name}")

    monkeypatch.setattr(room, "check_inside", refuse)
    with pytest.raises(InputError, match="the folder of the encoding, where --memory keeps"):
        index_within(budget, encoding, COSINE, asked_of(near(docs, 20), "others"))
    if are_made:
        assert index_within(budget, encoding, COSINE, known).recall >= 0.95
    assert sorted(encoding.folder.rglob("*")) == before


@pytest.mark.parametrize("recall", [0.0, -1.0, 1.1])
def test_recall_is_a_share(recall):
    with pytest.raises(InputError, match="recall must lie above 0, and be at most 1"):
        Budget(1000, 10, recall)
