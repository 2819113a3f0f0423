"""Collections: what is read of each source, and what is refused with its file and line."""

import bz2
import gzip
import logging
import lzma
import sys
from types import SimpleNamespace

import pytest

from ltr.data.collection import open_collection
from tests.data.programs import start
from tests.world.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """Two queries, three documents (one with a title), judgements, a pool."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "candidates").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "b", "text": "second"}\n{"_id": "é", "title": "Accent", "text": "third"}\n'
        '\n{"_id": "a", "text": "first", "x": 1}\n'
    )
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q2", "text": "two"}\n{"_id": "q1", "text": "one"}\n'
    )
    (tmp_path / "qrels/train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\tb\t2\nq2\ta\t1\nq1\ta\t0\n"
    )
    (tmp_path / "candidates/train.trec").write_text(
        "q1 Q0 a 1 5 t\nq1 Q0 b 2 5 t\nq1 Q0 é 3 7.5 t\n"
    )
    return tmp_path


def test_rows_are_in_the_order_of_ids_and_a_title_is_part_of_the_text(folder):
    c = open_collection(str(folder))
    assert list(c.corpus.ids) == ["a", "b", "é"]
    assert list(c.corpus.texts) == ["first", "second", "Accent third"]
    assert [c.corpus.row(i) for i in ("a", "b", "é", "aa", "", "z")] == [0, 1, 2, None, None, None]
    assert list(c.queries.ids) == ["q1", "q2"]


def test_judgements_keep_the_order_of_the_file_and_pools_are_best_first(folder):
    c = open_collection(str(folder))
    docs, grades = c.judgements("train").of(0)
    assert docs.tolist() == [1, 0] and grades.tolist() == [2.0, 0.0]
    docs, scores = c.pools("train", option="x").of(0)
    assert docs.tolist() == [2, 1, 0], "of a tie the later id first, as trec_eval has it"
    assert scores.tolist() == [7.5, 5.0, 5.0]
    assert c.pools("train", option="x").of(1)[0].tolist() == []


@pytest.mark.parametrize(
    "ending, pack",
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), ("", gzip.compress)],
)
def test_plain_and_packed_files_read_the_same(folder, ending, pack):
    plain = open_collection(str(folder))
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "candidates/train.trec"):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / f"{name}{ending}").write_bytes(pack(content))
    packed = open_collection(str(folder))
    assert list(packed.corpus.texts) == list(plain.corpus.texts)
    rows = [opened.judgements("train").doc_rows.tolist() for opened in (packed, plain)]
    assert rows[0] == rows[1]


def test_trec_qrels_with_four_columns(folder):
    (folder / "qrels/train.tsv").write_text("q1 0 b 2\nq2 0 a -2\n")
    _, grades = open_collection(str(folder)).judgements("train").of(1)
    assert grades.tolist() == [0.0], "spam counts as not relevant"


# For each file what is wrong: its content, and the words that stand behind its name.
BROKEN = {
    "qrels/train.tsv": {
        "ids of other data": (
            "q9\tb\t1\nq1\tnone\t1\n",
            ": at least one judgement must be of .* that are there, got 2 of others",
        ),
        "judged twice": (
            "q1\tb\t1\nq1\tb\t0\n",
            ":2: a second judgement .*, 0, first 1 in line 1; keep one",
        ),
        "grade": ("q1\tb\tE\n", r":1: a grade must be a number below 10\^7 .*, got 'E'"),
        "columns": ("q1\n", ":1: expected 4 columns .* got 1"),
        "empty split": ("query-id\tcorpus-id\tscore\n", ": the split is empty"),
    },
    "candidates/train.trec": {
        "document": (
            "q1 Q0 b 1 5 t\nq1 Q0 none 2 4 t\n",
            ":2: document 'none' is not in the corpus",
        ),
        "query": ("q9 Q0 b 1 5 t\n", ":1: query 'q9' is not in the queries"),
        "columns": ("q1 Q0 a 1 5\n", ":1: expected 6 columns .* got 5"),
        "score": ("q1 Q0 a 1 x t\n", ":1: a score must be a finite number .*, got 'x'"),
    },
    "corpus.jsonl": {
        "duplicate id": (
            '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n',
            ":2: .*'a' stands twice with different texts, .*jsonl:1",
        ),
        "empty text": ('{"_id": "a", "text": " "}\n', ": there is no document at all"),
        "nothing": ("\n", ": there is no document at all"),
        "space in id": (
            '{"_id": "a b", "text": "x"}\n',
            ":1: an id must not hold white space or NUL, got 'a b'",
        ),
        "NUL in id": (
            '{"_id": "a\\u0000b", "text": "x"}\n',
            r":1: an id must not .* NUL, got 'a\\x00b'",
        ),
        "id is a number": (
            '{"_id": 1.5, "text": "x"}\n',
            ":1: an id must be a text or a whole number",
        ),
        "no text": ('{"_id": "a"}\n', ":1: a line must be an object with '_id' and 'text'"),
        "list": (
            "[1]\n",
            ":1: each element of the array must be an object with named columns, got 1",
        ),
        "too deep": ("[" * 100_000 + "\n", ":1: a row must be a JSON object .*recursion"),
        "long number": ("9" * 5000 + "\n", ":1: a line must be one JSON object, .*digits"),
        "Latin-1": (
            b'{"_id": "a", "text": "x"}\n{"_id": "b", "text": "\xff"}\n',
            ":2: text must be UTF-8, got byte 0xff at column 23",
        ),
    },
    "queries.jsonl": {
        "no id": ('{"_id": "", "text": "x"}\n', ":1: a query must have an id"),
        "no JSON": ('{"_id": "q1", "text": "x"}\nq2 y\n', ":2: a line must be one JSON object"),
    },
}
WRONG = [(name, case) for name, cases in BROKEN.items() for case in cases]


@pytest.mark.parametrize("name, case", WRONG)
def test_a_broken_file_is_one_line_that_leads_to_the_place(folder, name, case):
    content, words = BROKEN[name][case]
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(name + words):
        open_collection(str(folder))


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_the_first_of_several_mistakes_in_a_pool_is_named(folder, monkeypatch, block):
    """However many lines are looked up together, and also before a line that can't be read."""
    monkeypatch.setattr("ltr.data.lines.BLOCK", block)
    pool = folder / "candidates/train.trec"
    pairs = ["q1 Q0 b", "q1 Q0 a", "q9 Q0 none", "q1 Q0 none"]
    pool.write_text("".join(f"{pair} 1 1 t\n" for pair in pairs) + "q1 Q0 b\n")
    with refused(r"train\.trec:3: query 'q9' is not in the queries"):
        open_collection(str(folder))
    pairs = ["q1 Q0 b", "q1 Q0 a", "q2 Q0 a", "q1 Q0 b", "q2 Q0 a"]
    pool.write_text("".join(f"{pair} 1 1 t\n" for pair in pairs))
    with refused(r"trec:4: a second line .*'q1' .*'b', 1, first 1 in line 1; keep one"):
        open_collection(str(folder))


