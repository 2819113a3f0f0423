"""Rows of texts in each form that people publish them: what is read, and what is refused."""

import gzip
import json
import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ltr.data.collection import open_collection
from ltr.data.named_rows import read_blocks
from ltr.data.triples import open_text_files, read_scores
from tests.world.refusals import refused


def judgements(collection, split="train"):
    """By query and document, as texts."""
    lists = collection.qrels[split]
    found: dict = {}
    for query, doc, value in zip(lists.query_of_doc, lists.doc_rows, lists.values, strict=True):
        found.setdefault(collection.queries.texts[query], {})[collection.corpus.texts[doc]] = value
    return found


def passage(id_, text, title="", **more):
    return {"docid": id_, "title": title, "text": text, **more}


def ctx(id_, text, title="T"):
    return {"title": title, "text": text, "score": 9.5, "title_score": 1, "passage_id": id_}


TRIPLE = {"capital of France": {"Paris": 1, "Lyon": 0}}
FORMS = {
    "BGE": (
        {"query": "capital of France", "pos": ["Paris"], "neg": ["Lyon"], "prompt": "x"},
        TRIPLE,
    ),
    "BGE, scores": (
        {
            "query": "capital of France",
            "pos": ["Paris"],
            "neg": ["Lyon"],
            "pos_scores": [0.9],
            "neg_scores": [0.25],
        },
        TRIPLE,
    ),
    "Tevatron": (
        {
            "query_id": "7",
            "query": "capital of France",
            "positive_passages": [passage("d1", "Paris")],
            "negative_passages": [passage("d2", "is in Gaul", "Lyon")],
        },
        {"capital of France": {"Paris": 1, "Lyon is in Gaul": 0}},
    ),
    "DPR": (
        {
            "dataset": "nq",
            "question": "capital of France",
            "answers": ["Paris!"],
            "positive_ctxs": [ctx("1", "Paris")],
            "negative_ctxs": [ctx("2", "Lyon")],
            "hard_negative_ctxs": [ctx("3", "Nice")],
        },
        {"capital of France": {"T Paris": 1, "T Nice": 0, "T Lyon": 0}},
    ),
    "pair": (
        {"anchor": "capital of France", "positive": "Paris"},
        {"capital of France": {"Paris": 1}},
    ),
    "pair of GooAQ": (
        {"question": "capital of France", "answer": "Paris"},
        {"capital of France": {"Paris": 1}},
    ),
    "pair by its order": ({"title": "a", "abstract": "b"}, {"a": {"b": 1}}),
    "SimCSE": ({"sent0": "a", "sent1": "b", "hard_neg": "c"}, {"a": {"b": 1, "c": 0}}),
    "triplet": (
        {"anchor": "capital of France", "positive": "Paris", "negative": "Lyon"},
        TRIPLE,
    ),
    "many negatives": (
        {"query": "capital of France", "answer": "Paris", "negative_1": "Lyon", "negative_2": "x"},
        {"capital of France": {"Paris": 1, "Lyon": 0, "x": 0}},
    ),
    "a margin": (
        {"query": "capital of France", "positive": "Paris", "negative": "Lyon", "score": 3.5},
        TRIPLE,
    ),
    "score": (
        {"sentence1": "a man", "sentence2": "one man", "score": 4.75},
        {"a man": {"one man": 4.75}},
    ),
    "label": (
        {"sentence1": "a man", "sentence2": "a dog", "label": -1},  # as negative grades
        {"a man": {"a dog": 0}},
    ),
    "labelled pair": (
        {"query": "a", "document": "b", "label": "2"},
        {"a": {"b": 2}},
    ),
    "WikiQA": (
        {"question_id": "Q1", "question": "a", "document_title": "t", "answer": "b", "label": 1},
        {"a": {"b": 1}},
    ),
    "Quora": (
        {"id": 0, "qid1": 1, "question1": "a", "qid2": 2, "question2": "b", "is_duplicate": True},
        {"a": {"b": 1}},
    ),
    "labelled list": (
        {"query": "a", "docs": ["b", "c", "d"], "labels": [0.5, 0, 2]},
        {"a": {"b": 0.5, "c": 0, "d": 2}},
    ),
    "a title beside its text": ({"query": "a", "title": "t", "text": "b"}, {"a": {"t b": 1}}),
    "titles of both": (
        {
            "query": "a",
            "positive_title": "t",
            "positive_text": "b",
            "negative_title": None,
            "negative_text": "c",
        },
        {"a": {"t b": 1, "c": 0}},
    ),
    "titles of a list": (
        {"query": "a", "doc_titles": ["t", ""], "docs": ["b", "c"], "labels": [1, 0]},
        {"a": {"t b": 1, "c": 0}},
    ),
    "names without lines between": (
        {"queryText": "a", "positiveText": "b", "hardNegatives": ["c"], "document": "d"},
        {"a": {"b": 1, "c": 0}},
    ),
    "a label": ({"query": "a", "document": "b", "isDuplicate": False}, {"a": {"b": 0}}),
    "a category": (
        {"question": "a", "answer": "b", "category": "c", "questionIndex": 3},
        {"a": {"b": 1}},
    ),
    "a class beside a label": (
        {"query": "a", "document": "b", "label": 0, "class": 5},
        {"a": {"b": 0}},
    ),
    "MTEB's reranking": (
        {"query": ["a", "b"], "positive": ["c"], "negative": ["d", "e"]},
        {"a": {"c": 1, "d": 0, "e": 0}, "b": {"c": 1, "d": 0, "e": 0}},
    ),
}


