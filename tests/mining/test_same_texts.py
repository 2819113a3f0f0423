"""Which documents have the text of a relevant one, by hand."""

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.mining import same_texts
from ltr.mining.miner import keys_as_read
from ltr.mining.same_texts import SameTextFilter, TextKeys, excluded_documents, known_documents
from ltr.models import DualEncoder
from tests.world.collections import (
    by_ids,
    corpus_texts,
    small_collection,
    write_collection,
    write_corpus,
)

TEXTS = ["w1 w2", "w3", "w1 w2", "w1 w2 w9", "W3"]  # 2 is 0 again; cut to two words, so is 3


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = write_collection(tmp_path_factory.mktemp("texts") / "c", n_queries=2, n_docs=2)
    first = {f"d{row}": text for row, text in enumerate(TEXTS)}
    write_corpus(folder, first | corpus_texts(folder))
    return open_collection(str(folder))


def same(same_texts, query_row, doc_rows=range(5)):
    """The documents that are not negatives of a query."""
    doc_rows = np.array(doc_rows)
    return doc_rows[same_texts(np.full(len(doc_rows), query_row), doc_rows)].tolist()


def letters(collection):
    """Texts are equal where their letters are."""
    hashes = collection.corpus.text_hashes()
    return TextKeys(hashes.__getitem__, collection.corpus.texts.lengths)


# Query 0 has document 0 as relevant, and 1 as judged irrelevant; query 1 has 1 and 4; query 2 has
# nothing.
JUDGED = QueryLists.from_rows([0, 0, 1, 1], [0, 1, 1, 4], [2.0, 0.0, 1.0, 1.0])


def test_a_text_is_relevant_under_every_id_and_for_its_query_alone(collection):
    same_texts = SameTextFilter(JUDGED, letters(collection))
    assert same(same_texts, 0) == [0, 2], "the judged irrelevant document 1 may be a negative"
    assert same(same_texts, 1) == [1, 4] and same(same_texts, 2) == []
    nothing = SameTextFilter(JUDGED._replace(values=np.zeros(4, np.float32)), letters(collection))
    assert same(nothing, 0) == []
    own = QueryLists.from_rows([2], [3], [np.nan])
    assert same(SameTextFilter(own, letters(collection)), 2) == [3], "the text of the query"


def test_texts_are_equal_where_the_model_reads_the_same_of_them(collection, backbone):
    """With two special tokens and a length of 4, document 3 is cut to ``w1 w2``."""
    for max_length, expected in ((4, [0, 2, 3]), (5, [0, 2])):
        docs = DualEncoder(backbone, max_length=max_length).reads.docs
        keys = keys_as_read(docs.store(collection.corpus), docs)
        assert same(SameTextFilter(JUDGED, keys), 0) == expected


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
    found = SameTextFilter(JUDGED, letters(collection))(query_rows, doc_rows)
    assert found.tolist() == expected and sum(expected) >= 4


def test_only_texts_as_long_as_a_relevant_one_are_read(collection):
    """Of 5 documents, those with 5 letters are 0 and 2."""
    of_letters = letters(collection)
    read = []

    def keys(doc_rows):
        read.extend(doc_rows.tolist())
        return of_letters.keys(doc_rows)

    same_texts = SameTextFilter(JUDGED, of_letters._replace(keys=keys))
    read.clear()
    assert same(same_texts, 0) == [0, 2] and read == [0, 2]


def test_excluded_documents_by_hand(tmp_path):
    """a and b ask the same, c with an instruction; d is document D, and E has its text."""
    corpus = {"A": "ans one", "A2": "ans one", "B": "ans two", "D": "what", "E": "what", "F": "no"}
    queries = {"a": "ask", "b": "ask", "c": "ask", "D": "what"}
    judged = [("a", "A", 2), ("a", "F", 0), ("b", "B", 1), ("c", "B", 1), ("D", "F", 1)]
    instructions = {"c": "in Latin"}
    collection = small_collection(tmp_path, corpus, queries, judged, instructions=instructions)
    excluded = excluded_documents(collection, collection.judgements("train"))
    assert by_ids(collection, excluded) == {
        "a": {"A2": 2, "B": 1},
        "b": {"A": 2, "A2": 2},
        "D": {"D": None, "E": None},
    }
    known = known_documents(collection, collection.judgements("train"))
    assert by_ids(collection, known)["a"] == {"A": 2, "A2": 2, "B": 1, "F": 0}


def test_a_collection_of_different_texts_has_none(collection):
    judged = QueryLists.from_rows([1], [1], [1.0])
    assert len(excluded_documents(collection, judged).doc_rows) == 0
    assert known_documents(collection, judged) is judged


@pytest.mark.parametrize("n_sets", [150, pytest.param(1000, marks=pytest.mark.long)])
def test_excluded_documents_are_those_of_a_loop_over_strings(tmp_path, n_sets):
    """Of so many random judgements of 12 queries and 20 documents whose texts repeat."""
    rng = np.random.default_rng(0)
    corpus = {f"d{row}": f"text {rng.integers(9)}" for row in range(20)}
    corpus |= {"q3": "title text 4", "q4": "text 2", "q5": "text 5"}
    queries = {f"q{row}": f"text {rng.integers(7)}" for row in range(12)}
    queries |= {"q3": "text 4", "q4": "text 2", "q5": "text 5"}
    collection = small_collection(tmp_path, corpus, queries, [("q0", "d0", 1)])
    query_texts = list(collection.queries.texts)
    doc_texts = list(collection.corpus.texts)
    own = collection.documents_left_out()
    assert (own >= 0).sum() == 3
    for _ in range(n_sets):
        n = int(rng.integers(1, 12))
        pairs = np.unique(rng.integers([12, 23], size=(n, 2)), axis=0)
        grades = rng.integers(0, 3, len(pairs)).astype(float)
        excluded = excluded_documents(collection, QueryLists.from_rows(*pairs.T, grades))
        relevant = [
            (query, doc, grade)
            for (query, doc), grade in zip(pairs.tolist(), grades, strict=True)
            if grade > 0
        ]
        queries = set(pairs[:, 0].tolist())
        expected = {}
        for query in queries:
            twins = [row for row in range(12) if query_texts[row] == query_texts[query]]
            grade_of_text = {}
            for other, doc, grade in relevant:
                if other in twins:
                    text = doc_texts[doc]
                    grade_of_text[text] = max(grade, grade_of_text.get(text, 0))
            own_texts = {query_texts[query]}
            own_texts |= {doc_texts[own[t]] for t in twins if own[t] >= 0 and t in queries}
            own_relevant = {doc for other, doc, _ in relevant if other == query}
            for doc, text in enumerate(doc_texts):
                if text in own_texts:
                    expected[query, doc] = None
                elif text in grade_of_text and doc not in own_relevant:
                    expected[query, doc] = grade_of_text[text]
        got = {}
        for query in excluded.query_rows.tolist():
            for doc, value in zip(*excluded.of(query), strict=True):
                got[query, int(doc)] = None if np.isnan(value) else float(value)
        assert got == expected
