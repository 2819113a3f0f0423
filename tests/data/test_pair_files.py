"""Files of pairs of ids: what a row of each form says, and scores that become labels."""

import gzip
import json

import pytest

from ltr.data.collection import open_collection
from ltr.data.pair_files import candidate_lines, columns_line, pair_rows
from ltr.data.teacher_scores import TeacherScores
from ltr.data.texts import id_of
from tests.world.collections import by_ids, small_collection
from tests.world.refusals import refused

# Numbers, as MS MARCO has them: JSON may hold them without quotes.
CORPUS = {"10": "the river", "11": "the bridge", "12": "the town"}
QUERIES = {"1": "what flows", "2": "what spans"}
SCORES = {"1": {"10": 2.5, "11": -1.0}, "2": {"12": 0.25}}


@pytest.fixture
def collection(tmp_path):
    judged = [("1", "10", 1), ("2", "12", 1)]
    return small_collection(tmp_path / "data", CORPUS, QUERIES, judged)


def as_jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# One file of each form, with the same three scores.
FORMS = {
    "tabs.tsv": "1\t10\t2.5\n1\t11\t-1\n2\t12\t.25\n",
    "spaces.txt": "1 10 2.5\n1  11 -1e0\n2 12 0.25\n",
    "names.tsv": "query-id\tcorpus-id\tscore\n1\t10\t2.5\n1\t11\t-1\n2\t12\t0.25\n",
    "order.csv": "score,pid,qid\n2.5,10,1\n-1,11,1\n0.25,12,2\n",
    "run.trec": "1 Q0 10 1 2.5 t\n1 Q0 11 2 -1 t words\n# a comment\n2 Q0 12 1 0.25 t\n",
    "triples.tsv": "2.5\t-1\t1\t10\t11\n0.25\t0.25\t2\t12\t12\n",
    "ids.jsonl": as_jsonl(
        {"query_id": "1", "doc_id": "10", "score": 2.5},
        {"query_id": "1", "doc_id": "11", "score": "-1"},
        {"query_id": "2", "doc_id": "12", "score": 0.25},
    ),
    "numbers.jsonl": as_jsonl(
        {"qid": 1, "pid": 10, "score": 2.5},
        {"qid": 1, "pid": 11, "score": -1},
        {"qid": 2, "pid": 12, "score": 0.25},
    ),
    "lists.jsonl": as_jsonl(
        {"qid": 1, "pos": [10], "neg": [11], "pos_scores": [2.5], "neg_scores": [-1]},
        {"qid": 2, "pos": [12], "neg": [], "pos_scores": [0.25], "neg_scores": []},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_scores_of_every_form_are_the_same(tmp_path, collection, name):
    file = tmp_path / name
    file.write_text(FORMS[name])
    scores = TeacherScores.open(file, collection)
    assert by_ids(collection, scores.lists) == SCORES
    # Lists (2.5, -1) and (0.25): deviations 1.75 and 0.
    assert scores.deviation_in_lists == 0.875


def test_scores_of_parquet_and_of_gzip(tmp_path, collection):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"query_id": ["1", "1", "2"], "doc_id": [10, 11, 12], "score": [2.5, -1.0, 0.25]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(FORMS["tabs.tsv"].encode()))
    for name in ("a.parquet", "a.tsv.gz"):
        scores = TeacherScores.open(tmp_path / name, collection)
        assert by_ids(collection, scores.lists) == SCORES


def test_texts_have_the_ids_that_a_collection_of_them_gives(tmp_path):
    row = {"query": "what", "pos": ["a"], "neg": ["b", "c"]}
    scores = {"pos_scores": [0.9], "neg_scores": [0.2, 0.1]}
    (tmp_path / "bge.jsonl").write_text(as_jsonl({**row, **scores}))
    ((number, pairs),) = pair_rows(tmp_path / "bge.jsonl")
    query = id_of("q", "what")
    expected = [
        (query, id_of("d", text), score) for text, score in zip("abc", [0.9, 0.2, 0.1], strict=True)
    ]
    assert (number, pairs.scored()) == (1, expected)


def test_scores_of_several_columns_are_in_the_order_of_the_collection(tmp_path):
    """As the file has them, and not as their names are known."""
    row = {"query": "q", "positive": "p", "negative_1": "a", "negative": "b"}
    row |= {"positive_scores": [1.0], "negative_scores": [0.1, 0.2]}
    file = tmp_path / "train.jsonl"
    file.write_text(as_jsonl(row))
    expected = {"p": 1.0, "a": 0.1, "b": 0.2}
    expected = {id_of("d", text): pytest.approx(score) for text, score in expected.items()}
    collection = open_collection(file)
    read = by_ids(collection, TeacherScores.open(file, collection).lists)
    assert read == {id_of("q", "q"): expected}


def test_titles_are_part_of_the_texts_that_have_scores(tmp_path):
    row = {"query": "q", "positive_title": ["t", ""], "positive_text": ["a", "b"]}
    row |= {"negative_title": "u", "negative_text": "c", "pos_scores": [1.0, 0.5]}
    row |= {"neg_scores": [0.25]}
    file = tmp_path / "train.jsonl"
    file.write_text(as_jsonl(row))
    collection = open_collection(file)
    expected = {id_of("d", text): score for text, score in [("t a", 1), ("b", 0.5), ("u c", 0.25)]}
    read = by_ids(collection, TeacherScores.open(file, collection).lists)
    assert read == {id_of("q", "q"): expected}
    ((_, pairs),) = pair_rows(file)
    assert [doc for _, doc, _ in pairs.negatives(None)[1]] == [id_of("d", "u c")]


# Rows of a pool without a column that is called score, and the scores that they say.
POOLS = {
    "of BM25": ([{"bm25_score": 2}, {"bm25_score": "0.5"}], [2, 0.5]),
    "several of them": ([{"scores": 2}, {"scores": 1}], [2, 1]),
    "a rank": ([{"rank": 1}, {"rank": 2}], [-1, -2]),
    "before a rank": ([{"rank": 1, "relevance_score": 0.5}], [0.5]),
    "a grade": ([{"relevance": 1}, {"relevance": 0}], [0, 0]),
    "a list": ([{"corpus_ids": ["10", "11"], "rank": [1, 2]}], [-1, -2]),
}


@pytest.mark.parametrize("case", POOLS)
def test_scores_and_ranks_of_candidates(tmp_path, case):
    rows, expected = POOLS[case]
    others = [{} if "corpus_ids" in row else {"doc_id": "10"} for row in rows]
    rows = [{"query_id": "1", **other, **row} for other, row in zip(others, rows, strict=True)]
    file = tmp_path / "test.jsonl"
    file.write_text(as_jsonl(*rows))
    assert [score for _, (_, _, score) in candidate_lines(file)] == expected


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"bm25_score": 1, "dense_score": 2}, "one column must be the score of a candidate, got "),
        ({"doc_id": ["1", "2"], "scores": [1]}, "there must be as many scores as documents, got 1"),
        ({"rank": "first"}, "a score must be a finite number"),
    ],
)
def test_scores_of_candidates_that_are_unclear_are_refused(tmp_path, row, words):
    file = tmp_path / "test.jsonl"
    file.write_text(as_jsonl({"query_id": "1", "doc_id": "10", **row}))
    with refused(f"{file}:1: {words}"):
        list(candidate_lines(file))