def write_rows(file: Path, *rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(rows)), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_known_by_its_columns(tmp_path, form, name):
    row, expected = FORMS[form]
    assert judgements(open_collection(write_rows(tmp_path / name, row))) == expected


@pytest.mark.parametrize("nothing", [None, []])
def test_rows_with_and_without_negatives(tmp_path, caplog, nothing):
    """Nothing is left out of rows without."""
    without = {"query": "x", "pos": ["y"], "neg": nothing, "neg_scores": nothing}
    negatives = {"query": "a", "pos": ["b"], "neg": ["c"], "neg_scores": [1]}
    file = write_rows(tmp_path / "train.jsonl", without, negatives, without)
    assert judgements(open_collection(file)) == {"x": {"y": 1}, "a": {"b": 1, "c": 0}}
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_ids_are_kept_where_the_rows_have_them(tmp_path):
    tevatron = open_collection(write_rows(tmp_path / "a.jsonl", FORMS["Tevatron"][0]))
    assert (list(tevatron.queries.ids), list(tevatron.corpus.ids)) == (["7"], ["d1", "d2"])
    dpr = open_collection(write_rows(tmp_path / "b.json", FORMS["DPR"][0]))
    assert list(dpr.corpus.ids) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [({"document_id": "D1"}, "D1"), ({"corpus_id": 7}, "7"), ({"_id": "a", "docid": "b"}, "b")],
)
def test_an_id_in_an_object_is_kept_by_any_of_its_names(tmp_path, ids, expected):
    row = {"query": "a", "pos": [{**ids, "text": "b"}]}
    collection = open_collection(write_rows(tmp_path / "a.jsonl", row))
    assert list(collection.corpus.ids) == [expected]


IDS = {
    "of a document": ({"query_id": "1", "query": "a", "doc_id": "7", "document": "b"}, "7"),
    "of its kind": ({"QuestionID": "1", "Question": "a", "SentenceID": "7", "Sentence": "b"}, "7"),
    "in a list": ({"qid": 1, "query": "a", "docid": [7], "text": ["b"], "label": [1]}, "7"),
    # Several sentences are of one document.
    "of something else": ({"qid": "1", "query": "a", "doc_id": "7", "sentence": "b"}, None),
}


@pytest.mark.parametrize("case", IDS)
def test_an_id_of_the_document_may_be_a_column(tmp_path, case):
    row, expected = IDS[case]
    collection = open_collection(write_rows(tmp_path / "a.jsonl", row))
    assert list(collection.queries.ids) == ["1"]
    (doc_id,) = collection.corpus.ids
    assert doc_id == expected or (expected is None and len(doc_id) == 25)


def test_labels_and_scores_of_csv_are_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("query,document,label\na,b,True\na,c,False\na,d,\n")
    assert judgements(open_collection(tmp_path / "a.csv")) == {"a": {"b": 1, "c": 0}}
    (tmp_path / "b.csv").write_text(
        "query,positive,negative,pos_score,neg_score\na,b,c,0.5,1e-1\nd,e,f,,\n"
    )
    scores = [line[2] for _, line in read_scores(open_text_files([tmp_path / "b.csv"]))]
    assert scores == [0.5, 0.1]


