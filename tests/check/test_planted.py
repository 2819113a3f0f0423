"""Planted leaks, by the benchmark that measures them: which are found, and what else is named."""

import importlib
import math
from pathlib import Path

import pytest

from ltr.data.collection import open_collection
from tests.world.collections import write_collection

ROOT = Path(__file__).parents[2]


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("planted")


# Of each way of planting: the least recall and precision on the example, for 60 queries. It asks the
# same questions about many kinds of one disease, so others are near to a planted query as well.
LEAST = {
    "copy": (1.0, 0.45),
    "case": (1.0, 0.45),
    "punctuation": (1.0, 0.45),
    "word order": (1.0, 0.45),
    "10 % of words": (0.75, 0.65),
    "20 % of words": (0.35, 0.65),
    "document under another id": (1.0, 1.0),
}


@pytest.mark.parametrize("way", LEAST)
def test_planted_leaks_are_found(planted, tmp_path, way):
    collection = open_collection(ROOT / "examples/medquad")
    found = planted.measured(collection, way, tmp_path / "data", 60)
    recall, precision = LEAST[way]
    assert len(found.planted) == 60
    assert found.recall >= recall
    assert found.precision >= precision


def test_every_way_is_tested(planted):
    assert list(LEAST) == list(planted.KINDS)


def test_an_equal_query_alone_is_named(planted, tmp_path, monkeypatch):
    """Of equal queries none is named beside the planted ones, and each by its copy."""
    monkeypatch.setitem(planted.KINDS, "case", ["equal"])
    collection = open_collection(ROOT / "examples/medquad")
    found = planted.measured(collection, "case", tmp_path / "data", 60)
    assert found.named == found.planted == found.by_copy


def test_recall_and_precision_by_hand(planted):
    """Two of three planted ones are among the four that are named."""
    found = planted.Found({"a", "b", "c"}, {"a", "b", "x", "y"}, {"a", "x"})
    assert found.recall == pytest.approx(2 / 3)
    assert found.precision == 0.5
    assert math.isnan(planted.Found({"a"}, set(), set()).precision)


def test_the_judgements_of_a_planted_query_are_copies(planted, tmp_path):
    collection = open_collection(write_collection(tmp_path / "c"))
    (query,) = planted.plant(collection, planted.SAME_DOCUMENT, set(), tmp_path / "data", 1)
    changed = open_collection(tmp_path / "data")
    rows = [n for n, id_ in enumerate(changed.queries.ids) if id_ == query]
    docs, grades = changed.qrels["test"].of(rows[0])
    assert (grades == 1).all() and len(docs) > 0
    texts_of_train = set()
    train = changed.qrels["train"]
    for partner in train.query_rows.tolist():
        doc_rows, of_docs = train.of(partner)
        texts_of_train |= {changed.corpus.texts[doc] for doc in doc_rows[of_docs > 0].tolist()}
    for doc in docs.tolist():
        assert changed.corpus.ids[doc].startswith(planted.COPY)
        assert changed.corpus.texts[doc] in texts_of_train
