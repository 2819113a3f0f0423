"""What the names of columns say: one name, and what each reader takes its column for."""

import json

import pytest

from ltr.data.collection import open_collection
from ltr.data.columns import is_certain, role_of, text_columns
from ltr.data.pair_files import _by_role
from ltr.data.record_files import open_record_files
from ltr.data.teacher_scores import TeacherScores
from ltr.errors import InputError
from ltr.mining.imported import negatives_of_file
from tests.world.collections import by_ids, small_collection

# A name; what it says; what pairs of ids, and texts with ids take its column for; and whether the
# first line of texts with tabs between may be names where it has this one. None: it is not read.
# Rows marked M are those in which readers disagree.
NAMES = {
    "query_id": ("query_id", "query_id", "id", True),
    "query-id": ("query_id", "query_id", "id", True),
    "QID": ("query_id", "query_id", "id", True),
    "queryId": ("query_id", "query_id", "id", False),
    "question_id": ("query_id", "query_id", "id", True),
    "QuestionID": ("query_id", "query_id", "id", False),
    "questionid": ("query_id", "query_id", "id", False),
    "doc_id": ("document_id", "doc_id", "id", True),
    "docid": ("document_id", "doc_id", "id", True),
    "pid": ("document_id", "doc_id", "id", True),
    "corpus-id": ("document_id", "doc_id", "id", True),
    "corpus_ids": ("document_id", "doc_id", "id", False),
    "document_id": ("document_id", "doc_id", "id", True),
    "passage_id": ("document_id", "doc_id", "id", True),
    "psg_id": ("document_id", None, "id", False),
    "_id": ("id", None, "id", True),
    "id": ("id", None, "id", True),
    "query": ("query", "query", "text", True),
    "question": ("query", "query", "text", True),
    "anchor": ("query", "query", None, True),
    "queryText": ("query", None, None, False),
    "text": ("text", None, "text", True),
    "contents": ("text", None, "text", False),
    "body": ("text", None, "text", True),
    "passages": ("text", None, None, False),
    "abstract": ("text", None, "text", False),
    "answer": ("text", None, None, True),
    "title": ("text", None, "title", True),
    "instruction": (None, None, "instruction", False),
    "pos": ("positive", "positive", None, True),
    "pos_id": (None, "positive", None, True),  # M3
    "positive_id": (None, "positive", None, True),  # M3
    "positive_passages": ("positive", None, None, False),  # M4
    "negative": ("negative", "negative", None, True),
    "neg_id": (None, "negative", None, True),  # M3
    "negatives": ("negative", None, None, False),  # M4
    "negative_1": ("negative", None, None, True),  # M4
    "hardNegatives": ("negative", None, None, False),  # M4
    "score": ("score", "score", None, True),
    "similarity": ("score", None, None, True),  # M9
    "relevance_score": ("score", None, None, True),  # M9
    "grade": ("grade", "grade", None, True),
    "relevance": ("grade", "grade", None, True),
    "rating": ("grade", None, None, True),  # M9
    "is_relevant": ("grade", None, None, True),  # M9
    "isDuplicate": ("grade", None, None, False),  # M9
    "esci_label": ("grade", None, None, False),  # M9
    "category": ("class", None, None, True),
    "distance": ("distance", "distance", None, False),
    "pos_scores": ("positive_scores", "positive_scores", None, False),
    "positive_scores": ("positive_scores", None, None, False),  # M4
    "negative_score": ("negative_scores", None, None, True),  # M4
    "rank": (None, None, None, True),
    "metadata": (None, None, None, False),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_each_reader_takes_a_column_for(name):
    in_pairs = next(iter(_by_role({name: "x"})), None)
    of_texts = None
    for others in [("id",), ("text",), ("id", "text")]:
        columns = text_columns((name.lower(), *others))
        if columns is not None and name.lower() in columns:
            of_texts = columns._fields[columns.index(name.lower())]
    assert (role_of(name), in_pairs, of_texts, is_certain(name)) == NAMES[name]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# Texts with ids: the file, what it holds, and the texts that are read, or None where it is refused.
TEXTS = {
    "BEIR": ("a.jsonl", lines({"_id": "1", "title": "t", "text": "b"}), {"1": "t b"}),
    "two ids": ("a.jsonl", lines({"docid": "2", "id": "1", "text": "b"}), {"1": "b"}),
    "Pyserini": ("a.jsonl", lines({"docid": "1", "contents": "b"}), {"1": "b"}),
    "Pyserini, tabs": ("a.tsv", "docid\tcontents\n1\tb\n", {"1": "b"}),
    "numbers": ("a.jsonl", lines({"_id": 1, "text": "b"}), None),
    "the first id": ("a.tsv", "doc_id\tid\ttext\n1\t2\tb\n", {"1": "b"}),
    "an address": ("a.tsv", "docid\turl\ttitle\tbody\n1\thttp://a\tt\tb\n", {"1": "t b"}),
    "objects of several keys": (
        "a.jsonl",
        lines({"_id": "1", "text": "b", "query": "c"}, {"docid": "2", "body": "d", "_id": "3"}),
        {"1": "b", "3": "d"},
    ),
    "two ids of one name": ("a.tsv", "id\tid\ttext\n1\t2\tb\n", None),
    "text before others": ("a.tsv", "id\ttext\tbody\n1\tb\tc\n", {"1": "b"}),
    "two texts": ("a.tsv", "id\tpassage\tbody\n1\tb\tc\n", None),
    "two texts in objects": ("a.jsonl", lines({"id": "1", "passage": "b", "body": "c"}), None),
    "the id behind": ("a.tsv", "title\tid\ttext\nt\t1\tb\n", {"1": "t b"}),
    "no names": ("a.tsv", "1\tb\tc\n", {"1": "b\tc"}),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_with_ids(tmp_path, case):
    name, content, expected = TEXTS[case]
    (tmp_path / name).write_text(content)
    if expected is None:
        with pytest.raises(InputError):
            open_record_files(tmp_path / name, "document")
        return
    table = open_record_files(tmp_path / name, "document")
    assert dict(zip(table.ids, table.texts, strict=True)) == expected


# The instruction of a query by the ending of its file.
INSTRUCTIONS = {
    ".jsonl": (lines({"_id": "1", "text": "a", "instruction": "find"}), "find"),
    ".tsv": ("id\ttext\tinstruction\n1\ta\tfind\n", "find"),
}


@pytest.mark.parametrize("ending", INSTRUCTIONS)
def test_an_instruction_beside_its_query(tmp_path, ending):
    content, expected = INSTRUCTIONS[ending]
    (tmp_path / f"a{ending}").write_text(content)
    instructions = open_record_files(tmp_path / f"a{ending}", "query").instructions
    assert (instructions and instructions[0]) == expected


# Pairs of the queries q1, q2 and the documents d1, d2: the file, what it holds, its scores, and the
# negatives that are imported, or None where it is refused.
BOTH = {"q1": {"d1": 2.0, "d2": 1.0}}
PAIRS = {
    "names": ("a.csv", "qid,pid,score\nq1,d1,2\nq1,d2,1\n", BOTH, {"q1": ["d2"]}),
    "the id of a question": (
        "a.jsonl",
        lines(
            {"question_id": "q1", "question": "what flows", "doc_id": "d1", "score": 2},
            {"question_id": "q1", "question": "what flows", "doc_id": "d2", "score": 1},
        ),
        BOTH,
        {"q1": ["d2"]},
    ),
    "ids beside a query": (
        "a.jsonl",
        lines(
            {"query_id": "q1", "query": "what flows", "pos_id": "d1", "neg_id": "d2"}
            | {"pos_score": 2, "neg_score": 1}
        ),
        None,  # M3
        None,
    ),
    "Tevatron": (
        "a.jsonl",
        lines(
            {"query_id": "q1", "query": "what flows"}
            | {"positive_passages": [{"docid": "d1", "title": "", "text": "x", "score": 2}]}
            | {"negative_passages": [{"docid": "d2", "title": "", "text": "y", "score": 1}]}
        ),
        None,  # M4
        None,
    ),
    "several negatives": (
        "a.jsonl",
        lines({"qid": "q1", "positive": "d1", "negative_1": "d2", "negative_2": "d3"}),
        None,
        None,  # M4
    ),
    "relevant by its rating": (
        "a.csv",
        "qid,pid,rating\nq2,d1,1\nq2,d3,0\n",
        None,  # M9
        {"q2": ["d1", "d3"]},  # M9
    ),
    "a similarity": (
        "a.csv",
        "qid,pid,similarity\nq1,d1,2\nq1,d2,1\n",
        None,  # M9
        {"q1": ["d2"]},
    ),
}


@pytest.fixture
def collection(tmp_path):
    corpus = {"d1": "the river", "d2": "the bridge", "d3": "the town"}
    queries = {"q1": "what flows", "q2": "what spans"}
    return small_collection(tmp_path / "data", corpus, queries, [("q1", "d1", 1), ("q2", "d2", 1)])


@pytest.mark.parametrize("case", PAIRS)
def test_scores_by_names(tmp_path, collection, case):
    name, content, expected, _ = PAIRS[case]
    file = tmp_path / name
    file.write_text(content)
    if expected is None:
        with pytest.raises(InputError):
            TeacherScores.open(file, collection)
    else:
        assert by_ids(collection, TeacherScores.open(file, collection).lists) == expected


@pytest.mark.parametrize("case", PAIRS)
def test_negatives_by_names(tmp_path, collection, case):
    name, content, _, expected = PAIRS[case]
    file = tmp_path / name
    file.write_text(content)
    if expected is None:
        with pytest.raises(InputError):
            negatives_of_file(file, collection)
    else:
        found = by_ids(collection, negatives_of_file(file, collection).lists)
        assert {query: [*docs] for query, docs in found.items()} == expected


# Names in the first line of judgements, and whether they are read as text with tabs.
JUDGEMENTS = {
    "query-id corpus-id score": True,
    "query_id doc_id score": False,  # M5
    "qid pid relevance": False,  # M5
}


@pytest.mark.parametrize("names", JUDGEMENTS)
@pytest.mark.parametrize("ending", [".tsv", ".csv"])
def test_judgements_by_names(tmp_path, collection, names, ending):
    sign = "\t" if ending == ".tsv" else ","
    folder = tmp_path / "data/qrels"
    (folder / f"dev{ending}").write_text(sign.join(names.split()) + f"\nq1{sign}d2{sign}1\n")
    if ending == ".csv" or JUDGEMENTS[names]:
        opened = open_collection(tmp_path / "data")
        assert by_ids(opened, opened.judgements("dev")) == {"q1": {"d2": 1.0}}
    else:
        with pytest.raises(InputError, match="a grade must be a number"):
            open_collection(tmp_path / "data").judgements("dev")
