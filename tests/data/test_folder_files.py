"""Folders of texts with ids and judgements, as BEIR, MTEB and MS MARCO lay them out."""

import gzip
import json

import pytest

from ltr.data.collection import open_collection, with_split
from ltr.data.folder_files import FolderFiles
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
    with refused(f"one file of train, got .*{part}, {place}/train-00001-of.*; join the parts"):
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


@pytest.mark.parametrize(
    "names", [("qrels/dev.tsv", "qrels/dev.jsonl"), ("dev.qrels", "qrels/val.txt")]
)
def test_two_files_of_one_split_are_refused(tmp_path, names):
    one, other = DEV["qrels.dev.tsv"], "".join(json.dumps(row) + "\n" for row in ROWS)
    folder = write(
        tmp_path / "c", {**BEIR, "qrels/train.tsv": TRAIN, names[0]: one, names[1]: other}
    )
    listed = ", ".join(sorted(names))
    with refused(f"{folder}: there must be one file of dev, got {listed}; keep one"):
        open_collection(folder)


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
    with refused(r"collection.tsv:2: expected id<TAB>text, got 1 columns: '1'"):
        open_collection(ms_marco)
    (ms_marco / "collection.tsv").unlink()
    write(ms_marco, {"msmarco-docs.tsv": "0\thttp://a\tb\tc\n1\thttp://a\tb\n"})
    with refused(r"msmarco-docs.tsv:2: expected id<TAB>url<TAB>title<TAB>text, got 3 columns"):
        open_collection(ms_marco)


def test_the_splits_of_a_folder(tmp_path):
    names = "val.tsv test.tsv.gz b.tsv a.b.tsv test.clean.removed.jsonl x.tsv~ c-00000-of-00001.csv"
    write(tmp_path, {f"qrels/{name}": "" for name in names.split()})
    assert FolderFiles(tmp_path).splits == ["dev", "test", "a.b", "b", "c"]
