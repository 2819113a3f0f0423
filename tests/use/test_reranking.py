"""What was found is ranked again."""

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.trec import read_run
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use import reranking
from ltr.use.rankers import TextRanker
from ltr.use.reranking import rank_table, rerank, search_and_rerank, search_run_lines
from ltr.use.retriever import Retriever
from tests.world.collections import small_collection


def test_a_second_ranker_orders_what_was_found(retriever, backbone, collection_folder):
    second = TextRanker(PairWiseBertRanker(backbone, max_length=24))
    corpus = retriever.corpus(collection_folder)
    found = corpus.search("w3 w4", 6)
    again = search_and_rerank(corpus, second, "w3 w4", 6)
    assert {one.id for one in again} == {one.id for one in found}
    scores = second.score([("w3 w4", one.text) for one in found]).tolist()
    assert [one.score for one in again] == sorted(scores, reverse=True)
    queries = open_collection(str(collection_folder)).queries
    lines = list(search_run_lines(corpus, queries, 4, second, depth=6))
    asked = [line for line in lines if line.query == queries.ids[7]]
    expected = search_and_rerank(corpus, second, queries.texts[7], 6)[:4]
    assert [line.doc for line in asked] == [one.id for one in expected]
    assert len(lines) == 4 * len(queries)


def test_a_run_is_ranked_again(tmp_path, collection_folder, copied_run):
    """The run of a test, read in another order, is what the same ranker makes of it."""
    run = copied_run(tmp_path, "cross")
    given = tmp_path / "given.trec"
    file = tmp_path / "again.trec"
    lines = [f"{q} Q0 {d} 1 {-s} x\n" for _, (q, d, s) in read_run(run / "test.run")]
    given.write_text("".join(lines))
    options = ["--run", str(given), "--data", str(collection_folder), "--output", str(file)]
    assert main(["rank", str(run), *options]) == 0
    again, expected = ([line for _, line in read_run(path)] for path in (file, run / "test.run"))
    assert sorted(one[:2] for one in again) == sorted(one[:2] for one in expected)
    scores = {one[:2]: one.score for one in expected}
    wanted = [scores[one[:2]] for one in again]
    assert [one.score for one in again] == pytest.approx(wanted, abs=1e-5)
    assert main(["rank", str(run), *options, "--depth", "2"]) == 0
    few = [line for _, line in read_run(file)]
    assert len(few) == 60 and {one[:2] for one in few} <= set(scores)


def test_lists_ranked_again_are_best_first(backbone, collection_folder):
    collection = open_collection(str(collection_folder))
    ranker = TextRanker(PairWiseBertRanker(backbone, max_length=24))
    found = rerank(ranker, collection.queries, collection.corpus, collection.candidates["test"])
    assert sorted(found.doc_rows) == sorted(collection.candidates["test"].doc_rows)
    for query in found.query_rows.tolist():
        rows, scores = found.of(query)
        asked = collection.queries.texts[query]
        own = ranker.score([(asked, collection.corpus.texts[int(row)]) for row in rows])
        assert scores == pytest.approx(own, abs=1e-5) and (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_a_table_is_ranked_in_blocks_and_of_equal_scores_the_later_row_comes_first(
    backbone, collection_folder, monkeypatch, size
):
    """The scores of the 720 documents are 0, 1 and 2, in turn."""
    monkeypatch.setattr(reranking, "DOCS_AT_ONCE", size)
    documents = open_collection(str(collection_folder)).corpus
    ranker = TextRanker(PairWiseBertRanker(backbone, max_length=24))
    blocks = []

    def score_rows(query_tokens, doc_tokens, query_rows, doc_rows):
        blocks.append(len(doc_rows))
        assert query_rows.tolist() == [0] * len(doc_rows)
        return (doc_rows % 3).astype(np.float32)

    monkeypatch.setattr(ranker, "score_rows", score_rows)
    best = rank_table(ranker, "w3 w4", documents, 242)
    assert [one.place for one in best[:4]] == [719, 716, 713, 710]
    assert [one.score for one in best[238:]] == [2.0, 2.0, 1.0, 1.0]
    assert [one.place for one in best[238:]] == [5, 2, 718, 715]
    assert [one.id for one in best[:2]] == [documents.ids[719], documents.ids[716]]
    assert max(blocks) == min(size, 720) and sum(blocks) == 720
    assert len(rank_table(ranker, "w3 w4", documents, 1000)) == 720


def test_searches_and_runs_leave_out_the_document_that_a_query_is(
    tmp_path, backbone, capsys, copied_run
):
    """Six queries of twelve documents; the file of queries and the corpus know their ids. A run that
    others have made has them first.
    """
    corpus = {f"a{n}": f"w{n} w{n + 1} w{n + 2}" for n in range(12)}
    queries = {id_: corpus[id_] for id_ in list(corpus)[:6]} | {"other": "w3 w4"}
    folder = tmp_path / "c"
    small_collection(folder, corpus, queries, [("a1", "a2", 1)])
    retriever = Retriever(DualEncoder(backbone, max_length=24))
    searched = retriever.corpus(folder)
    table = open_collection(folder).queries
    second = TextRanker(PairWiseBertRanker(backbone, max_length=24))
    for reranker, k in ((None, 5), (None, 30), (second, 5)):
        lines = list(search_run_lines(searched, table, k, reranker, depth=7))
        found = {id_: [line.doc for line in lines if line.query == id_] for id_ in queries}
        for id_, docs in found.items():
            assert id_ not in docs
            assert len(docs) == min(k, 12 - (id_ in corpus))
    run = copied_run(tmp_path / "run", "cross")
    given = tmp_path / "given.trec"
    docs = ("a0", "a1", "a2")
    given.write_text("".join(f"a0 Q0 {doc} 1 {9 - n} x\n" for n, doc in enumerate(docs)))
    options = ["--data", str(folder), "--output", str(tmp_path / "again.trec")]
    assert main(["rank", str(run), "--run", str(given), "--depth", "2", *options]) == 0
    again = [line.doc for _, line in read_run(tmp_path / "again.trec")]
    assert sorted(again) == ["a1", "a2"]
    assert "1 of 1 queries are documents of the corpus, by id and text" in capsys.readouterr().err
    # What people judged relevant for itself stays, as where a run is measured.
    with (folder / "qrels/test.tsv").open("a") as qrels:
        qrels.write("a0\ta0\t1\n")
    options = ["--data", str(folder), "--output", str(tmp_path / "judged.trec")]
    assert main(["rank", str(run), "--run", str(given), *options]) == 0
    ranked = [line.doc for _, line in read_run(tmp_path / "judged.trec")]
    assert sorted(ranked) == ["a0", "a1", "a2"]
    assert "but for 1 that are judged relevant for themselves" in capsys.readouterr().err
    searched_in = ["--corpus", str(folder), "--queries", str(folder), "--k", "12"]
    searcher = copied_run(tmp_path / "dual", "dual")
    output = ["--output", str(tmp_path / "found.trec")]
    assert main(["search", str(searcher), *searched_in, *output]) == 0
    found = [line for _, line in read_run(tmp_path / "found.trec")]
    own = [line.query for line in found if line.query == line.doc]
    assert own == ["a0"] and "but for 1 that are" in capsys.readouterr().err