def test_judgements_as_others_ship_them(folder, caplog):
    """ArguAna judges a document that is absent, NFCorpus queries that are, FiQA has empty documents
    and MIRACL twins: each is left out with a line that counts it, at every opening.
    """
    with open(folder / "corpus.jsonl", "a") as corpus:
        corpus.write('{"_id": "7915", "text": ""}\n{"_id": "nan", "text": null}\n')
        corpus.write('{"_id": "b", "text": "second"}\n')
    qrels = "q1\tgone\t1\nq1\tb\t2.0\nq1\tb\t2\nq9\ta\t1\nq2\ta\t1.\nq1\t7915\t1\n"
    (folder / "qrels/train.tsv").write_text(qrels)
    caplog.set_level(logging.INFO, logger="ltr.data.details")
    for _ in range(2):
        caplog.clear()
        collection = open_collection(str(folder))
        assert list(collection.corpus.ids) == ["a", "b", "é"]
        judged = collection.judgements("train")
        assert judged.query_rows.tolist() == [0, 1]
        assert judged.doc_rows.tolist() == [1, 0] and judged.values.tolist() == [2.0, 1.0]
        told = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert [each.getMessage().split(": ", 1)[0] for each in told] == [
            *[f"{folder}/corpus.jsonl"] * 2,
            *[f"{folder}/qrels/train.tsv"] * 3,
        ]
        assert [each.getMessage().split(": ", 1)[1] for each in told] == [
            "2 texts are empty and left out, first that of document '7915' at corpus.jsonl:5",
            "1 times a document stands again with the same text and counts once, first 'b' at corpus.jsonl:7",
            "1 of 6 judgements are of absent queries and left out, first in line 4",
            "2 of 6 judgements are of absent documents and left out, first in line 1",
            "1 judgements are of a pair again and left out, first in line 3",
        ]
        assert f"{folder}/corpus.jsonl: documents read: 6; 3 kept" in caplog.messages
        assert f"{folder}/qrels/train.tsv: judgements read: 6; 2 kept" in caplog.messages


