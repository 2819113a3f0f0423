"""Folders of texts with ids and judgements, as BEIR, MTEB and MS MARCO lay them out."""

import gzip
import json

import pytest

from ltr.data.collection import open_collection, with_split
from ltr.data.folder_files import FolderFiles
from ltr.data.record_files import open_record_files
from ltr.data.text_files import open_texts
from tests.world.collections import by_ids
from tests.world.refusals import refused

DOCS = {"0": "the river", "1": "the bridge", "2": "the town"}
JUDGED = {"train": {"7": {"0": 1.0}}, "dev": {"8": {"1": 1.0, "2": 2.0}}}


def tsv(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def write(folder, files):
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
        )
    return folder


MS_MARCO = {
    "collection.tsv": tsv(*DOCS.items()),
    "queries.train.tsv": tsv(("7", "what flows")),
    "queries.dev.tsv": tsv(("8", "what spans"), ("9", "who asks")),
    "queries.dev.small.tsv": tsv(("8", "what spans")),
    "queries.eval.tsv": tsv(("10", "nobody knows")),
    "qrels.train.tsv": "7\t0\t0\t1\n",
    "qrels.dev.small.tsv": "8\t0\t1\t1\n8\t0\t2\t2\n",
    "top1000.dev": "8\t2\twhat spans\tthe town\n8\t0\twhat spans\tthe river\n",
}


@pytest.fixture
def ms_marco(tmp_path):
    return write(tmp_path / "msmarco", MS_MARCO)


def qrels(collection):
    return {split: by_ids(collection, lists) for split, lists in collection.qrels.items()}


def texts(table):
    return dict(zip(table.ids, table.texts, strict=True))


def test_the_files_of_ms_marco(ms_marco, caplog):
    caplog.set_level("INFO")
    collection = open_collection(ms_marco)
    assert texts(collection.corpus) == DOCS
    # Those of dev.small are among those of dev, once.
    assert [*collection.queries.ids] == ["10", "7", "8", "9"]
    assert qrels(collection) == JUDGED
    assert by_ids(collection, collection.candidates["dev"]) == {"8": {"0": 0.0, "2": 0.0}}
    summary = "judgements of train in qrels.train.tsv, dev in qrels.dev.small.tsv; candidates of dev in top1000.dev"
    assert f"{ms_marco}: {summary}" in caplog.text


def test_a_split_of_ms_marco_by_its_own_name(ms_marco):
    write(ms_marco, {"qrels.dev.tsv": "8\t0\t1\t1\n9\t0\t0\t1\n"})
    collection = open_collection(ms_marco)
    assert by_ids(collection, collection.qrels["dev"]) == {"8": {"1": 1.0}, "9": {"0": 1.0}}
    small = with_split(collection, "dev.small")
    assert by_ids(small, small.qrels["dev.small"]) == JUDGED["dev"]
    # As a part of dev, with its pools.
    assert by_ids(small, small.candidates["dev.small"]) == {"8": {"0": 0.0, "2": 0.0}}


def test_texts_of_ms_marco_for_a_search(ms_marco):
    assert texts(open_texts(str(ms_marco), "document", "corpus")) == DOCS
    assert [*open_texts(str(ms_marco), "query", "queries").ids] == ["10", "7", "8", "9"]