ROW_OF_TEXTS = {"query_id": "q1", "query": "what", "pos": ["x y"], "neg": ["z"]}
OBJECTS = {"pos": [{"text": "x y"}], "neg": [{"title": "t", "text": "z", "docid": "7"}]}


@pytest.mark.parametrize(
    ("row", "negative"),
    [
        ({**ROW_OF_TEXTS, "pos_scores": [1.5], "neg_scores": [0.1]}, "z"),
        ({**ROW_OF_TEXTS, **OBJECTS, "pos_scores": [1.5], "neg_scores": [0.1]}, None),
        (
            {"anchor": "what", "positive": "x y", "negative": "z"}
            | {"pos_score": 1.5, "neg_score": 0.1},
            "z",
        ),
    ],
)
def test_texts_beside_the_id_of_a_query_are_texts(tmp_path, row, negative):
    """The scores name what the collection of the same rows has, and so do negatives."""
    file = tmp_path / "train.jsonl"
    file.write_text(as_jsonl(row))
    query = row.get("query_id") or id_of("q", "what")
    negative_id = "7" if negative is None else id_of("d", negative)
    collection = open_collection(file)
    assert list(collection.queries.ids) == [query]
    scores = TeacherScores.open(file, collection)
    expected = {query: {id_of("d", "x y"): 1.5, negative_id: 0.1}}
    assert by_ids(collection, scores.lists) == {
        query: {doc: pytest.approx(score) for doc, score in expected[query].items()}
    }
    ((_, pairs),) = pair_rows(file)
    kind, negatives = pairs.negatives(None)
    assert kind == "order" and [pair[:2] for pair in negatives] == [(query, negative_id)]
    assert pairs.systems == []


