"""Negatives of other files: TREC runs, arrays, tables."""

import gzip
import lzma

import numpy as np
import pandas as pd
import pytest

from ltr.data.collection import open_collection
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.mining.imported import negatives_of_file
from ltr.mining.mined_negatives import MinedNegatives
from ltr.models import DualEncoder
from tests.world.collections import write_collection_with_twin
from tests.world.data_modules import data_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "c"
    return write_collection_with_twin(folder, n_queries=3, n_docs=4)


@pytest.fixture(scope="module")
def collection(folder):
    return open_collection(str(folder))


def named(negatives, collection):
    """Ids of documents by id of the query, hardest first."""
    docs = {}
    for query in negatives.lists.query_rows:
        rows, _ = negatives.lists.of(query)
        docs[collection.queries.ids[query]] = [collection.corpus.ids[row] for row in rows]
    return {query: found for query, found in docs.items() if found}


RUN = """\
train-q0 Q0 dev-q1-d1 1 0.5 bm25
train-q0 Q0 twin 2 0.9 bm25
train-q0 Q0 train-q0-d0 3 0.8 bm25
train-q0 Q0 train-q0-d1 4 0.7 bm25
train-q1 Q0 twin 1 7 bm25
"""
FOUND = {"train-q0": ["train-q0-d1", "dev-q1-d1"], "train-q1": ["twin"]}  # by score; d1 is judged 0


@pytest.mark.parametrize("name", ["a.trec", "a.run", "a.trec.gz", "a.run.xz"])
def test_a_run_is_sorted_by_score_and_what_is_judged_relevant_is_left_out(
    tmp_path, collection, name
):
    file = tmp_path / name
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(file.suffix, bytes)
    file.write_bytes(pack(RUN.encode()))
    found = negatives_of_file(file, collection)
    assert named(found, collection) == FOUND
    assert found.manifest["counts"] == {"found": 5, "relevant": 2, "chosen": 3}
    assert found.manifest["distance"] is None and np.isnan(found.lists.values).all()


def test_a_folder_without_distances_is_read_again_and_trains_without(
    tmp_path, folder, collection, backbone
):
    (tmp_path / "a.trec").write_text(RUN)
    negatives_of_file(tmp_path / "a.trec", collection).save(tmp_path / "n", collection)
    assert named(MinedNegatives.open(tmp_path / "n", collection), collection) == FOUND
    data = data_module(
        TripletDataModule,
        str(folder),
        negatives=str(tmp_path / "n"),
        negatives_per_query=1,
        batch_size=2,
        reads=DualEncoder(backbone, max_length=24).reads,
    )
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.distances[batch.mask].isnan().all()
    manifest = tmp_path / "n/manifest.json"
    manifest.write_text(manifest.read_text().replace('"distance": null', '"distance": "euclidean"'))
    with pytest.raises(InputError, match=r"distances must be finite \(float32\), got nan at"):
        MinedNegatives.open(tmp_path / "n", collection)


def arrays(tmp_path, collection, ids_of=(), distances_of=()):
    """Two negatives of train-q0, the first its relevant document, and one of train-q1."""
    ids = np.full((9, 2), -1)
    distances = np.zeros((9, 2))
    docs = {
        ("train-q0", 0): "train-q0-d0",
        ("train-q0", 1): "dev-q1-d1",
        ("train-q1", 1): "twin",
        **dict(ids_of),
    }
    for (query, column), doc in docs.items():
        row = collection.corpus.row(doc) if isinstance(doc, str) else doc
        ids[collection.queries.row(query), column] = row
    values = {("train-q0", 0): 0.25, ("train-q0", 1): 0.5, ("train-q1", 1): 0.75}
    for (query, column), value in (values | dict(distances_of)).items():
        distances[collection.queries.row(query), column] = value
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "distances.npy", distances)
    return tmp_path / "ids.npy", tmp_path / "distances.npy"


def test_arrays_with_and_without_distances(tmp_path, collection):
    ids, distances = arrays(tmp_path, collection)
    found = negatives_of_file(ids, collection, distances)
    assert named(found, collection) == {"train-q0": ["dev-q1-d1"], "train-q1": ["twin"]}
    assert found.manifest["distance"] is not None
    assert found.lists.values.tolist() == [0.5, 0.75]
    assert negatives_of_file(ids, collection).manifest["distance"] is None