def test_hard_negatives_come_before_others(tmp_path):
    dpr = open_collection(write_rows(tmp_path / "b.json", FORMS["DPR"][0]))
    assert list(judgements(dpr)["capital of France"]) == ["T Paris", "T Nice", "T Lyon"]


def test_rows_and_lines_of_the_same_texts_are_one_collection(tmp_path):
    """Ids follow from the texts, so the tables are equal to the byte."""
    (tmp_path / "a.tsv").write_text("capital of France\tParis\tLyon\n")
    lines = open_collection(tmp_path / "a.tsv")
    rows = open_collection(write_rows(tmp_path / "a.jsonl", FORMS["BGE"][0]))
    for kind in ("queries", "corpus"):
        assert list(getattr(rows, kind).ids) == list(getattr(lines, kind).ids)
    assert judgements(rows) == judgements(lines)


def test_one_line_says_what_the_columns_are_read_as(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    file = write_rows(tmp_path / "a.json", FORMS["DPR"][0])
    open_collection(file)
    assert (
        f"{file}: columns are read as query: question; positive: positive_ctxs; negative: hard_negative_ctxs, negative_ctxs; not read: dataset, answers"
        in caplog.messages
    )


def test_scores_have_the_ids_of_the_collection(tmp_path):
    file = write_rows(tmp_path / "a.jsonl", FORMS["BGE, scores"][0])
    collection = open_collection(file)
    found = {}
    for where, (query, doc, score) in read_scores(open_text_files([file])):
        assert where == f"{file}:1" and query == collection.queries.ids[0]
        found[collection.corpus.texts[collection.corpus.row(doc)]] = score
    assert found == {"Paris": 0.9, "Lyon": 0.25}
    file = write_rows(tmp_path / "b.json", FORMS["DPR"][0])
    assert [line[1:] for _, line in read_scores(open_text_files([file]))] == [
        ("1", 9.5),
        ("3", 9.5),
        ("2", 9.5),
    ]


def test_what_is_left_out_is_counted_with_its_first_place(tmp_path, caplog):
    file = write_rows(
        tmp_path / "a.jsonl",
        {"query": "a", "pos": ["b", " "], "neg": [None]},
        {"query": "c", "pos": [], "neg": ["d"]},
        {"query": "", "pos": ["e"], "neg": None},
        {"query": "f", "pos": None},
    )
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        assert judgements(open_collection(file)) == {"a": {"b": 1}}
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [record.getMessage().partition(": ")[2] for record in warnings] == [
            f"of 4 rows, 1 positives without a text are left out, first {file.name}:1",
            f"of 4 rows, 1 negatives without a text are left out, first {file.name}:1",
            f"of 4 rows, 2 rows without a positive are left out, first {file.name}:2",
            f"of 4 rows, 1 rows without a query are left out, first {file.name}:3",
        ]


GOOD = {"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [1], "neg_scores": [0]}
LABELLED = {"query": "a", "docs": ["b", "c"], "labels": [1, 0]}
BROKEN_ROWS = {
    "a number": (GOOD, {"query": 3}, "'query' must hold a text, .* got 3"),
    "in a list": (GOOD, {"pos": ["b", 3]}, "'pos' must hold a text, .* got 3"),
    "an object": (GOOD, {"neg": [{"title": "c"}]}, "'neg' must hold a text, an object with 'text'"),
    "its text": (GOOD, {"neg": [{"text": 3}]}, "'neg' must hold a text, an object with 'text'"),
    "an id": (GOOD, {"neg": [{"text": "x", "docid": [1]}]}, "an id must be a text or a whole"),
    "missing": (GOOD, {"pos": ...}, "a row must have the column 'pos', got"),
    "few scores": (
        GOOD,
        {"pos_scores": [1, 2]},
        "'pos_scores' must have one value for each .* 1 of",
    ),
    "an infinite score": (
        GOOD,
        {"neg_scores": [10**400]},
        "'neg_scores': a score must be a finite",
    ),
    "of a document": (GOOD, {"neg": [{"text": "x", "score": "1e400"}]}, "'neg': a score must be a"),
    "no score": (
        GOOD,
        {"neg_scores": ["high"]},
        "'neg_scores': a score must be a finite number .* got 'high'",
    ),
    "labels": (
        LABELLED,
        {"labels": [1]},
        "'labels' must have one value for each .* 2 of them, got 1",
    ),
    "a word": (
        LABELLED,
        {"labels": [1, "relevant"]},
        "'labels': a grade must be a number .* got 'relevant'",
    ),
    "not finite": (
        LABELLED,
        {"labels": [1, "nan"]},
        "'labels': a grade must be a number .* got 'nan'",
    ),
    "no Unicode": (GOOD, {"pos": ["\ud800"]}, "text must be valid Unicode"),
    "a sign": (GOOD | {"qid": "1"}, {"qid": "#"}, "the id of a query must not be '#'"),
    "two labels": (LABELLED, {"labels": [0, 1]}, "a text has two labels for the same query: 'b'"),
}


@pytest.mark.parametrize("case", BROKEN_ROWS)
def test_a_broken_row_is_one_line_that_leads_to_it(tmp_path, case):
    good, change, words = BROKEN_ROWS[case]
    row = {name: value for name, value in {**good, **change}.items() if value is not ...}
    file = write_rows(tmp_path / "a.jsonl", good, row)
    with refused(f"{file}:2: .*{words}"):
        open_collection(file)


UNCLEAR = {
    "no query": (["x", "y"], "no column is called as a query is, got x, y"),
    "queries": (["query", "question", "answer"], "query and question may each be the query"),
    "documents": (["query", "passage1", "passage2"], "passage1 and passage2 may each be the doc"),
    "labels": (["query", "document", "label", "score"], "label and score may each be the label"),
    "a label": (["query", "positive", "score"], "score may be the label of a document"),
    "a label of no document": (
        ["search_term", "product_title", "product_description", "relevance"],
        "beside product_title no column is called as a document is, got search_term, product_t",
    ),
    "classes": (["premise", "hypothesis", "label"], "labels of a premise are classes"),
    "a number": (
        ["query", "document", "clicks"],
        "clicks holds numbers, and may be the label of doc",
    ),
    "a class": (["question", "answer", "class"], "class holds numbers, and may be the label"),
    "alone": (["query", "negative"], "there is no document or positive"),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_columns_that_leave_a_choice_are_refused(tmp_path, case):
    names, words = UNCLEAR[case]
    file = write_rows(tmp_path / "a.jsonl", dict.fromkeys(names, "1"))
    with refused(f"{file}: columns must say .*{words}.*rename them"):
        open_collection(file)


def test_what_is_null_is_left_out_and_counted(tmp_path, caplog):
    nan = float("nan")
    file = write_rows(
        tmp_path / "a.jsonl",
        {"query": "a", "document": "b", "label": 1},
        {"query": "a", "document": None, "label": 1},
        {"query": "a", "document": "d", "label": None},
        {"query": "a", "document": "e", "label": nan},
        {"query": "a", "document": "f", "label": ""},
        {"query": "a", "document": nan, "label": 1},
    )
    assert judgements(open_collection(file)) == {"a": {"b": 1}}
    assert f"of 6 rows, 2 rows without a document are left out, first {file.name}:2" in caplog.text
    assert (
        f"of 6 rows, 3 documents without a label are left out, first {file.name}:3" in caplog.text
    )
    scores = {"pos_scores": [None], "neg_scores": []}
    assert judgements(open_collection(write_rows(tmp_path / "b.jsonl", GOOD | scores)))


FIRST_ROWS = {
    "what a reader found": (
        {"question": "a", "ctxs": [{"id": "1", "text": "b", "score": "9.5", "has_answer": False}]},
        "all documents of column 'ctxs' would be positives, got one with 'has_answer'",
    ),
    "a truth value": (
        {"query": "a", "documents": [{"text": "b", "relevant": True}, {"text": "c"}]},
        "all documents of column 'documents' would be positives, got one with 'relevant'",
    ),
    "a rating": (
        {"query": "a", "documents": [{"text": "b"}, {"text": "c", "rating": 0}]},
        "all documents of column 'documents' would be positives, got one with 'rating'",
    ),
    "what is_ says": (
        {"query": "a", "answers": [{"text": "b", "is_correct": False}]},
        "all documents of column 'answers' would be positives, got one with 'is_correct'",
    ),
    "lists as texts": (
        {"query": "a", "pos": "['b', 'c']"},
        """column 'pos' must hold a text, got a list written as a text, "\\['b', 'c'\\]";""",
    ),
    "ids": (
        {"query": "1048585", "positive": "7187158", "negative": "7617404"},
        "column 'query' must hold texts, got ids or numbers alone, \"1048585\";",
    ),
}


@pytest.mark.parametrize("case", FIRST_ROWS)
def test_what_the_first_rows_show_is_refused(tmp_path, case):
    row, words = FIRST_ROWS[case]
    file = write_rows(tmp_path / "a.jsonl", row)
    with refused(f"{file}:1: {words}"):
        open_collection(file)


def test_ids_in_the_place_of_documents_are_refused(tmp_path):
    rows = [{"query": f"what is {n}", "positive": f"d{n}"} for n in range(20)]
    file = write_rows(tmp_path / "a.jsonl", *rows)
    with refused(f"{file}:1: column 'positive' must hold texts, got ids or numbers alone, \"d0\""):
        open_collection(file)
    assert open_collection(write_rows(tmp_path / "b.jsonl", *rows[:19]))
    # An answer may be a number, or look as a list does.
    sums = [{"query": f"{n} + {n}", "answer": str(2 * n)} for n in range(20)]
    assert open_collection(write_rows(tmp_path / "c.jsonl", *sums))
    code = [*sums, {"query": "list('ab')", "answer": "['a', 'b']"}]
    found = judgements(open_collection(write_rows(tmp_path / "d.jsonl", *code)))
    assert found["list('ab')"] == {"['a', 'b']": 1}


LATE = {"negative": "c", "query_id": "1", "pos_scores": [1]}


@pytest.mark.parametrize("name", LATE)
def test_columns_that_first_rows_have_not_are_refused(tmp_path, name):
    row = {"query": "a", "positive": ["b"]}
    file = write_rows(tmp_path / "a.jsonl", *[row] * 100, row | {name: LATE[name]})
    with refused(f"{file}:101: the first 100 rows must have all columns, got '{name}'"):
        open_collection(file)


def test_a_list_of_no_documents_is_counted(tmp_path, caplog):
    file = write_rows(tmp_path / "a.jsonl", LABELLED, {"query": "d", "docs": [], "labels": []})
    assert judgements(open_collection(file)) == {"a": {"b": 1, "c": 0}}
    assert f"of 2 rows, 1 rows without a document are left out, first {file.name}:2" in caplog.text


def test_columns_can_be_chosen(tmp_path):
    file = write_rows(tmp_path / "a.jsonl", {"x": "a", "y": "b", "z": "c", "label": "d"})
    columns = {"query": "x", "positive": "y", "negative": "z,label"}
    assert judgements(open_collection(file, columns)) == {"a": {"b": 1, "c": 0, "d": 0}}
    (tmp_path / "a.tsv").write_text('x\ty\n"a" b\t"c\n')
    columns = {"query": "x", "positive": "y"}
    assert judgements(open_collection(tmp_path / "a.tsv", columns)) == {'"a" b': {'"c': 1}}
    with refused("each column must have one role, got 'x' for query and positive"):
        open_collection(file, {"query": "x", "positive": "x"})
    with refused("there is no column 'w' for query, only x, y, z, label"):
        open_collection(file, {"query": "w", "positive": "y"})
    with refused("a role must be one of query, .* got 'pos'"):
        open_collection(file, {"query": "x", "pos": "y"})


def test_a_first_row_is_not_lost_as_the_names_of_chosen_columns(tmp_path, caplog):
    file = tmp_path / "a.csv"
    for query, positive, wrong in (
        ("what is rust?", "a language", "what is rust"),
        ("rust", "a language for systems that is fast", "a language for"),
        ("rust", "1.5", "1.5"),
    ):
        file.write_text(f"{query},{positive}\nzig,a tongue\n")
        with refused(f"{file}:1: the first line must hold the names of columns, got '{wrong}"):
            open_collection(file, {"query": query, "positive": positive})
    # May be either.
    file.write_text("rust,a language\nzig,a tongue\n")
    assert len(open_collection(file, {"query": "rust", "positive": "a language"}).queries) == 1
    assert f"{file}:1: the first line is read as the names of columns, rust, a langu" in caplog.text


@pytest.mark.parametrize("names", ["Frage,field_2", "field_1,x"])
def test_chosen_names_that_are_none_but_names_are_not_told(tmp_path, caplog, names):
    (tmp_path / "a.csv").write_text(f"{names}\nwhat is zig,a tongue\n")
    query, positive = names.split(",")
    open_collection(tmp_path / "a.csv", {"query": query, "positive": positive})
    assert "first line" not in caplog.text
    # In JSON no row has the names.
    row = {"what is a name of a column?": "a", "b": "c"}
    file = write_rows(tmp_path / "a.jsonl", row)
    open_collection(file, {"query": "what is a name of a column?", "positive": "b"})


def test_splits_are_told_by_the_names_of_files(tmp_path):
    def row(text):
        return {"query": f"query {text}", "pos": [text]}

    write_rows(tmp_path / "a/train.jsonl", row("t"))
    write_rows(tmp_path / "a/validation.json", row("d"))
    (tmp_path / "a/test.tsv").write_text("query x\tx\n")
    write_rows(tmp_path / "a/README.json", {"x": 1})
    write_rows(tmp_path / "b/data/train-00000-of-00002.parquet", row("t"))
    write_rows(tmp_path / "b/data/train-00001-of-00002.parquet", row("u"))
    write_rows(tmp_path / "b/data/test-00000-of-00001.parquet", row("x"))
    found = {}
    for name in "ab":
        collection = open_collection(tmp_path / name)
        found[name] = {split: judgements(collection, split) for split in collection.qrels}
    assert found["a"] == {
        "train": {"query t": {"t": 1}},
        "dev": {"query d": {"d": 1}},
        "test": {"query x": {"x": 1}},
    }
    assert found["b"] == {
        "train": {"query t": {"t": 1}, "query u": {"u": 1}},
        "test": {"query x": {"x": 1}},
    }


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["train.jsonl", "train.json"],
            "must be one file, or shards of one name, got train.json, ",
        ),
        (["train.jsonl", "train.tsv"], "there must be one file of train, got train.tsv and train"),
        (
            ["dev.jsonl", "val.jsonl"],
            "dev must be one file, or shards of one name, got dev.jsonl, ",
        ),
        (["train.jsonl", "train-1.jsonl"], "train must be one file, or shards of one name"),
        (["train-00000-of-00002.parquet"], "train must have 2 shards, .* got 1; fetch"),
        (["nli.jsonl"], r"rows with named columns as .* found \['nli.jsonl'\]"),
    ],
)
def test_files_that_are_no_split_or_two_are_refused(tmp_path, names, words):
    for name in names:
        if name.endswith(".tsv"):
            (tmp_path / name).write_text("a\tb\n")
        else:
            write_rows(tmp_path / name, {"query": "a", "pos": ["b"]})
    with refused(f"{tmp_path}: .*{words}"):
        open_collection(tmp_path)


