"""Negatives of other files: TREC runs, arrays, tables."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from ltr.data.collection import open_collection
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.mining.imported import negatives_of_file
from ltr.mining.mined_negatives import MinedNegatives
from ltr.models import DualEncoder
from tests.world.collections import write_collection
from tests.world.data_modules import data_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The relevant document of train-q0 stands in the corpus again, as ``twin``."""
    folder = write_collection(tmp_path_factory.mktemp("imported") / "c", n_queries=3, n_docs=4)
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    twin = next(json.loads(line) for line in lines if json.loads(line)["_id"] == "train-q0-d0") | {
        "_id": "twin"
    }
    (folder / "corpus.jsonl").write_text("\n".join([*lines, json.dumps(twin)]) + "\n")
    return folder


@pytest.fixture(scope="module")
def collection(folder):
    return open_collection(str(folder))


def named(negatives, collection):
    """Ids of documents by id of the query, hardest first."""
    docs = {
        query: [collection.corpus.ids[doc] for doc in negatives.lists.of(query)[0]]
        for query in negatives.lists.query_rows
    }
    return {collection.queries.ids[query]: found for query, found in docs.items() if found}


RUN = """\
train-q0 Q0 dev-q1-d1 1 0.5 bm25
train-q0 Q0 twin 2 0.9 bm25
train-q0 Q0 train-q0-d0 3 0.8 bm25
train-q0 Q0 train-q0-d1 4 0.7 bm25
train-q1 Q0 twin 1 7 bm25
"""
FOUND = {"train-q0": ["train-q0-d1", "dev-q1-d1"], "train-q1": ["twin"]}  # by score; d1 is judged 0


@pytest.mark.parametrize("name", ["a.trec", "a.run", "a.trec.gz"])
def test_a_run_is_sorted_by_score_and_what_is_judged_relevant_is_left_out(
    tmp_path, collection, name
):
    file = tmp_path / name
    file.write_bytes(gzip.compress(RUN.encode()) if name.endswith("gz") else RUN.encode())
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
    reads = DualEncoder(backbone, max_length=24).reads
    data = data_module(
        TripletDataModule,
        str(folder),
        negatives=str(tmp_path / "n"),
        negatives_per_query=1,
        batch_size=2,
        reads=reads,
    )
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.distances[batch.mask].isnan().all()
    manifest = tmp_path / "n/manifest.json"
    manifest.write_text(manifest.read_text().replace('"distance": null', '"distance": "euclidean"'))
    with pytest.raises(InputError, match=r"distances must be finite \(float32\), got nan at"):
        MinedNegatives.open(tmp_path / "n", collection)


def arrays(tmp_path, collection, **changes):
    """Two negatives of train-q0, the first of them its relevant document; one of train-q1."""
    query = collection.queries.row
    doc = collection.corpus.row
    ids = np.full((9, 2), -1)
    distances = np.zeros((9, 2))
    ids[query("train-q0")], distances[query("train-q0")] = (
        [doc("train-q0-d0"), doc("dev-q1-d1")],
        [0.25, 0.5],
    )
    ids[query("train-q1"), 1], distances[query("train-q1"), 1] = doc("twin"), 0.75
    for (row, column), value in changes.get("ids", {}).items():
        ids[query(row), column] = doc(value) if isinstance(value, str) else value
    for (row, column), value in changes.get("distances", {}).items():
        distances[query(row), column] = value
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "distances.npy", distances)
    return tmp_path / "ids.npy", tmp_path / "distances.npy"


def test_arrays_with_and_without_distances(tmp_path, collection):
    ids, distances = arrays(tmp_path, collection)
    found = negatives_of_file(ids, collection, distances)
    assert (
        named(found, collection) == {"train-q0": ["dev-q1-d1"], "train-q1": ["twin"]}
        and found.manifest["distance"] is not None
    )
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
    pairs = {
        "query_id": ["train-q0", "train-q0", "train-q1"],
        "doc_id": ["train-q0-d1", "dev-q1-d1", "twin"],
    }
    monkeypatch.setattr(pd, "read_parquet", lambda file: pd.DataFrame(pairs | table))
    found = negatives_of_file(tmp_path / "a.parquet", collection)
    assert named(found, collection) == {"train-q0": expected, "train-q1": ["twin"]}
    assert (found.manifest["distance"] is None) == (distances is None)
    if distances:
        assert found.lists.of(collection.queries.row("train-q0"))[1].tolist() == distances


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.trec",
            RUN + "train-q9 Q0 twin 1 7 bm25\n",
            r"a.trec:6: query 'train-q9' is not in the queries",
        ),
        (
            "a.trec",
            RUN + "train-q1 Q0 twins 1 7 bm25\n",
            r"a.trec:6: document 'twins' is not in the corpus",
        ),
        (
            "a.trec",
            RUN + "train-q1 Q0 twin 2 6 bm25\n",
            r"a.trec:6: a second line for query 'train-q1' and document 'twin'",
        ),
        (
            "a.trec",
            "train-q0 Q0 twin 1 7 bm25\n",
            "there must be a negative, got 1 documents, all of them judged relevant",
        ),
        (
            "a.csv",
            "x",
            r"a.csv: negatives must be a run file \(.trec, .trec.gz, .run, .run.gz; lines query Q0 doc "
            r"rank score tag\), .npy, or .parquet with query_id and doc_id",
        ),
        ("a.npy", "x", "a.npy: expected a whole .npy file"),
        (
            "a.parquet",
            "x",
            "a.parquet: (parquet needs another package: pip install pyarrow|expected a parquet "
            "file)",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, collection, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        negatives_of_file(tmp_path / name, collection)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ids": {("train-q0", 0): "dev-q1-d1"}},
            "a query must have a document once, got document .* again in row",
        ),
        ({"ids": {("train-q0", 0): 99}}, "ids must be -1 or rows of 37 documents, got -1 to 99"),
        (
            {"distances": {("train-q0", 0): np.nan}},
            r"distances must be finite \(float32\), got nan",
        ),
        ({"distances": {("train-q0", 1): -0.5}}, r"distances must be at least 0, got -0.5"),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(tmp_path, collection, changes, message):
    with pytest.raises(InputError, match=message):
        negatives_of_file(
            *[(files := arrays(tmp_path, collection, **changes))[0], collection, files[1]]
        )
    (tmp_path / "a.trec").write_text(RUN)
    with pytest.raises(InputError, match="distances go with an array of rows"):
        negatives_of_file(tmp_path / "a.trec", collection, tmp_path / "distances.npy")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"query": ["x"], "doc_id": ["y"]},
            "must have the columns query_id and doc_id, and has no query_id",
        ),
        (
            {"query_id": ["train-q0"], "doc_id": ["twin"], "score": [np.nan]},
            "a.parquet:1: a score must be a finite number",
        ),
        (
            {"query_id": ["train-q0"], "doc_id": ["tw"]},
            "a.parquet:1: document 'tw' is not in the corpus",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(tmp_path, collection, monkeypatch, table, message):
    monkeypatch.setattr(pd, "read_parquet", lambda file: pd.DataFrame(table))
    with pytest.raises(InputError, match=message):
        negatives_of_file(tmp_path / "a.parquet", collection)