@pytest.mark.parametrize(
    ("table", "expected", "distances"),
    [
        ({"score": [0.5, 0.9, 7.0]}, ["dev-q1-d1", "train-q0-d1"], None),
        ({"distance": [0.5, 0.9, 0.1]}, ["train-q0-d1", "dev-q1-d1"], [0.5, np.float32(0.9)]),
        ({}, ["train-q0-d1", "dev-q1-d1"], None),
    ],
)
def test_a_table(tmp_path, collection, monkeypatch, table, expected, distances):
    queries = ["train-q0", "train-q0", "train-q1"]
    pairs = {"query_id": queries, "doc_id": ["train-q0-d1", "dev-q1-d1", "twin"]}
    monkeypatch.setattr(pd, "read_parquet", lambda file: pd.DataFrame(pairs | table))
    found = negatives_of_file(tmp_path / "a.parquet", collection)
    assert named(found, collection) == {"train-q0": expected, "train-q1": ["twin"]}
    assert (found.manifest["distance"] is None) == (distances is None)
    if distances:
        assert found.lists.of(collection.queries.row("train-q0"))[1].tolist() == distances


SUFFIXES = r"a run file \(.trec, .trec.gz, .run, .run.gz; lines query Q0 doc rank score tag\), .npy"
PARQUET = "(parquet needs another package: pip install pyarrow|expected a parquet file)"
# A file, what it holds, and what is told.
BAD_FILES = [
    ("a.trec", f"{RUN}train-q9 Q0 twin 1 7 x", ":6: query 'train-q9' is not in the queries"),
    ("a.trec", f"{RUN}train-q1 Q0 twins 1 7 x", ":6: document 'twins' is not in the corpus"),
    (
        "a.trec",
        f"{RUN}train-q1 Q0 twin 2 6 x",
        ":6: a second line for query 'train-q1' and document 'twin'",
    ),
    (
        "a.trec",
        "train-q0 Q0 twin 1 7 x",
        ": there must be a negative, got 1 documents, all of them judged relevant",
    ),
    (
        "a.csv",
        "x",
        f": negatives must be {SUFFIXES}, or .parquet with query_id and doc_id",
    ),
    ("a.npy", "x", ": expected a whole .npy file"),
    ("a.parquet", "x", f": {PARQUET}"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, collection, name, content, message):
    (tmp_path / name).write_text(f"{content}\n")
    with pytest.raises(InputError, match=name + message) as error:
        negatives_of_file(tmp_path / name, collection)
    assert "\n" not in str(error.value)


AGAIN = "a query must have a document once, got document .* again in row"
BAD_ARRAYS = [
    ({"ids_of": {("train-q0", 0): "dev-q1-d1"}}, AGAIN),
    ({"ids_of": {("train-q0", 0): 99}}, "ids must be -1 or rows of 37 documents, got -1 to 99"),
    ({"distances_of": {("train-q0", 0): np.nan}}, r"must be finite \(float32\), got nan"),
    ({"distances_of": {("train-q0", 1): -0.5}}, "distances must be at least 0, got -0.5"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_one_line(tmp_path, collection, changes, message):
    ids, distances = arrays(tmp_path, collection, **changes)
    with pytest.raises(InputError, match=message):
        negatives_of_file(ids, collection, distances)


def test_distances_go_with_arrays_alone(tmp_path, collection):
    (tmp_path / "a.trec").write_text(RUN)
    with pytest.raises(InputError, match="distances go with an array of rows"):
        negatives_of_file(tmp_path / "a.trec", collection, tmp_path / "distances.npy")


BAD_TABLES = [
    ({"query": "x", "doc_id": "y"}, "have the columns query_id and doc_id, and has no query_id"),
    (
        {"query_id": "train-q0", "doc_id": "twin", "score": np.nan},
        "a.parquet:1: a score must be a finite number",
    ),
    ({"query_id": "train-q0", "doc_id": "tw"}, "a.parquet:1: document 'tw' is not in the corpus"),
]


@pytest.mark.parametrize(("row", "message"), BAD_TABLES)
def test_a_table_that_does_not_fit_is_one_line(tmp_path, collection, monkeypatch, row, message):
    monkeypatch.setattr(pd, "read_parquet", lambda file: pd.DataFrame([row]))
    with pytest.raises(InputError, match=message):
        negatives_of_file(tmp_path / "a.parquet", collection)