def test_the_documents_of_ms_marco(tmp_path):
    """A title is part of the text, and an address is not."""
    files = {
        "msmarco-docs.tsv.gz": "D1\thttp://a\tRiver\tflows\nD2\thttps://b\t\tspans\nD3\thttp://c\t\t\n",
        "msmarco-doctrain-queries.tsv": tsv(("1", "x")),
        "msmarco-docdev-queries.tsv": tsv(("2", "y")),
        "msmarco-doctrain-qrels.tsv.gz": "1 0 D1 1\n",
        "msmarco-docdev-qrels.tsv": "2 0 D2 1\n",
        "msmarco-docdev-top100": "2 Q0 D1 1 -5.5 I\n2 Q0 D2 2 -6.5 I\n",
        "2019qrels-docs.txt": "1 Q0 D2 3\n",
        "msmarco-doctest2019-top100.gz": "1 Q0 D1 1 5 I\n",
    }
    collection = open_collection(write(tmp_path / "docs", files))
    assert texts(collection.corpus) == {"D1": "River flows", "D2": "spans"}
    assert qrels(collection) == {"train": {"1": {"D1": 1.0}}, "dev": {"2": {"D2": 1.0}}}
    assert by_ids(collection, collection.candidates["dev"]) == {"2": {"D1": -5.5, "D2": -6.5}}
    later = with_split(collection, "2019")
    assert by_ids(later, later.qrels["2019"]) == {"1": {"D2": 3.0}}
    assert by_ids(later, later.candidates["2019"]) == {"1": {"D1": 5.0}}


BEIR = {
    "corpus.jsonl": "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in DOCS.items()),
    "queries.jsonl": '{"_id": "7", "text": "what flows"}\n{"_id": "8", "text": "what spans"}\n',
}
TRAIN = "query-id\tcorpus-id\tscore\n7\t0\t1\n"
ROWS = [
    {"query-id": "8", "corpus-id": "1", "score": 1},
    {"query-id": "8", "corpus-id": "2", "score": 2.0},
]
DEV = {
    "qrels/dev.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "qrels/dev.csv": "query-id,corpus-id,score\n8,1,1\n8,2,2\n",
    "qrels/validation.txt": "8 0 1 1\n8 0 2 2\n",
    "qrels/dev.tsv.gz": "8\t1\t1\n8\t2\t2\n",
    "qrels.dev.tsv": "8\t1\t1\n8\t2\t2\n",
    "qrels-dev.txt": "8 0 1 1\n8 0 2 2\n",
    "dev.qrels": "8 0 1 1\n8 0 2 2\n",
}


@pytest.mark.parametrize("name", DEV)
def test_judgements_of_every_form_are_the_same(tmp_path, name):
    folder = write(tmp_path / "c", {**BEIR, "qrels/train.tsv": TRAIN, name: DEV[name]})
    assert qrels(open_collection(folder)) == JUDGED