def test_shards_with_digests_in_their_names_are_read(tmp_path):
    """As the hub has named them."""
    for text, digest in (("a", "2a1df75c6bce91ab"), ("b", "00000000ffffffff")):
        number = "ab".index(text)
        name = f"data/train-0000{number}-of-00002-{digest}.parquet"
        write_rows(tmp_path / name, {"query": text, "pos": [text]})
    write_rows(tmp_path / "data/test-00000-of-00001.parquet", {"query": "x", "pos": ["x"]})
    collection = open_collection(tmp_path)
    assert judgements(collection) == {"a": {"a": 1}, "b": {"b": 1}}
    assert judgements(collection, "test") == {"x": {"x": 1}}


def test_what_is_called_as_a_split_and_is_no_file_is_refused(tmp_path):
    (tmp_path / "a/train.parquet").mkdir(parents=True)
    with refused("train.parquet: expected a file, got a folder"):
        open_collection(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/train.jsonl").symlink_to("nowhere")
    with refused("train.jsonl: expected a file, got a link that leads nowhere"):
        open_collection(tmp_path / "b")


def test_a_positive_that_is_a_negative_in_another_shard_is_a_positive(tmp_path, caplog):
    """As where negatives are mined: each line knows its own positives."""
    write_rows(tmp_path / "train-1.jsonl", {"query": "a", "pos": ["b"]})
    second = write_rows(tmp_path / "train-2.jsonl", GOOD, {**GOOD, "pos": ["d"], "neg": ["b"]})
    write_rows(tmp_path / "test.jsonl", {"query": "x", "pos": ["y"], "neg": ["y", "z", "y"]})
    collection = open_collection(tmp_path)
    assert judgements(collection) == {"a": {"b": 1, "c": 0, "d": 1}}
    assert judgements(collection, "test") == {"x": {"y": 1, "z": 0}}
    words = "negatives are positives of the same query, too, and left out, first told by"
    assert f"1 {words} {second.name}:2: 'b'" in caplog.text
    assert f"2 {words} test.jsonl:1: 'y'" in caplog.text


def test_files_of_texts_that_are_of_no_split_are_named(tmp_path, caplog):
    row = {"query": "a", "pos": ["b"]}
    for name in ("train.jsonl", "train_hn.jsonl", "data/test.jsonl", "info.json"):
        write_rows(tmp_path / name, row)
    (tmp_path / "extra.tsv").write_text("a\tb\n")
    # A packed file beside its plain self is the same.
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(b'{"query": "c", "pos": ["d"]}'))
    collection = open_collection(tmp_path)
    assert {split: judgements(collection, split) for split in collection.qrels} == {
        "train": {"a": {"b": 1}}
    }
    unread = "extra.tsv, train_hn.jsonl, data/test.jsonl"
    assert f"{tmp_path}: not read are {unread}, as they are called neither" in caplog.text