def test_absent_ids_and_repeats_are_counted_and_left_out(tmp_path, collection, caplog):
    file = tmp_path / "a.tsv"
    file.write_text("1\t10\t2.5\n9\t10\t1\n1\t99\t1\n1\t10\t2.50\n")
    assert by_ids(collection, TeacherScores.open(file, collection).lists) == {"1": {"10": 2.5}}
    for note in (
        "1 of 4 scores are of absent queries and left out, first in line 2",
        "1 of 4 scores are of absent documents and left out, first in line 3",
        "1 scores are of a pair again and left out",
    ):
        assert f"{file}: {note}" in caplog.text


BROKEN = {
    "not finite": ("a.tsv", "1\t10\t1\n1\t11\tnan\n", ":2: a score must be a finite .*, got 'nan'"),
    "large": ("a.tsv", "1\t10\t1e39\n", r":1: a score must be a finite number .*, got '1e39'"),
    "no number": ("a.tsv", "1\t10\t1_0\n", r":1: a score must be a finite number .*, got '1_0'"),
    "two values": (
        "a.tsv",
        "1\t10\t2\n1\t10\t3\n",
        ":2: a second score for query '1' and document '10', 3, first 2 in line 1; keep one",
    ),
    "columns": ("a.tsv", "1\t10\t2\n1\t10\n", ":2: expected columns 3, as .*, got 2: '1 10'"),
    "one column": ("a.tsv", "1\n", r":1: expected columns 2 \(query, doc\), .*, got 1: '1'"),
    "no score": ("a.tsv", "1\t10\n", ":1: a row must have .*score, got no column called score"),
    "other data": ("a.tsv", "8\t80\t1\n", ": at least one score must be of a query .* got 1 of"),
    "nothing": ("a.tsv", "\n", ": the split is empty; at least one score is needed"),
    "ranks": ("a.tsv", "1\t11\t1\n1\t10\t2\n", ": column 3 must hold scores, higher for better"),
    "ranks again": ("a.tsv", "1\t11\t1\n1\t10\t2\n1\t12\t1\n", ": .* column 3 may be ranks"),
    "tied ranks": ("a.tsv", "1\t11\t1\n1\t10\t2\n1\t12\t2\n", ": .* column 3 may be ranks"),
    "judgements": ("a.txt", "1 0 10 1\n", ":1: four columns are .*, got a number in column 4"),
    "bad id": ("a.jsonl", '{"qid": 1.5, "pid": 1, "score": 1}\n', ":1: an id must be a text or a"),
    "bool": ("a.jsonl", '{"qid": 1, "pid": 10, "score": true}\n', ":1: a score must be a finite"),
    "no query": ("a.jsonl", '{"pid": 1, "score": 1}\n', ":1: .* no column called query_id or qid"),
    "no document": ("a.jsonl", '{"qid": 1, "score": 1}\n', ":1: .* got no column called doc_id"),
    "lengths": (
        "a.jsonl",
        '{"qid": 1, "pos": [10, 11], "pos_scores": [1]}\n',
        ":1: there must be as many scores as positive documents, got 1 and 2",
    ),
    "no list of scores": ("a.jsonl", '{"qid": 1, "pos": [10]}\n', ":1: .* called pos_scores"),
    "cut": (
        "a.jsonl",
        '{"qid": 1, "pid": 10, "score": 1}\n{"qid"\n',
        ":2: a line must be one JSON",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_score_is_one_line(tmp_path, collection, case):
    name, content, message = BROKEN[case]
    (tmp_path / name).write_text(content)
    with refused(name + message):
        TeacherScores.open(tmp_path / name, collection)


def test_names_say_that_whole_numbers_are_scores(tmp_path, collection):
    """Without them, 1 and 2 behind two ids may be ranks."""
    (tmp_path / "a.tsv").write_text("qid\tpid\tscore\n1\t11\t1\n1\t10\t2\n")
    scores = TeacherScores.open(tmp_path / "a.tsv", collection)
    assert by_ids(collection, scores.lists) == {"1": {"11": 1.0, "10": 2.0}}


def test_scores_that_rise_by_fractions_are_scores(tmp_path, collection):
    (tmp_path / "a.tsv").write_text("1\t11\t1\n1\t10\t2.5\n")
    scores = TeacherScores.open(tmp_path / "a.tsv", collection)
    assert by_ids(collection, scores.lists) == {"1": {"11": 1.0, "10": 2.5}}


def test_the_same_bytes_may_be_judgements_and_scores(tmp_path, collection):
    """A grade below 0 counts as 0, and a score does not."""
    text = "1\t10\t2\n1\t11\t-1\n"
    (tmp_path / "data/qrels/dev.tsv").write_text(text)
    (tmp_path / "a.tsv").write_text(text)
    opened = open_collection(tmp_path / "data")
    assert by_ids(opened, opened.judgements("dev")) == {"1": {"10": 2.0, "11": 0.0}}
    scores = TeacherScores.open(tmp_path / "a.tsv", opened)
    assert by_ids(opened, scores.lists) == {"1": {"10": 2.0, "11": -1.0}}


def test_two_scores_that_hardly_differ_are_told_apart(tmp_path, collection):
    file = tmp_path / "scores.tsv"
    file.write_text("1\t10\t1.5\n1\t10\t1.5000002\n")
    with refused("a second score for query '1' and document '10', 1.50000024, first 1.5 in line 1"):
        TeacherScores.open(file, collection)


COLUMNS = {
    ("qrels.txt", "q1 0 d1 2\n", "grade"): "query id, 0, document id, grade",
    ("qrels.txt", "q1 0 d1 2 # a comment\n", "grade"): "query id, 0, document id, grade",
    ("qrels.tsv", "q1\td1\t2\n", "grade"): "query id, document id, grade",
    ("qrels.tsv", "q1\td1\n", "grade"): "query id, document id",
    ("qrels.jsonl", '{"query-id": "q", "corpus-id": "d", "score": 1}\n', "grade"): (
        "query id: query-id; document id: corpus-id; grade: score"
    ),
    ("qrels.csv", "qid,pid,score,relevance\nq,d,0.4,1\n", "grade"): (
        "query id: qid; document id: pid; grade: relevance; not read: score"
    ),
    ("qrels.csv", "qid,pid\nq,d\n", "grade"): "query id: qid; document id: pid",
    ("pools.tsv", "q1\td1\t1\n", "score"): (
        "query id, document id, score (or rank, where it rises)"
    ),
    ("pools.tsv", "q1\td1\ta query\ta text\n", "score"): (
        "query id, document id, and the texts of both, which are not read"
    ),
    ("pools.jsonl", '{"qid": "q", "pid": "d", "label": 1, "bm25_score": 2}\n', "score"): (
        "query id: qid; document id: pid; score: bm25_score; not read: label"
    ),
    ("pools.csv", "qid,pid,rank,label\nq,d,1,0\n", "score"): (
        "query id: qid; document id: pid; score: rank; not read: label"
    ),
}


@pytest.mark.parametrize(("name", "text", "label"), COLUMNS)
def test_what_columns_are_read_as_is_said(tmp_path, name, text, label):
    file = tmp_path / name
    file.write_text(text)
    assert columns_line(file, label) == COLUMNS[name, text, label]
