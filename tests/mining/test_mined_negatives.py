"""Mined negatives: made of queries and of lists, written, opened and checked."""

import json

import numpy as np
import pytest

from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives, lists_of_arrays


def all_queries(collection, rows, manifest=None):
    """Negatives with the same documents for every query; the distances are their numbers."""
    ids = np.tile(rows, (len(collection.queries), 1))
    queries = np.arange(len(ids))
    return MinedNegatives.from_matrix(queries, ids, ids.astype(np.float32), manifest or {})


def test_lists_of_some_queries_become_rows_of_all_and_come_back(tmp_path, collection):
    """Queries 0 and 3 have two and one negative: 7 at 0.1 and 5 at 0.2; and 9 at 0.3."""
    lists = QueryLists.from_rows([0, 0, 3], [7, 5, 9], [0.1, 0.2, 0.3])
    MinedNegatives(lists, {}, width=3).save(tmp_path / "0", collection)
    ids = np.load(tmp_path / "0/ids.npy")
    distances = np.load(tmp_path / "0/distances.npy")
    assert ids[:4].tolist() == [[7, 5, -1], [-1] * 3, [-1] * 3, [9, -1, -1]]
    expected = np.array([[0.1, 0.2, 0], [0, 0, 0], [0, 0, 0], [0.3, 0, 0]], np.float32)
    np.testing.assert_array_equal(distances[:4], expected)
    assert (ids[4:] == -1).all() and not distances[4:].any()
    negatives = MinedNegatives.open(tmp_path / "0", collection)
    assert negatives.width == 3
    for array, array_before in zip(negatives.lists, lists, strict=True):
        np.testing.assert_array_equal(array, array_before)


@pytest.mark.parametrize(
    ("manifest", "known"),
    [({}, True), ({"distance": "euclidean"}, True), ({"distance": None}, False)],
)
def test_only_null_says_that_distances_are_unknown(tmp_path, collection, manifest, known):
    all_queries(collection, [0], manifest).save(tmp_path / "0", collection)
    values = MinedNegatives.open(tmp_path / "0", collection).lists.values
    assert np.isfinite(values).all() == known and np.isnan(values).all() != known


def test_documents_are_called_ids_on_disk(tmp_path, collection):
    """Folders that were written before stay readable."""
    all_queries(collection, [3, 1]).save(tmp_path / "0", collection)
    names = {file.name for file in (tmp_path / "0").iterdir()}
    assert names == {"ids.npy", "distances.npy", "manifest.json"}
    assert np.load(tmp_path / "0/ids.npy").tolist() == [[3, 1]] * len(collection.queries)


def test_overlap_of_two_refreshes():
    """Query 0 keeps one of two, query 1 all three, query 2 has none before: (1/2 + 1) / 2."""
    zeros = np.zeros((3, 3))
    now, before = (
        MinedNegatives.from_matrix(np.arange(3), np.array(doc_rows), zeros, {})
        for doc_rows in (
            [[1, 2, -1], [3, 4, 5], [6, 7, 8]],
            [[2, 9, 8], [5, 4, 3], [-1, -1, -1]],
        )
    )
    assert now.overlap(before) == 0.75
    now.note_overlap(None)
    assert now.manifest == {}, "of a first refresh nothing is said"
    now.note_overlap(before)
    assert now.manifest == {"overlap": 0.75}


def test_negatives_are_not_written_over_and_checked(tmp_path, collection):
    negatives = all_queries(collection, [len(collection.corpus)])
    negatives.save(tmp_path / "0000", collection)
    with pytest.raises(InputError, match="there are negatives already"):
        negatives.save(tmp_path / "0000", collection)
    with pytest.raises(InputError, match="ids must be -1 or rows of 720 documents, got 720 to 720"):
        MinedNegatives.open(tmp_path / "0000", collection)