def test_an_id_with_two_texts_is_refused_with_both_places(tmp_path):
    row = {"query_id": "1", "query": "a", "positive_passages": [passage("d1", "b")]}
    same = row | {"query_id": "2", "query": "c"}
    file = write_rows(tmp_path / "a.jsonl", row, same)
    assert judgements(open_collection(file)) == {"a": {"b": 1}, "c": {"b": 1}}
    file = write_rows(tmp_path / "b.jsonl", row, same, row | {"query": "A"})
    with refused(f"{file}:3: query id '1' stands twice with different texts, first at {file}:1"):
        open_collection(file)
    other = same | {"positive_passages": [passage("d2", "b"), passage("d1", "B")]}
    file = write_rows(tmp_path / "c.jsonl", row, other)
    with refused(f"{file}:2: document id 'd1' stands twice with different texts, first at"):
        open_collection(file)


def test_rows_are_read_once_for_all_that_is_made_of_them(tmp_path, monkeypatch):
    """Beside the first rows, which say what the columns are for."""
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    readings = []

    def counted(file):
        readings.append(file.name)
        return read_blocks(file)

    monkeypatch.setattr("ltr.data.triples.read_blocks", counted)
    write_rows(tmp_path / "data/train.jsonl", FORMS["BGE"][0])
    write_rows(tmp_path / "data/test.jsonl", FORMS["pair"][0])
    first = open_collection(tmp_path / "data")
    assert readings == ["train.jsonl", "test.jsonl"] * 2
    open_collection(tmp_path / "data")
    assert readings[4:] == ["train.jsonl", "test.jsonl"]
    # What is gone from the cache is made again, as it was.
    for kind in ("texts", "lists"):
        for folder in (tmp_path / "cache" / kind).iterdir():
            before = {file.name: file.read_bytes() for file in folder.glob("*.npy")}
            shutil.rmtree(folder)
            again = open_collection(tmp_path / "data")
            assert {file.name: file.read_bytes() for file in folder.glob("*.npy")} == before
            assert judgements(again) == judgements(first)