@pytest.mark.parametrize("place", ["qrels", "default", "data"])
def test_the_layout_of_the_hub(tmp_path, place):
    """Parquet throughout, with parts in the names; ids of judgements may be numbers."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def table(name, columns):
        file = tmp_path / "hub" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), file)

    part = "00000-of-00001.parquet"
    empty = [""] * len(DOCS)
    table(f"corpus/corpus-{part}", {"_id": [*DOCS], "title": empty, "text": [*DOCS.values()]})
    table(f"queries/queries-{part}", {"_id": ["7", "8"], "text": ["what flows", "what spans"]})
    table(f"{place}/train-{part}", {"query-id": [7], "corpus-id": [0], "score": [1]})
    judged = {"query-id": ["8", "8"], "corpus-id": ["1", "2"], "score": [1.0, 2.0]}
    table(f"{place}/validation-{part}", judged)
    table(f"top_ranked/validation-{part}", {"query-id": ["8"], "corpus-ids": [["2", "0"]]})
    collection = open_collection(tmp_path / "hub")
    assert texts(collection.corpus) == DOCS
    assert qrels(collection) == JUDGED
    assert by_ids(collection, collection.candidates["dev"]) == {"8": {"0": 0.0, "2": 0.0}}
    table(f"{place}/train-00001-of-00002.parquet", judged)
    with refused(f"one file of train, got .*{part}, {place}/train-00001-of.*; keep one"):
        open_collection(tmp_path / "hub")


def test_judgements_beside_the_corpus_where_there_are_no_others(tmp_path):
    """As those of BEIR on the hub, which lie in a place of their own; other files are not looked at."""
    files = {"train.tsv": TRAIN, "dev.tsv": DEV["qrels.dev.tsv"], "notes.txt": "x"}
    folder = write(tmp_path / "c", {**BEIR, **files})
    assert qrels(open_collection(folder)) == JUDGED
    write(folder, {"qrels/train.tsv": TRAIN})
    assert qrels(open_collection(folder)) == {"train": JUDGED["train"]}


# Pools of query 8, best first 2, 0; MS MARCO's own form of a run has ranks.
POOLS = {
    "candidates/dev.trec": ("8 Q0 0 2 5 t\n8 Q0 2 1 6.5 t\n", {"2": 6.5, "0": 5.0}),
    "candidates/dev.run": ("8 Q0 0 2 5 t\n8 Q0 2 1 6.5 t\n", {"2": 6.5, "0": 5.0}),
    "candidates/val.tsv": ("8\t2\t1\n8\t0\t2\n", {"2": -1.0, "0": -2.0}),
    "candidates/dev.txt": ("8 0 5\n8 2 6.5\n", {"2": 6.5, "0": 5.0}),
    "candidates/dev.csv": ("qid,pid,score\n8,0,1\n8,2,2\n", {"2": 2.0, "0": 1.0}),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_every_form(tmp_path, name):
    text, expected = POOLS[name]
    files = {**BEIR, "qrels/dev.tsv": DEV["qrels.dev.tsv"], name: text}
    collection = open_collection(write(tmp_path / "c", files))
    pools = by_ids(collection, collection.candidates["dev"])
    assert [*pools["8"].items()] == [*expected.items()]


def test_a_run_comes_before_other_files_of_candidates(tmp_path):
    pools = {name: POOLS[name][0] for name in ("candidates/dev.trec", "candidates/dev.csv")}
    files = {**BEIR, "qrels/dev.tsv": DEV["qrels.dev.tsv"], **pools}
    collection = open_collection(write(tmp_path / "c", files))
    assert by_ids(collection, collection.candidates["dev"]) == {"8": {"2": 6.5, "0": 5.0}}


def test_named_columns_of_texts_with_tabs(tmp_path):
    files = {
        "corpus.tsv": "id\ttext\ttitle\n0\tflows\tThe river\n1\tspans\t\n",
        "queries.tsv": "7\twhat\tflows\n",
        "qrels/train.tsv": TRAIN,
    }
    collection = open_collection(write(tmp_path / "c", files))
    assert texts(collection.corpus) == {"0": "The river flows", "1": "spans"}
    assert texts(collection.queries) == {"7": "what\tflows"}


def test_texts_with_tabs_beside_json_lines_are_of_other_programs(tmp_path):
    others = {"corpus.tsv": "x\ty\n", "queries.train.tsv": "x\ty\n", "collection.tsv": "x\ty\n"}
    folder = write(tmp_path / "c", {**BEIR, **others, "qrels/train.tsv": TRAIN})
    assert texts(open_collection(folder).corpus) == DOCS


# Files of dev, the first of which counts; the others are broken.
IN_ORDER = {
    "other forms": ["qrels/dev.tsv", "qrels/dev.jsonl", "qrels/dev.txt", "qrels.dev.tsv"],
    "beside": ["qrels/dev.jsonl", "dev.qrels"],
    "small": ["qrels.dev.tsv", "qrels.dev.small.tsv"],
    "packed": ["qrels/dev.tsv.gz", "qrels/dev.tsv.bz2"],
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_the_first_form_of_a_split_counts(tmp_path, case, caplog):
    caplog.set_level("INFO")
    first, *others = IN_ORDER[case]
    files = {**BEIR, "qrels/train.tsv": TRAIN, **dict.fromkeys(others, "broken")}
    collection = open_collection(
        write(tmp_path / "c", {**files, first: DEV.get(first, DEV["qrels.dev.tsv"])})
    )
    assert qrels(collection) == JUDGED
    if case in ("other forms", "beside"):
        assert f"left out: {', '.join(others)}" in caplog.text


@pytest.mark.parametrize("other", ["top1000.dev", "top_ranked/dev.jsonl", "candidates/dev.csv"])
def test_a_run_comes_before_pools_of_other_places(tmp_path, other):
    files = {**BEIR, "qrels/dev.tsv": DEV["qrels.dev.tsv"], other: "broken"}
    name = "candidates/dev.trec"
    collection = open_collection(write(tmp_path / "c", {**files, name: POOLS[name][0]}))
    assert by_ids(collection, collection.candidates["dev"]) == {"8": POOLS[name][1]}


def test_two_files_of_one_form_are_refused(tmp_path):
    names = ["qrels/dev.csv", "qrels/dev.jsonl"]
    files = {**BEIR, "qrels/train.tsv": TRAIN, **{name: DEV[name] for name in names}}
    folder = write(tmp_path / "c", files)
    with refused(f"{folder}: there must be one file of dev, got {', '.join(names)}; keep one"):
        open_collection(folder)


def test_a_part_of_judgements_is_not_the_whole(tmp_path):
    part = "qrels/dev-00000-of-00002.jsonl"
    folder = write(tmp_path / "c", {**BEIR, part: DEV["qrels/dev.jsonl"]})
    expected = r"dev: there must be 2 parts, as dev-00000-of-00002.jsonl says, got 1; fetch the others \(dev-00001-of-00002\)"
    with refused(expected):
        open_collection(folder)


def write_parts(folder, second):
    """Judgements in two parts, of which this is the second one."""
    first = json.dumps(ROWS[0]) + "\n"
    files = {**BEIR, "qrels/dev-00000-of-00002.jsonl": first}
    return write(folder, {**files, "qrels/dev-00001-of-00002.jsonl.gz": second})


def test_parts_of_judgements_are_joined(tmp_path, caplog):
    caplog.set_level("INFO")
    folder = write_parts(tmp_path / "c", json.dumps(ROWS[1]) + "\n")
    assert qrels(open_collection(folder)) == {"dev": JUDGED["dev"]}
    assert "dev in qrels/dev-00000-of-00002.jsonl and 1 more" not in caplog.text, "as it is called"
    (folder / "qrels").rename(folder / "data")
    assert qrels(open_collection(folder)) == {"dev": JUDGED["dev"]}
    assert "judgements of dev in data/dev-00000-of-00002.jsonl and 1 more" in caplog.text


def test_a_mistake_leads_to_its_part(tmp_path, caplog):
    """Absent and repeated pairs are counted over all parts, each with the line of its own part."""
    rows = [ROWS[1], ROWS[0], {**ROWS[0], "corpus-id": "gone"}]
    second = "".join(json.dumps(row) + "\n" for row in rows)
    folder = write_parts(tmp_path / "c", second)
    assert qrels(open_collection(folder)) == {"dev": JUDGED["dev"]}
    part = "dev-00001-of-00002.jsonl.gz"
    assert (
        f"1 of 4 judgements are of absent documents and left out, first in line 3 of {part}"
        in caplog.text
    )
    assert (
        f"1 judgements are of a pair again and left out, first in line 2 of {part}" in caplog.text
    )
    write_parts(folder, json.dumps({**ROWS[0], "score": 2}) + "\n")
    with refused(f"{part}:1: a second judgement .*, 2, first 1 in line 1 of dev-00000-of-00002"):
        open_collection(folder)
    write_parts(folder, '{"query-id": "8", "corpus-id": "1"}\n')
    with refused(
        f"{part}:1: a row must have query_id and doc_id and a grade, got no column called relevance"
    ):
        open_collection(folder)


def test_parts_of_pools_are_joined(tmp_path):
    """A query may stand in both."""
    files = {**BEIR, "qrels/dev.tsv": DEV["qrels.dev.tsv"]}
    for number, line in enumerate(["8 Q0 2 1 6.5 t\n", "8 Q0 0 2 5 t\n"]):
        files[f"candidates/dev-0000{number}-of-00002.trec"] = line
    collection = open_collection(write(tmp_path / "c", files))
    assert by_ids(collection, collection.candidates["dev"]) == {"8": {"2": 6.5, "0": 5.0}}


PAIRS = {
    "T2Ranking": ("qrels/dev.tsv", "qid\tpid\n8\t1\n8\t2\n"),
    "NanoBEIR": ("qrels/dev.jsonl", '{"query-id": "8", "corpus-id": "1"}\n' * 2),
    "without names": ("qrels/dev.txt", "8 1\n8 2\n"),
    "CSV": ("qrels/dev.csv", "query-id,corpus-id\n8,1\n8,2\n"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_judgements_without_grades_are_relevant(tmp_path, caplog, name):
    file, text = PAIRS[name]
    folder = write(tmp_path / "c", {**BEIR, file: text})
    expected = {"1": 1.0} if name == "NanoBEIR" else {"1": 1.0, "2": 1.0}
    for _ in range(2):
        caplog.clear()
        assert qrels(open_collection(folder)) == {"dev": {"8": expected}}
        said = (
            f"{folder}/{file}: judgements have no grades, so each pair that is listed has grade 1"
        )
        assert caplog.messages.count(said) == 1


def test_names_of_columns_above_judgements(tmp_path):
    file = {"qrels/dev.tsv": "qid\tpid\trelevance\n8\t1\t1\n8\t2\t2\n"}
    assert qrels(open_collection(write(tmp_path / "c", {**BEIR, **file}))) == {"dev": JUDGED["dev"]}


@pytest.mark.parametrize("index", ["Unnamed: 0", "", "__index_level_0__"])
def test_an_index_beside_judgements_is_no_grade(tmp_path, index):
    file = {"qrels/dev.csv": f"{index},query-id,corpus-id\n0,8,1\n1,8,2\n"}
    collection = open_collection(write(tmp_path / "c", {**BEIR, **file}))
    assert qrels(collection) == {"dev": {"8": {"1": 1, "2": 1}}}


ALONE = "a judgement must be a query and a document alone, as the first one"
NO_SCORE = "a row must have query_id and doc_id and a grade, got no column called relevance or "


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        ([{}, {"score": 0}], 2, ALONE),
        ([{}, {"points": 0}], 2, ALONE),
        ([{"score": 1}, {}], 2, NO_SCORE),
        ([{"score": None}, {}], 1, NO_SCORE),
        ([{"points": 0}, {"points": 1}], 1, NO_SCORE),
    ],
)
def test_judgements_whose_grade_may_be_lost_are_refused(tmp_path, rows, line, words):
    """None is read as relevant where a column may be its grade."""
    lines = []
    for doc, row in enumerate(rows, start=1):
        lines.append(json.dumps({"query-id": "8", "corpus-id": str(doc), **row}) + "\n")
    folder = write(tmp_path / "c", {**BEIR, "qrels/dev.jsonl": "".join(lines)})
    with refused(f"dev.jsonl:{line}: {words}"):
        open_collection(folder)


def test_a_query_whose_id_begins_comments_is_refused(tmp_path):
    """Its judgements would be read as comments."""
    queries = '{"_id": "7", "text": "what flows"}\n{"_id": "#", "text": "what spans"}\n'
    folder = write(tmp_path / "c", {**BEIR, "queries.jsonl": queries, "qrels/dev.txt": "# 0 1 1\n"})
    with refused("queries.jsonl:2: the id of a query must not be '#'"):
        open_collection(folder)


@pytest.mark.parametrize("beside", ["corpus.jsonl", "corpus/corpus-00000-of-00001.jsonl"])
def test_text_with_tabs_beside_other_texts_is_named(tmp_path, caplog, beside):
    """It often lies there for other programs."""
    caplog.set_level("INFO")
    texts_of_folder = {beside: BEIR["corpus.jsonl"], "queries.jsonl": BEIR["queries.jsonl"]}
    files = {**texts_of_folder, "corpus.tsv": "9\tother\n", "qrels/train.tsv": TRAIN}
    folder = write(tmp_path / "c", files)
    assert texts(open_collection(folder).corpus) == DOCS
    assert f"{folder}: left out: corpus.tsv" in caplog.text


def test_a_corpus_beside_a_folder_of_its_name_is_refused(tmp_path):
    files = {**BEIR, "corpus/corpus-00000-of-00001.jsonl": BEIR["corpus.jsonl"]}
    folder = write(tmp_path / "c", {**files, "qrels/train.tsv": TRAIN})
    with refused("corpus must be one file or one folder, got corpus.jsonl and corpus; keep one"):
        open_collection(folder)


def test_a_part_of_a_corpus_is_said(tmp_path, caplog):
    files = {"corpus/corpus-00000-of-00002.jsonl": BEIR["corpus.jsonl"], **BEIR}
    del files["corpus.jsonl"]
    open_collection(write(tmp_path / "c", {**files, "qrels/dev.tsv": DEV["qrels.dev.tsv"]}))
    assert "there must be 2 parts, as corpus-00000-of-00002.jsonl says, got 1" in caplog.text


@pytest.mark.parametrize("other", ["collection.tsv", "collection/notes.md", "msmarco-docs.tsv"])
def test_triples_beside_what_is_called_as_the_texts_of_ms_marco(tmp_path, other):
    write(tmp_path / "c", {"train.tsv": "what flows\tthe river\tthe town\n", other: "x\ty\n"})
    assert len(open_collection(tmp_path / "c").corpus) == 2


def test_notes_beside_judgements_of_another_folder(tmp_path):
    files = {**BEIR, "qrels/README.txt": "notes", "default/dev.jsonl": DEV["qrels/dev.jsonl"]}
    assert qrels(open_collection(write(tmp_path / "c", files))) == {"dev": JUDGED["dev"]}


@pytest.mark.parametrize("names", [("csv", "tsv"), ("tsv", "csv")])
def test_the_same_bytes_under_two_names_are_read_by_name(tmp_path, names):
    """A quote is one in CSV alone, so that the second query is another one in text with tabs."""
    text = 'query-id\tcorpus-id\tscore\n7\t0\t1\n"8"\t1\t1\n'
    judged = {}
    for name in names:
        folder = write(tmp_path / name, {**BEIR, f"qrels/train.{name}": text})
        judged[name] = qrels(open_collection(folder))["train"]
    assert judged == {"csv": {"7": {"0": 1.0}, "8": {"1": 1.0}}, "tsv": {"7": {"0": 1.0}}}


def test_grades_do_not_order_pools_and_scores_are_no_grades(tmp_path):
    rows = "query-id,corpus-id,score,label\n"
    files = {
        "qrels/dev.csv": rows + "8,1,0.31,2\n",
        "candidates/dev.csv": "query-id,corpus-id,label\n8,0,0\n8,1,2\n",
    }
    collection = open_collection(write(tmp_path / "c", {**BEIR, **files}))
    assert qrels(collection) == {"dev": {"8": {"1": 2.0}}}
    assert by_ids(collection, collection.candidates["dev"]) == {"8": {"0": 0.0, "1": 0.0}}


# A first line, and whether it names the columns.
FIRST_LINES = {
    "doc_id\tdocument": True,
    "corpus-id\ttext": True,
    "id\ttitle\tabstract": True,
    "qid\tquestion": True,
    "query-id\tquery": True,
    "x\tquery": False,
}


@pytest.mark.parametrize("first", FIRST_LINES)
def test_names_in_the_first_line_of_texts(tmp_path, first):
    rest = "\t".join(["0", *["a"] * first.count("\t")])
    file = write(tmp_path, {"queries.tsv": f"{first}\n{rest}\n"}) / "queries.tsv"
    assert len(open_record_files(file, "query")) == 2 - FIRST_LINES[first]


def test_names_of_other_columns_are_refused(tmp_path):
    write(tmp_path, {"queries.tsv": "qid\twords\n7\tx\n"})
    with refused(r"queries.tsv:1: names of columns must be .*, got 'qid<TAB>words'"):
        open_record_files(tmp_path / "queries.tsv", "query")


@pytest.mark.parametrize("name", ["msmarco-docs.tsv", "texts.tsv"])
def test_documents_of_ms_marco_whose_first_has_no_address(tmp_path, name):
    write(tmp_path, {name: "D1\t\tRiver\tflows\nD2\thttp://b\tBridge\tspans\nD3\thttp://c\t\tx\n"})
    found = texts(open_record_files(tmp_path / name, "document"))
    assert found == {"D1": "River flows", "D2": "Bridge spans", "D3": "x"}


BROKEN = {
    "no judgement": (
        "other.tsv",
        "",
        r"qrels: there must be at least one of train.tsv, .*'other.tsv'",
    ),
    "jsonl": ("qrels/dev.jsonl", '{"query-id": "8"}\n', r"dev.jsonl:1: .* no column called doc_id"),
    "grade": (
        "qrels/dev.jsonl",
        '{"query-id": "8", "corpus-id": "1", "score": "x"}\n',
        r"dev.jsonl:1: a grade must be",
    ),
    "csv": ("qrels/dev.csv", "query-id,corpus-id,score\n8,1\n", r"dev.csv:2: expected 3 columns"),
    "pool": ("top1000.dev", "8\t9\tx\ty\n", r"top1000.dev:1: document '9' is not in the corpus"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line(tmp_path, case):
    name, content, message = BROKEN[case]
    with refused(message):
        open_collection(write(tmp_path / "c", {**BEIR, name: content}))


def test_a_broken_line_of_texts_is_one_line(ms_marco):
    write(ms_marco, {"collection.tsv": "0\tx\n1\n"})
    with refused(r"collection.tsv:2: expected id<TAB>text, got no tab: '1'"):
        open_collection(ms_marco)
    (ms_marco / "collection.tsv").unlink()
    write(ms_marco, {"msmarco-docs.tsv": "0\thttp://a\tb\tc\n1\thttp://a\tb\n"})
    with refused(r"msmarco-docs.tsv:2: expected id<TAB>url<TAB>title<TAB>text, got 3 columns"):
        open_collection(ms_marco)


def test_the_splits_of_a_folder(tmp_path):
    names = "val.tsv test.tsv.gz b.tsv a.b.tsv test.clean.removed.jsonl x.tsv~ c-00000-of-00001.csv"
    write(tmp_path, {f"qrels/{name}": "" for name in names.split()})
    assert FolderFiles(tmp_path).splits == ["dev", "test", "a.b", "b", "c"]


def test_judgements_whose_name_says_no_split(tmp_path, caplog):
    caplog.set_level("INFO")
    write(tmp_path, {"corpus.tsv": "d1\ta\n", "queries.tsv": "q1\tb\n", "qrels.txt": "q1 0 d1 1\n"})
    with refused(f"{tmp_path}/qrels.txt: .* which split is judged; call it qrels.test.txt, or"):
        open_collection(tmp_path)
    write(tmp_path, {"qrels.test.txt": "q1 0 d1 1\n"})
    assert qrels(open_collection(tmp_path)) == {"test": {"q1": {"d1": 1.0}}}
    assert "left out: qrels.txt" in caplog.text


def test_tabs_in_texts_are_told_at_each_opening(tmp_path, caplog):
    file = write(tmp_path, {"a.tsv": "d1\ta\nd2\tb\tc\nd3\td\te\tf\n"}) / "a.tsv"
    for _ in range(2):
        assert texts(open_texts(str(file), "document", "--documents"))["d2"] == "b\tc"
        assert f"{file}: 2 texts hold tabs, first that at a.tsv:2: all that stands" in caplog.text
        caplog.clear()