def arrays(dtype="int64", distances="float32", value=1, shape=(90, 3)):
    """For each of 90 queries the documents 0, 1 and 2, all at the same distance."""
    ids = np.resize(np.arange(3), shape).astype(dtype)
    return {"ids": ids, "distances": np.full(shape, value).astype(distances)}


NO_ARRAY = "expected a whole .npy file, got an error"
DAMAGED_MANIFEST = "0/manifest.json: the file is damaged, "
# What a file holds instead: an array, bytes, the length of what is left, entries, or None for no file.
DAMAGED = {
    "infinite": (
        arrays(value=np.inf),
        r"distances must be finite \(float32\), got inf at \[0, 0\]; mine again",
    ),
    "no number": (
        arrays(value=np.nan),
        r"distances must be finite \(float32\), got nan at \[0, 0\]",
    ),
    "beyond float32": (
        arrays(distances="float64", value=1e39),
        r"distances must be finite .*, got 1e\+39 at",
    ),
    "float ids": (
        arrays("float32"),
        "ids must be whole numbers, distances floats, got float32 and float32",
    ),
    "bool ids": (arrays("bool"), "got bool and float32"),
    "text ids": (arrays("str"), "got <U21 and float32"),
    "complex distances": (arrays(distances="complex64"), "got int64 and complex64"),
    "one dimension": (arrays(shape=90), r"must be \[Q=90, K\], got \(90,\) and \(90,\)"),
    "a list as manifest": (
        {"manifest": b"[]"},
        rf"{DAMAGED_MANIFEST}it must hold an object, got \[\]; mine again",
    ),
    "a deep manifest": ({"manifest": b"[" * 100_000}, "manifest.json: .*recursion"),
    "a number as means": (
        {"manifest": {"mean_distance": 5}},
        f"{DAMAGED_MANIFEST}mean_distance must be an object, got 5; mine again",
    ),
    "an empty array": ({"ids": b""}, f"ids.npy: {NO_ARRAY} .*; make it again"),
    "a cut array": ({"distances": 200}, f"distances.npy: {NO_ARRAY} .*; make it again"),
    "no array": ({"ids": None}, f"ids.npy: {NO_ARRAY} .*No such file"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_negatives_are_one_line(tmp_path, collection, case):
    all_queries(collection, [0, 1, 2]).save(tmp_path / "0", collection)
    MinedNegatives.open(tmp_path / "0", collection)
    change, message = DAMAGED[case]
    manifest = tmp_path / "0/manifest.json"
    entries = json.loads(manifest.read_text())
    del entries["digest"]  # as of a folder that another program has written
    manifest.write_text(json.dumps(entries))
    for name, content in change.items():
        file = tmp_path / "0" / ("manifest.json" if name == "manifest" else f"{name}.npy")
        if isinstance(content, np.ndarray):
            np.save(file, content)
        elif content is None:
            file.unlink()
        elif isinstance(content, dict):
            file.write_text(json.dumps(json.loads(file.read_text()) | content))
        else:
            file.write_bytes(content if isinstance(content, bytes) else file.read_bytes()[:content])
    with pytest.raises(InputError, match=message) as caught:
        MinedNegatives.open(tmp_path / "0", collection)
    assert str(tmp_path / "0") in str(caught.value) and "\n" not in str(caught.value)


def test_the_distance_of_a_missing_negative_is_not_looked_at(collection):
    ids = np.tile([3, -1], (len(collection.queries), 1))
    distances = np.tile(np.asarray([0.5, np.inf], np.float32), (len(ids), 1))
    lists = lists_of_arrays("here", collection, ids, distances, known=True)
    assert (lists.values == 0.5).all()


def test_rows_of_any_whole_numbers_are_an_index(collection):
    """As a .npy of others may have them: uint64 is no index in numpy."""
    ids = np.tile(np.arange(3, dtype=np.uint64), (len(collection.queries), 1))
    lists = lists_of_arrays("here", collection, ids, ids.astype(np.float32), known=True)
    assert lists.doc_rows.dtype == np.int64
