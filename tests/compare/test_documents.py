"""What a run ranks: order, grades, precision, and whether the texts are still those of the test."""

import json

import pytest

from ltr.compare.documents import Ranking, collection_of
from ltr.compare.tested_run import Run
from ltr.data.collection import open_collection
from ltr.errors import InputError
from tests.world.collections import write_collection


@pytest.fixture
def collection(tmp_path):
    """Document 0 of each query is relevant, document 1 is judged and not relevant."""
    return open_collection(str(write_collection(tmp_path / "c")))


def ranking(folder, collection, lines) -> Ranking:
    folder.mkdir()
    (folder / "test.run").write_text("".join(f"{line}\n" for line in lines))
    return Ranking(Run(folder, 0, {}, {"test": {}}, {}), collection)


def test_equal_scores_are_ranked_by_the_larger_id(tmp_path, collection):
    lines = [
        "test-q0 Q0 test-q0-d1 1 2.0 x",
        "test-q0 Q0 test-q0-d0 2 3.0 x",
        "test-q0 Q0 test-q0-d2 3 2.0 x",
    ]
    found = ranking(tmp_path / "run", collection, lines)
    ranked = [("test-q0-d0", 3.0), ("test-q0-d2", 2.0), ("test-q0-d1", 2.0)]
    assert found.documents == {"test-q0": ranked}
    relevant, judged = (collection.corpus.row(f"test-q0-d{number}") for number in (0, 1))
    assert found.grades("test-q0") == {relevant: 1.0, judged: 0.0}


def test_precision_by_hand(tmp_path, collection):
    """One query has its relevant document first, 1/1, 1/2, 1/3; the other second, 0, 1/2, 1/3."""
    lines = ["test-q0 Q0 test-q0-d0 1 2 x", "test-q0 Q0 test-q0-d1 2 1 x"]
    lines += ["test-q1 Q0 test-q1-d1 1 2 x", "test-q1 Q0 test-q1-d0 2 1 x"]
    found = ranking(tmp_path / "run", collection, lines)
    assert found.precision(3).tolist() == pytest.approx([1 / 2, 1 / 2, 1 / 3])
    assert found.precision(3, level=1).tolist() == found.precision(3).tolist()
    assert found.precision(3, level=2).tolist() == [0, 0, 0]


def test_a_document_that_is_not_there_is_said(tmp_path, collection):
    found = ranking(tmp_path / "run", collection, ["test-q0 Q0 gone 1 2 x"])
    with pytest.raises(InputError, match="test.run names 'gone', which is not in the collection"):
        found.precision(1)


def test_texts_that_have_changed_are_not_those_of_the_test(tmp_path, collection, caplog):
    data = {"class_path": "ltr.datamodules.TripletDataModule", "init_args": {"path": "c"}}
    evaluated = {"queries": collection.queries.key, "documents": collection.corpus.key}
    metrics = {"directory": str(tmp_path), "test": {"evaluated": evaluated}}
    run = Run(tmp_path / "run", 0, {"data": data}, metrics, {})
    found = collection_of(run)
    assert found is not None and found.corpus.key == collection.corpus.key
    assert caplog.text == ""

    corpus = tmp_path / "c/corpus.jsonl"
    first, *others = corpus.read_text().splitlines()
    changed = json.dumps(json.loads(first) | {"text": "another text"})
    corpus.write_text("\n".join([changed, *others]) + "\n")
    assert collection_of(run) is None and "have changed since" in caplog.text


def test_feature_vectors_have_no_texts(tmp_path):
    data = {"class_path": "ltr.datamodules.FeatureDataModule", "init_args": {"path": "letor"}}
    assert collection_of(Run(tmp_path, 0, {"data": data}, {}, {})) is None
