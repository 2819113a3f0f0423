"""Rankings of others: the forms of their files."""

import json
from pathlib import Path

import pandas as pd
import pytest

from ltr.compare.documents import Ranking, collection_of
from ltr.compare.named_judgements import judgements_of_data, judgements_of_file
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import measured_experiments, read_rankings
from ltr.errors import InputError
from ltr.metrics import RankingMetric
from tests.world.commands import refusal
from tests.world.rankings import METRICS, same, values

ROWS = [("q1", "d9", 3.5), ("q1", "d1", 2.0), ("q2", "d5", 0.5), ("q2", "d4", 0.25)]


def as_jsonl(names: tuple[str, str, str]) -> str:
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ROWS)


FORMS = {
    "three.tsv": "".join(f"{q}\t{d}\t{s}\n" for q, d, s in ROWS),
    "ranks.tsv": "q1\td9\t1\nq1\td1\t2\nq2\td5\t1\nq2\td4\t2\n",
    "names.tsv": "qid\tdocno\trank\nq1\td9\t1\nq1\td1\t2\nq2\td5\t1\nq2\td4\t2\n",
    "named.tsv": "query\tdocument\tscore\nq1\td9\t1\nq1\td1\t0\nq2\td5\t2\nq2\td4\t1\n",
    "rising.tsv": "query\tdocument\tscore\nq1\td1\t1\nq1\td9\t2\nq2\td4\t1\nq2\td5\t2\n",
    "ranked.txt": "Query Document Rank\nq1 d9 1\nq1 d1 2\nq2 d5 1\nq2 d4 2\n",
    "by_query.json": json.dumps(
        {"q1": {"d1": -1, "d9": 3.5}, "q2": {"d5": 0.5, "d4": 0}}, indent=1
    ),
    "by_query.jsonl": '{"q1":{"d1":-1,"d9":3.5},"q2":{"d5":0.5,"d4":0}}\n',
    "texts.jsonl": as_jsonl(("query", "document", "score")),
    "ids.jsonl": as_jsonl(("query_id", "doc_id", "bm25_score")),
    "lists.jsonl": '{"qid": "q1", "corpus_ids": ["d9", "d1"], "scores": [3.5, 2]}\n'
    '{"qid": "q2", "corpus_ids": ["d5", "d4"], "scores": [1, 0]}\n',
    "rows.csv": "query,document,score\n" + "".join(f"{q},{d},{s}\n" for q, d, s in ROWS),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_the_same_values(here, name):
    Path(name).write_text(FORMS[name])
    same(values(name, *METRICS), values("a.trec", *METRICS))


def test_parquet_has_the_same_values(here):
    pd.DataFrame(ROWS, columns=["query", "document", "score"]).to_parquet("a.parquet")
    same(values("a.parquet", *METRICS), values("a.trec", *METRICS))


def test_a_ranking_may_tell_texts(here):
    """A collection that is made of texts gives them ids by their content."""
    rows = [("what?", "this", 1), ("what?", "that", 0), ("who?", "she", 0), ("who?", "he", 1)]
    names = ("query", "document", "label")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    Path("test.jsonl").write_text("\n".join(lines))
    ranked = [("what?", "that", 2.0), ("what?", "this", 1.0), ("who?", "he", 0.5)]
    named = [json.dumps({"query": q, "document": d, "score": s}) for q, d, s in ranked]
    Path("texts.jsonl").write_text("\n".join(named))
    judged = judgements_of_data(str(here))
    (ranking,) = read_rankings(["texts.jsonl"], judged)
    found = values_by_query(ranking.lists, judged.lists, [RankingMetric("RR@10")])
    assert sorted(found[0]) == [0.5, 1.0]


REFUSED = {
    "no line": ("", "c.x: the split is empty; at least one line is needed"),
    "columns": ("q1 Q0 d1\n", "c.x:1: a score must be a finite number"),
    "score": ("q1 Q0 d1 1 good x\n", "c.x:1: a score must be a finite number"),
    "again": ("q1 Q0 d1 1 2 x\nq1 Q0 d1 2 1 x\n", "c.x:2: a second line for query 'q1' and"),
    "no query": ("q8 Q0 d1 1 2 x\n", "c.x: at least one query must be judged in qrels.txt, got 1"),
    "no document": ("q1 Q0 e 1 2 x\n", "c.x: at least one document must be judged in qrels.txt"),
    "four columns": (
        "q1 d1 1 3.5\n",
        "c.x:1: four columns are MS MARCO's top1000 (query, doc, and the texts of both), got a number in column 4; write 3 columns (query, doc, score",
    ),
    "a document again": (
        '{"q1": {"d1": 1,\n"d1": 2}}',
        "c.jsonl:1: a second line for query 'q1' and document 'd1', 2, first 1 in line 1",
    ),
    "a query's score": (
        '{"q1": {"d1": 1},\n"q2": 3}',
        "c.jsonl:2: query 'q2' must have an object of documents and numbers, got 3",
    ),
    "a score of an object": (
        '{"q1": {"d1": 1},\n"q2": {"d1": "x"}}',
        "c.jsonl:2: a score must be a finite number (float32), got 'x'",
    ),
    "no number": (
        '{"q1": {"d1": NaN}}',
        "c.jsonl:1: a score must be a finite number (float32), got",
    ),
    "a comma": (
        '{"q1": {"d1": 1}\n "q2": {"d1": 1}}',
        "c.jsonl:1: a comma must stand between the queries of an object, got '\\n \"q2",
    ),
    "no end": ('{"q1": {"d1": 1},\n', "c.jsonl:1: a query must stand here in quotes, with a"),
    "two objects": (
        '{"q1": {"d1": 1}}\n{"q2": {"d1": 1}}\n',
        "c.jsonl:1: nothing must stand behind the end of the object, got",
    ),
    "no JSON": ('{"query": "q1"', "c.jsonl:1: a line must be one JSON object"),
    "no score": ('{"query": "q1", "document": "d1"}', "c.jsonl:1: a row must have score"),
    "no document's name": (
        '{"query": "q1", "score": 1}',
        "c.jsonl:1: a row must have query_id and doc_id",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(here, capsys, name):
    text, told = REFUSED[name]
    file = "c.jsonl" if text.startswith("{") else "c.x"
    Path(file).write_text(text)
    assert told in refusal(capsys, f"measure {file} --qrels qrels.txt")
    assert told in refusal(capsys, f"compare {file} a.trec --qrels qrels.txt --html x.html")
    assert not Path("x.html").exists()


def test_a_score_that_is_missing_is_refused(here):
    """The rank of the row, or another score, must not take its place."""
    judged = judgements_of_file("qrels.txt")
    rows = [{"qid": "q1", "docno": f"d{n}", "score": -3.0 - n, "rank": n} for n in range(1, 3)]
    rows[1]["score"] = None
    pd.DataFrame(rows).to_parquet("null.parquet")
    with pytest.raises(InputError, match=r"null.parquet:2: every row .* number in column score"):
        read_rankings(["null.parquet"], judged)


def test_a_frame_of_pyterrier_is_read_by_docno(here):
    rows = [
        {"qid": q, "docid": 7 - n, "docno": d, "rank": n, "score": s, "query": "x"}
        for n, (q, d, s) in enumerate(ROWS)
    ]
    pd.DataFrame(rows).to_parquet("frame.parquet")
    same(values("frame.parquet", *METRICS), values("a.trec", *METRICS))


def test_a_score_that_another_column_would_replace_is_refused(here):
    judged = judgements_of_file("qrels.txt")
    rows = [
        '{"qid": "q1", "docid": "d1", "rank": 1, "score": -5}',
        '{"qid": "q1", "docid": "d2", "rank": 2}',
    ]
    Path("absent.jsonl").write_text("\n".join(rows))
    with pytest.raises(
        InputError, match=r"absent.jsonl:2: every row of a ranking must have a number"
    ):
        read_rankings(["absent.jsonl"], judged)
    Path("one.jsonl").write_text('{"qid": "q1", "corpus_ids": ["d1", "d2"], "score": 3}')
    with pytest.raises(
        InputError, match=r"one.jsonl:1: there must be as many scores as documents, got 1"
    ):
        read_rankings(["one.jsonl"], judged)
    # A score of others that is missing, and a rank that is, are not read.
    rows = [
        f'{{"qid": "{q}", "docid": "{d}", "rank": null, "score": {s}, "old_score": null}}'
        for q, d, s in ROWS
    ]
    Path("both.jsonl").write_text("\n".join(rows))
    same(values("both.jsonl", *METRICS), values("a.trec", *METRICS))


def test_texts_with_titles_have_the_ids_of_the_collection(here):
    names = ("query", "title", "text", "label")
    rows = [("what?", "A", "this", 1), ("what?", "B", "that", 0), ("what?", "", "none", 0)]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    Path("test.jsonl").write_text("\n".join(lines))
    ranked = [
        json.dumps(dict(zip((*names[:3], "score"), (*row[:3], score), strict=True)))
        for row, score in zip(rows, (2, 3, 1), strict=True)
    ]
    Path("ranked.jsonl").write_text("\n".join(ranked))
    judged = judgements_of_data(str(here))
    (ranking,) = read_rankings(["ranked.jsonl"], judged)
    assert ranking.notes == []
    assert values_by_query(ranking.lists, judged.lists, [RankingMetric("RR@10")]).tolist() == [
        [0.5]
    ]


def test_texts_of_other_white_space_are_told(here, capsys):
    Path("test.jsonl").write_text(
        '{"query": "what is it", "document": "a  b", "label": 1}\n'
        '{"query": "what is it", "document": "c d", "label": 1}\n'
    )
    row = '{"query": "what is it", "document": "a b", "score": 1}\n'
    Path("other.jsonl").write_text(row)
    told = refusal(capsys, f"measure other.jsonl --data {here}")
    assert "got none of 1; a text must be that of the data to the letter, with its white" in told
    Path("other.jsonl").write_text(row + row.replace("a b", "c d"))
    (ranking,) = read_rankings(["other.jsonl"], judgements_of_data(str(here)))
    (note,) = ranking.notes
    assert note.endswith(
        ": 1; a text must be that of the data to the letter, with its white space; or name the ids"
    )
    Path("other.jsonl").write_text(row.replace("what is", "what  is"))
    told = refusal(capsys, f"measure other.jsonl --data {here}")
    assert "got 1 others; a text must be that of the data to the letter" in told


def test_judgements_may_be_an_object_too(here):
    Path("qrels.json").write_text('{"q1": {"d1": 1, "d2": 0}, "q2": {"d4": 2, "d5": 1}}')
    same(values("a.trec", *METRICS, qrels="qrels.json"), values("a.trec", *METRICS))


def test_texts_between_tabs_are_no_run(here):
    """Words 4 and 5 of the query are numbers."""
    Path("test.jsonl").write_text('{"query": "how far is 10 20", "document": "a b", "label": 1}')
    Path("texts.tsv").write_text("how far is 10 20\ta b\t2\n")
    judged = judgements_of_data(str(here))
    (ranking,) = read_rankings(["texts.tsv"], judged)
    assert values_by_query(ranking.lists, judged.lists, [RankingMetric("AP")]).tolist() == [[1.0]]
    Path("bad.jsonl").write_text('{"query": "how far is 10 20", "document": "\\ud800", "score": 1}')
    with pytest.raises(InputError, match="at least one document must be judged"):
        read_rankings(["bad.jsonl"], judged)


def test_the_page_shows_ranks_as_they_were_measured(here):
    """Of three columns the third may be a rank."""
    texts = here / "texts"
    (texts / "qrels").mkdir(parents=True)
    for name, ids in (("corpus", ("d1", "d2", "d4", "d5", "d9")), ("queries", ("q1", "q2"))):
        rows = [json.dumps({"_id": id_, "text": f"text of {id_}"}) for id_ in ids]
        (texts / f"{name}.jsonl").write_text("\n".join(rows))
    (texts / "qrels/test.tsv").write_text("q1\td1\t1\nq1\td2\t0\nq2\td4\t2\nq2\td5\t1\n")
    Path("ranks.tsv").write_text(FORMS["ranks.tsv"])
    judged = judgements_of_data(str(texts))
    (experiment,) = measured_experiments(
        read_rankings(["ranks.tsv"], judged), judged, [RankingMetric("RR@10")]
    )
    collection = collection_of(experiment.runs[0])
    documents = Ranking(experiment.runs[0], collection).documents
    assert {query: [doc for doc, _ in ranked] for query, ranked in documents.items()} == {
        "q1": ["d9", "d1"],
        "q2": ["d5", "d4"],
    }
