"""BM25: terms, scores by the formula, and the best documents of a corpus."""

import math

import numpy as np
import pytest

from ltr.data.bm25 import K1, B, bm25_lists, terms
from ltr.data.collection import open_collection
from tests.conftest import write_jsonl


def test_terms_of_words_and_of_chinese():
    assert terms("The Cat's 2 mats") == ["the", "cat", "s", "2", "mats"]
    assert terms("头痛 ok 药") == ["头", "痛", "ok", "药", "头痛"]


@pytest.fixture
def collection(tmp_path):
    (tmp_path / "qrels").mkdir()
    docs = {"a": "cat cat mat", "b": "cat dog", "c": "bird", "d": "cat dog"}
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": k, "text": v} for k, v in docs.items()])
    write_jsonl(
        tmp_path / "queries.jsonl",
        [{"_id": "q1", "text": "Cat mat?"}, {"_id": "q2", "text": "zebra"}],
    )
    (tmp_path / "qrels/test.tsv").write_text("q1\ta\t1\nq2\tc\t1\n")
    return open_collection(str(tmp_path))


def test_scores_by_the_formula(collection):
    """Lucene's BM25: idf = log(1 + (N - df + 0.5) / (df + 0.5)), weight idf * tf / (tf + k1 (1 - b
    + b len / mean len)); mean length 2."""

    def weight(tf, df, length):
        return math.log(1 + (4 - df + 0.5) / (df + 0.5)) * tf / (tf + K1 * (1 - B + B * length / 2))

    lists = bm25_lists(collection, np.array([0, 1]), depth=10)
    docs, scores = lists.of(0)
    assert [collection.corpus.ids[d] for d in docs] == [
        "a",
        "d",
        "b",
    ]  # of equal scores the later id first
    expected = [weight(2, 3, 3) + weight(1, 1, 3), weight(1, 3, 2), weight(1, 3, 2)]
    assert scores.tolist() == pytest.approx(expected, rel=1e-5)
    assert lists.of(1)[0].tolist() == []  # no term in common, no candidate


def test_depth_cuts(collection):
    assert len(bm25_lists(collection, np.array([0]), depth=2).of(0)[0]) == 2