def test_what_is_refused_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    file = write_rows(tmp_path / "a.jsonl", GOOD, GOOD | {"query": 3})
    with refused("a.jsonl:2"):
        open_collection(file)
    assert list((tmp_path / "cache").glob("*/*")) == []


@pytest.mark.parametrize("row", [{"query": "a", "pos": []}, {"query": "", "pos": ["b"]}])
def test_rows_of_which_none_is_left_are_refused(tmp_path, row):
    file = write_rows(tmp_path / "a.jsonl", row, row)
    with refused(f"{file}: .* of 2 rows, 2 rows without a .* are left out, first {file.name}:1"):
        open_collection(file)


def test_of_several_wrong_lines_the_first_is_told_of(tmp_path):
    """Texts go to the tables many at a time, documents before queries. Behind the first rows, whose
    columns are looked at, one line has a wrong query, the next a wrong document, and one is no row.
    """
    lines = ['{"query": "q", "pos": ["p"]}'] * 200
    wrong = ['{"query": "a\\u0000", "pos": ["b"]}', '{"query": "c", "pos": ["\\u0000"]}', "["]
    for n_mended in range(3):
        file = tmp_path / f"{n_mended}.jsonl"
        file.write_text("\n".join([*lines, *wrong[n_mended:]]))
        what = "a line must be one JSON object" if n_mended == 2 else "text must not hold NUL"
        with refused(f"{file}:201: {what}"):
            open_collection(file)