def test_missing_files_and_splits(folder):
    with refused(r"for the split 'test', only for \['train'\]; add them, or take another split$"):
        open_collection(str(folder)).judgements("test")
    with refused("no candidates for the split 'dev'; add candidates/dev.trec, or set x to auto"):
        open_collection(str(folder)).pools("dev", option="x")
    (folder / "queries.jsonl").unlink()
    with refused(r"queries.jsonl\[.gz\]: there is no such file"):
        open_collection(str(folder))
    with refused("there is no such data folder"):
        open_collection(str(folder / "nowhere"))


@pytest.mark.parametrize("what", ["folder", "link to nothing", "circle"])
@pytest.mark.parametrize("name", ["corpus.jsonl", "qrels/dev.tsv", "candidates/train.trec.gz"])
def test_what_is_no_file_is_not_taken_for_a_missing_one(folder, name, what):
    """A dev split that is a link into an unmounted disk, say: training would go without it."""
    for file in folder.glob(name.removesuffix(".gz")):
        file.unlink()
    if what == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to(folder / name if what == "circle" else "nothing")
    came = "folder" if what == "folder" else "link that leads nowhere"
    with refused(f"{name}: expected a file, got a {came}"):
        open_collection(str(folder))


@pytest.mark.parametrize("name", ["test.md", "judged.txt", "tests.jsonl"])
def test_what_lies_in_qrels_is_said_where_no_split_does(folder, name):
    (folder / "qrels/train.tsv").rename(folder / "qrels" / name)
    with refused(rf"at least one of train.tsv, .*; found \['{name}'\]"):
        open_collection(str(folder))


def test_triples_and_pairs_of_plain_texts(tmp_path):
    (tmp_path / "train.tsv").write_text("how many\tmany\tfew\tnone\nhow many\tlots\tfew\nwho\tme\n")
    (tmp_path / "dev.tsv").write_text("where\there\n")
    c = open_collection(str(tmp_path))
    assert sorted(c.corpus.texts) == ["few", "here", "lots", "many", "me", "none"]
    assert len(c.queries) == 3
    docs, grades = c.judgements("train").of(list(c.queries.texts).index("how many"))
    graded = {c.corpus.texts[doc]: grade for doc, grade in zip(docs, grades, strict=True)}
    assert graded == {"many": 1, "few": 0, "none": 0, "lots": 1}
    assert set(c.candidates) == {"train"}
    with refused("split 'dev'; give every line of the split a negative .*, or set x to auto"):
        c.pools("dev", option="x")
    assert set(open_collection(str(tmp_path / "train.tsv")).qrels) == {"train"}


@pytest.mark.parametrize("name", ["dev", "val", "vali", "valid", "validation"])
def test_dev_has_the_names_that_it_has_in_folders_of_features(folder, tmp_path, name):
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    (pairs / "train.tsv").write_text("how many\tmany\n")
    (pairs / f"{name}.tsv.gz").write_bytes(gzip.compress(b"where\there\n"))
    assert set(open_collection(str(pairs)).qrels) == {"train", "dev"}

    for file in (*folder.glob("*/train.*"),):
        file.rename(file.with_stem(name))
    collection = open_collection(str(folder))
    assert set(collection.qrels) == {"dev"} and set(collection.candidates) == {"dev"}


def test_two_files_of_one_split_are_refused(tmp_path):
    (tmp_path / "dev.tsv").write_text("how many\tmany\n")
    (tmp_path / "valid.tsv").write_text("where\there\n")
    with refused(r"must be one file of dev, got dev\.tsv, valid\.tsv; keep one"):
        open_collection(str(tmp_path))


