"""What the names of columns say: one name, and what each reader takes its column for."""

import json

import pytest

from ltr.data.cache_folder import entry_folder
from ltr.data.collection import open_collection
from ltr.data.columns import is_certain, pair_columns, role_of, text_columns
from ltr.data.files import digest_of
from ltr.data.record_files import open_record_files
from ltr.data.teacher_scores import TeacherScores
from ltr.errors import InputError
from ltr.mining.imported import negatives_of_file
from tests.world.collections import by_ids, small_collection
from tests.world.refusals import refused

# A name; what it says; what pairs of ids, and texts with ids take its column for; and whether the
# first line of texts with tabs between may be names where it has this one. None: it is not read.
NAMES = {
    "query_id": ("query_id", "query_id", "id", True),
    "query-id": ("query_id", "query_id", "id", True),
    "QID": ("query_id", "query_id", "id", True),
    "queryId": ("query_id", "query_id", "id", False),
    "question_id": ("query_id", "query_id", "id", True),
    "QuestionID": ("query_id", "query_id", "id", False),
    "questionid": ("query_id", "query_id", "id", False),
    "doc_id": ("document_id", "document_id", "id", True),
    "docid": ("document_id", "document_id", "id", True),
    "pid": ("document_id", "document_id", "id", True),
    "corpus-id": ("document_id", "document_id", "id", True),
    "corpus_ids": ("document_id", "document_id", "id", False),
    "document_id": ("document_id", "document_id", "id", True),
    "passage_id": ("document_id", "document_id", "id", True),
    "docno": ("document_id", "document_id", "id", False),
    "psg_id": ("document_id", "document_id", "id", False),
    "_id": ("id", "id", "id", True),
    "id": ("id", "id", "id", True),
    "query": ("query", "query", "text", True),
    "question": ("query", "query", "text", True),
    "anchor": ("query", "query", "text", True),
    "queryText": ("query", None, None, False),
    "text": ("text", None, "text", True),
    "contents": ("text", None, "text", False),
    "body": ("text", None, "text", True),
    "passages": ("text", None, "text", False),
    "abstract": ("text", None, "text", False),
    "answer": ("text", None, "text", True),
    "title": ("text", None, "title", True),
    "instruction": (None, None, "instruction", False),
    "pos": ("positive", "positive", None, True),
    "pos_id": ("positive_id", "positive_id", None, True),
    "positive_id": ("positive_id", "positive_id", None, True),
    "positive_passages": ("positive", "positive", None, False),
    "negative": ("negative", "negative", None, True),
    "neg_id": ("negative_id", "negative_id", None, True),
    "negatives": ("negative", "negative", None, False),
    "negative_1": ("negative", "negative", None, True),
    "hardNegatives": ("negative", "negative", None, False),
    "score": ("score", "score", None, True),
    "similarity": ("score", "score", None, True),
    "relevance_score": ("score", None, None, True),
    "grade": ("grade", "grade", None, True),
    "relevance": ("grade", "grade", None, True),
    "rel": ("grade", "grade", None, False),
    "rating": ("grade", "grade", None, True),
    "is_relevant": ("grade", "grade", None, True),
    "isDuplicate": ("grade", None, None, False),
    "esci_label": ("grade", None, None, False),
    "category": ("class", None, None, True),
    "distance": ("distance", "distance", None, False),
    "pos_scores": ("positive_scores", "positive_scores", None, False),
    "positive_scores": ("positive_scores", "positive_scores", None, False),
    "negative_score": ("negative_scores", "negative_scores", None, True),
    "rank": (None, None, None, True),
    "metadata": (None, None, None, False),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_each_reader_takes_a_column_for(name):
    in_pairs = next(iter(pair_columns((name,))), None)
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
    "numbers": ("a.jsonl", lines({"_id": 1, "text": "b"}), {"1": "b"}),
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
    "a question and its answer": (
        "a.jsonl",
        lines({"id": "1", "question": "b", "answer": "c"}),
        None,
    ),
    "an abstract and its article": ("a.tsv", "id\tabstract\tarticle\n1\tb\tc\n", None),
    "a title of another name": (
        "a.jsonl",
        lines({"docId": "1", "docTitle": "t", "text": "b"}),
        {"1": "t b"},
    ),
    "a text of another name": ("a.tsv", "docno\tanswer\n1\tb\n", {"1": "b"}),
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


@pytest.mark.parametrize("ending", [".jsonl", ".tsv"])
def test_questions_beside_their_answers_are_queries(tmp_path, caplog, ending):
    """And a table that was made when others of the same columns were read is not taken for it."""
    content = lines({"id": 1, "question": "b", "answer": "c"})
    (tmp_path / f"a{ending}").write_text("id\tquestion\tanswer\n1\tb\tc\n")
    if ending == ".jsonl":
        (tmp_path / f"a{ending}").write_text(content)
    with caplog.at_level("INFO", logger="ltr.data"):
        table = open_record_files(tmp_path / f"a{ending}", "query")
    assert [*table.ids, *table.texts] == ["1", "b"]
    assert f"a{ending}: columns are read as id, question; not read: answer" in caplog.text
    digest = digest_of(tmp_path / f"a{ending}")
    form = {".tsv": "tsv-3 ", ".jsonl": ""}[ending]
    assert table.folder != entry_folder("texts", f"texts-1 query {form}{digest}")
    (tmp_path / "b.jsonl").write_text(lines({"_id": "1", "title": "a", "text": "b"}))
    plain = open_record_files(tmp_path / "b.jsonl", "query")
    content = f"texts-1 query {digest_of(tmp_path / 'b.jsonl')}"
    assert plain.folder == entry_folder("texts", content)


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
        BOTH,
        {"q1": ["d2"]},
    ),
    "Tevatron": (
        "a.jsonl",
        lines(
            {"query_id": "q1", "query": "what flows"}
            | {"positive_passages": [{"docid": "d1", "title": "", "text": "x", "score": 2}]}
            | {"negative_passages": [{"docid": "d2", "title": "", "text": "y", "score": 1}]}
        ),
        BOTH,
        {"q1": ["d2"]},
    ),
    "several negatives": (
        "a.jsonl",
        lines({"qid": "q1", "positive": "d1", "negative_1": "d2", "hard_negative": "d3"}),
        None,
        {"q1": ["d3", "d2"]},
    ),
    "relevant by its rating": (
        "a.csv",
        "qid,pid,rating\nq2,d1,1\nq2,d3,0\n",
        {"q2": {"d1": 1.0, "d3": 0.0}},
        {"q2": ["d3"]},
    ),
    "topics": ("a.tsv", "topic\tdocno\tscore\nq1\td1\t2\nq1\td2\t1\n", BOTH, {"q1": ["d2"]}),
    "gains": (
        "a.csv",
        "topic_id,pid,gain\nq2,d1,1\nq2,d3,0\n",
        {"q2": {"d1": 1.0, "d3": 0.0}},
        {"q2": ["d3"]},
    ),
    "a similarity": (
        "a.csv",
        "qid,pid,similarity\nq1,d1,2\nq1,d2,1\n",
        BOTH,
        {"q1": ["d2"]},
    ),
    "passages without their query": (
        "a.jsonl",
        lines({"qid": "q1", "neg": [{"docid": "d2", "text": "y"}, "d3"]}),
        None,
        {"q1": ["d2", "d3"]},
    ),
    "relevant by a truth value": (
        "a.csv",
        "qid,pid,score,is_relevant\nq2,d1,9,True\nq2,d3,8,False\n",
        {"q2": {"d1": 9.0, "d3": 8.0}},
        {"q2": ["d3"]},
    ),
    "a label that is none": (
        "a.csv",
        "qid,pid,score,target_lang\nq1,d1,2,en\nq1,d2,1,de\n",
        BOTH,
        {"q1": ["d2"]},
    ),
    "scores of one side alone": (
        "a.jsonl",
        lines({"qid": "q1", "pos": ["d1", "d2"], "pos_scores": [2, 1], "neg_scores": [3]}),
        BOTH,
        None,
    ),
    "a note": ("a.csv", "qid,pid,score,note\nq1,d1,2,5\nq1,d2,1,seen\n", BOTH, {"q1": ["d2"]}),
    "two ids": ("a.csv", "docid,pid,qid,score\nd9,d1,q1,2\nd9,d2,q1,1\n", BOTH, {"q1": ["d2"]}),
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


