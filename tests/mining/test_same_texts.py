"""Which documents have the text of a relevant one, by hand."""

import json

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.mining import same_texts
from ltr.mining.miner import keys_as_read
from ltr.mining.same_texts import NeverNegative
from ltr.models import DualEncoder
from tests.conftest import write_collection

TEXTS = ["w1 w2", "w3", "w1 w2", "w1 w2 w9", "W3"]  # 2 is 0 again; cut to two words, so is 3


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = write_collection(tmp_path_factory.mktemp("texts") / "c", n_queries=2, n_docs=2)
    lines = [json.dumps({"_id": f"d{row}", "text": text}) for row, text in enumerate(TEXTS)]
    rest = (folder / "corpus.jsonl").read_text().splitlines()
    (folder / "corpus.jsonl").write_text("\n".join(lines + rest) + "\n")
    return open_collection(str(folder))


def same(never_negative, query_row, doc_rows=range(5)):
    """The documents that are not negatives of a query."""
    doc_rows = np.array(doc_rows)
    return doc_rows[never_negative(np.full(len(doc_rows), query_row), doc_rows)].tolist()


# Query 0 has document 0 as relevant, and 1 as judged irrelevant; query 1 has 1, and 4 by another
# file; query 2 has nothing.
JUDGED = QueryLists.from_rows([0, 0, 1], [0, 1, 1], [2.0, 0.0, 1.0])
MORE = QueryLists.from_rows([1], [4], [1.0])


def test_a_text_is_relevant_under_every_id_and_for_its_query_alone(collection):
    never_negative = NeverNegative(collection, [JUDGED])
    assert same(never_negative, 0) == [0, 2], "the judged irrelevant document 1 may be a negative"
    assert same(never_negative, 1) == [1] and same(never_negative, 2) == []
    assert same(NeverNegative(collection, [JUDGED, MORE]), 1) == [1, 4]
    nothing = NeverNegative(collection, [JUDGED._replace(values=np.zeros(3, np.float32))])
    assert same(nothing, 0) == []
    assert same(NeverNegative(collection, []), 0) == [], "without judgements"


def test_texts_are_equal_where_the_model_reads_the_same_of_them(collection, backbone):
    """With two special tokens and a length of 4, document 3 is cut to ``w1 w2``."""
    for max_length, expected in ((4, [0, 2, 3]), (5, [0, 2])):
        docs = DualEncoder(backbone, max_length=max_length).reads.docs
        keys = keys_as_read(docs.store(collection.corpus), docs)
        assert same(NeverNegative(collection, [JUDGED], keys), 0) == expected


def test_a_text_is_not_its_own_negative_where_queries_are_documents(collection):
    """Not even where nobody judged it: query 3 is document 3."""
    twice = collection._replace(queries=collection.corpus)
    never_negative = NeverNegative(twice, [JUDGED])
    assert same(never_negative, 3) == [3] and same(never_negative, 0) == [0, 2]
    assert same(NeverNegative(collection, [JUDGED]), 3) == []


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_pairs_in_blocks_of_any_size(collection, monkeypatch, size):
    """All pairs of three queries and all documents, against a comparison of the texts."""
    monkeypatch.setattr(same_texts, "PAIRS_AT_ONCE", size)
    texts = [collection.corpus.texts[row] for row in range(len(collection.corpus))]
    relevant = {0: {texts[0]}, 1: {texts[1], texts[4]}, 2: set()}
    query_rows = np.repeat(np.arange(3), len(texts))
    doc_rows = np.tile(np.arange(len(texts)), 3)
    expected = []
    for query_row in range(3):
        expected += [text in relevant[query_row] for text in texts]
    found = NeverNegative(collection, [JUDGED, MORE])(query_rows, doc_rows)
    assert found.tolist() == expected and sum(expected) >= 4


def test_only_texts_as_long_as_a_relevant_one_are_read(collection):
    """Of 5 documents, those with 5 letters are 0 and 2."""
    letters = same_texts.keys_of_letters(collection)
    read = []

    def keys(doc_rows):
        read.extend(doc_rows.tolist())
        return letters.keys(doc_rows)

    never_negative = NeverNegative(collection, [JUDGED], letters._replace(keys=keys))
    read.clear()
    assert same(never_negative, 0) == [0, 2] and read == [0, 2]
