"""Queries that are documents: a ranking leaves a query's own document out, as BEIR's do."""

import numpy as np
import pytest
import pytrec_eval

from ltr.data.bm25 import bm25_lists
from ltr.data.collection import open_collection
from ltr.data.own_documents import own_documents, own_documents_line, without_own
from ltr.data.query_lists import QueryLists
from tests.world.collections import by_ids, small_collection

ARGUMENTS = {
    "t1-pro": "zoos protect rare animals and teach children",
    "t1-con": "zoos harm animals",
    "t2-pro": "free trade helps poor people in all lands",
    "t2-con": "free trade harms people",
}
QUERIES = {id_: text for id_, text in ARGUMENTS.items() if id_.endswith("pro")}


def own(collection):
    """{query: its own document} by ids."""
    docs = own_documents(collection.queries, collection.corpus).tolist()
    ids = zip(collection.queries.ids, docs, strict=True)
    return {query: collection.corpus.ids[doc] for query, doc in ids if doc >= 0}


@pytest.mark.parametrize(
    "before, after",
    [("", ""), ("animals society ", ""), ("", " And here the thread goes on."), (" ", "\n")],
    ids=["the same text", "a title before it", "a title that is the query", "white space"],
)
def test_a_query_is_the_document_of_its_id_and_text(tmp_path, before, after):
    corpus = {id_: before + text + after for id_, text in ARGUMENTS.items()}
    collection = small_collection(tmp_path, corpus, QUERIES, [("t1-pro", "t1-con", 1)])
    assert own(collection) == {"t1-pro": "t1-pro", "t2-pro": "t2-pro"}


def test_numbered_queries_and_documents_of_other_texts_have_nothing_in_common(tmp_path):
    """Not even query 3, whose words begin document 3; but query 4 is document 4 itself."""
    corpus = {"1": "one", "2": "two", "3": "red apples", "4": "four", "5": "five"}
    queries = {"1": "who", "2": "what", "3": "red", "4": "four", "5": "why"}
    collection = small_collection(tmp_path, corpus, queries, [("1", "2", 1)])
    assert own(collection) == {"4": "4"}


def test_a_document_that_is_judged_relevant_for_itself_stays_and_that_is_told(tmp_path):
    judged = [("t1-pro", "t1-pro", 1), ("t2-pro", "t2-con", 1)]
    collection = small_collection(tmp_path, ARGUMENTS, QUERIES, judged)
    left_out = collection.documents_left_out()
    assert left_out.tolist() == [-1, collection.corpus.row("t2-pro")]
    line = own_documents_line(collection.queries, collection.corpus, np.arange(2), left_out)
    assert line.startswith("2 of 2 queries are documents of the corpus, by id and text")
    assert line.endswith("but for 1 that are judged relevant for themselves")
    assert own_documents_line(collection.queries, collection.corpus, np.arange(0), left_out) == ""
    found = by_ids(collection, bm25_lists(collection, np.arange(2), 10))
    assert "t1-pro" in found["t1-pro"] and "t2-pro" not in found["t2-pro"]


def test_pools_and_bm25_leave_it_out_and_are_as_deep_as_asked_for(tmp_path):
    small_collection(tmp_path, ARGUMENTS, QUERIES, [("t1-pro", "t1-con", 1)])
    (tmp_path / "candidates").mkdir()
    lines = "t1-pro Q0 t1-pro 1 3 x\nt1-pro Q0 t1-con 1 2 x\n"
    (tmp_path / "candidates/train.trec").write_text(lines)
    collection = open_collection(tmp_path)
    pools = collection.pools("train", option="candidates")
    assert by_ids(collection, pools) == {"t1-pro": {"t1-con": 2}}
    found = by_ids(collection, bm25_lists(collection, np.arange(2), 1))
    docs = {query: list(docs) for query, docs in found.items()}
    assert docs == {"t1-pro": ["t1-con"], "t2-pro": ["t2-con"]}


def test_a_thousand_random_rankings_measure_as_beir_measures_them():
    """BEIR drops the document with the query's id from what was found, and pytrec_eval counts."""
    rng = np.random.default_rng(0)
    measures = {"ndcg_cut_10", "map", "recip_rank", "recall_5"}
    for _ in range(1000):
        n_docs = int(rng.integers(3, 12))
        n_queries = int(rng.integers(1, 5))
        # Query q is document own[q], or none.
        own_docs = np.where(rng.random(n_queries) < 0.7, rng.permutation(12)[:n_queries], -1)
        query_ids = [f"d{doc:02}" if doc >= 0 else f"q{q}" for q, doc in enumerate(own_docs)]
        scores = rng.permutation(n_queries * n_docs).astype(float)
        docs = np.concatenate([rng.permutation(12)[:n_docs] for _ in range(n_queries)])
        lists = QueryLists.from_rows(np.repeat(np.arange(n_queries), n_docs), docs, scores)
        qrels, beir, ours = {}, {}, {}
        for query, id_ in enumerate(query_ids):
            qrels[id_] = {f"d{doc:02}": int(rng.integers(0, 3)) for doc in range(12)}
            qrels[id_].pop(id_, None)
            rows, values = lists.of(query)
            beir[id_] = {f"d{d:02}": float(v) for d, v in zip(rows, values, strict=True)}
            beir[id_].pop(id_, None)
            rows, values = without_own(lists, own_docs).of(query)
            ours[id_] = {f"d{d:02}": float(v) for d, v in zip(rows, values, strict=True)}
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, measures)
        assert evaluator.evaluate(ours) == evaluator.evaluate(beir)