# A file of judgements with names, read alike under each ending that its separator allows.
JUDGEMENTS = {
    "BEIR": ".tsv query-id corpus-id score",
    "as scores are written": ".tsv query_id doc_id score",
    "of others": ".tsv qid pid relevance",
    "in another order": ".tsv relevance pid qid",
    "CSV": ".csv query_id doc_id score",
}


@pytest.mark.parametrize("case", JUDGEMENTS)
def test_judgements_by_names(tmp_path, collection, case):
    ending, *names = JUDGEMENTS[case].split()
    sign = "\t" if ending == ".tsv" else ","
    values = ["1", "d2", "q1"] if names[0] == "relevance" else ["q1", "d2", "1"]
    rows = [names, values, [value.replace("1", "2") for value in values]]
    file = tmp_path / f"data/qrels/dev{ending}"
    file.write_text("".join(sign.join(row) + "\n" for row in rows))
    opened = open_collection(tmp_path / "data")
    assert by_ids(opened, opened.judgements("dev")) == {"q1": {"d2": 1.0}, "q2": {"d2": 2.0}}


@pytest.mark.parametrize("name", ["dev.tsv", "dev.csv"])
def test_truth_values_are_grades(tmp_path, collection, name):
    sign = "\t" if name == "dev.tsv" else ","
    rows = ["qid pid is_relevant", "q1 d2 True", "q1 d3 False"]
    (tmp_path / "data/qrels" / name).write_text("\n".join(rows).replace(" ", sign))
    opened = open_collection(tmp_path / "data")
    assert by_ids(opened, opened.judgements("dev")) == {"q1": {"d2": 1.0, "d3": 0.0}}


NAMED_LINES = {
    "behind a comment": "# scores\nqid\tpid\tscore\nq1\td1\t2\nq1\td2\t1\n",
    "behind an empty line": "\n\nqid\tpid\tscore\nq1\td1\t2\n\nq1\td2\t1\n",
    "between spaces": "qid pid  score\nq1 d1 2\nq1\td2\t1\n",
}


@pytest.mark.parametrize("case", NAMED_LINES)
def test_names_above_scores(tmp_path, collection, case):
    file = tmp_path / "a.tsv"
    file.write_text(NAMED_LINES[case])
    assert by_ids(collection, TeacherScores.open(file, collection).lists) == BOTH


def test_names_above_other_columns_are_refused(tmp_path, collection):
    file = tmp_path / "a.tsv"
    file.write_text("qid\tpid\tscore\nq1\td1\n")
    with refused(r"a.tsv:2: expected 3 columns \(qid, pid, score\), got 2: 'q1 d1'"):
        TeacherScores.open(file, collection)
    file.write_text("qid\tpid\tpid\tscore\nq1\td1\td2\t1\n")
    with refused("a.tsv: each column must have a name of its own, got qid, pid, pid, score"):
        TeacherScores.open(file, collection)