def test_ir_datasets(monkeypatch, tmp_path, caplog):
    """The adapter reads what ir_datasets offers: documents of the whole, queries and qrels of the
    splits.
    """

    def doc(id_, text):
        return SimpleNamespace(doc_id=id_, default_text=lambda: text)

    def query(id_, text):
        return SimpleNamespace(query_id=id_, default_text=lambda: text)

    def qrel(query, doc, grade):
        return SimpleNamespace(query_id=query, doc_id=doc, relevance=grade)

    docs = [doc("d2", "of\0 two"), doc("d3", " "), doc("d1", "of one")]
    file = tmp_path / "docs"
    file.write_text("two")

    def part(queries, qrels):
        return SimpleNamespace(
            has_docs=lambda: bool(docs),
            has_qrels=lambda: bool(qrels),
            has_queries=lambda: bool(queries),
            queries_iter=lambda: iter(queries),
            qrels_iter=lambda: iter(qrels),
            docs_iter=lambda: iter(docs),
            docs_path=lambda force: file,
        )

    judged = [("q2", "d2", 1), ("q2", "d3", 1), ("q9", "d1", 1), ("q8", "d1", 1), ("q2", "d2", 0)]
    asked = [query("q1", "asks")]
    known = {
        "made/up": part([], []),
        "made/up/train": part(asked, [qrel("q1", "d1", 2), qrel("q1", "d2", -1)]),
        "made/up/test": part(
            [query("q2", "asks too"), query("q8", "")], [qrel(*one) for one in judged]
        ),
    }
    package = SimpleNamespace(load=known.__getitem__, __version__="0")
    monkeypatch.setitem(sys.modules, "ir_datasets", package)
    c = open_collection("ir_datasets:made/up")
    assert list(c.corpus.texts) == ["of one", "of  two"] and set(c.qrels) == {"train", "test"}
    assert c.judgements("train").of(0)[1].tolist() == [2.0, 0.0]
    assert list(c.queries.ids) == ["q1", "q2"]
    docs_of_q2, grades = c.judgements("test").of(1)
    assert docs_of_q2.tolist() == [1] and grades.tolist() == [1.0], "the first of two judgements"
    assert "1 documents hold NUL, which is read as a space" in caplog.text
    assert "1 texts are empty and left out, first that of document 'd3'" in caplog.text
    assert "1 texts are empty and left out, first that of query 'q8'" in caplog.text
    # q9 has no text here, and q8 an empty one.
    assert "test: 2 of 5 judgements are of absent queries and left out" in caplog.text
    assert "test: 1 of 5 judgements are of absent documents and left out" in caplog.text
    assert "test: 1 judgements are of a pair again and left out" in caplog.text
    with refused("no candidates for the split 'test'; set candidates to auto, which takes BM25's"):
        c.pools("test", option="candidates")
    with refused("knows no such data set"):
        open_collection("ir_datasets:not/there")

    # There is no flat/test.
    known["flat"] = part(asked, [qrel("q1", "d1", 1), qrel("q1", "d9", 1)])
    assert set(open_collection("ir_datasets:flat").qrels) == {"test"}
    assert "ir_datasets:flat: 1 of 2 judgements are of absent documents" in caplog.text

    # A data set of one's own has changed, and keeps its name.
    docs.append(doc("d4", "of four"))
    file.write_text("three")
    known["made/up/test"] = part([query("q2", "wants")], [qrel("q2", "d4", 1)])
    changed = open_collection("ir_datasets:made/up")
    assert list(changed.corpus.ids) == ["d1", "d2", "d4"]
    assert list(changed.queries.texts) == ["asks", "wants"]
    docs.clear()
    with refused("made/up: it must have documents"):
        open_collection("ir_datasets:made/up")
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with refused("pip install ir_datasets"):
        open_collection("ir_datasets:made/up")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of a program")
def test_300_000_documents_open_in_under_200_megabytes(tmp_path):
    """Peak resident memory of a process that reads, checks and opens them, 300 MB of text; the
    second opening is the everyday one.
    """
    (tmp_path / "qrels").mkdir()
    filler = " ".join(["relevance"] * 98)
    with open(tmp_path / "corpus.jsonl", "w") as file:
        file.writelines(
            f'{{"_id": "doc{i}", "text": "number {i} {filler}"}}\n' for i in range(300_000)
        )
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "which"}\n')
    (tmp_path / "qrels/test.tsv").write_text("q\tdoc299999\t1\n")
    program = (
        "import re, sys; from ltr.data.collection import open_collection;"
        "c = open_collection(sys.argv[1]);"
        "assert c.corpus.texts[c.corpus.row('doc42')].startswith('number 42 ');"
        # Of this program alone: ru_maxrss counts the process, too, that has started it.
        "status = open('/proc/self/status').read();"
        "print(len(c.corpus), re.search(r'VmHWM:\\s+(\\d+)', status)[1])"
    )
    for _ in range(2):
        output, _ = start(program, tmp_path).communicate()
        n_docs, peak_kib = map(int, output.split())
        assert n_docs == 300_000 and peak_kib < 200_000, f"{peak_kib} KiB"
