"""Texts in JSON lines, Parquet, and folders of many files: all read the same."""

import gzip
import json
import lzma
import random
from pathlib import Path

import pytest

from ltr.data.collection import open_collection
from ltr.data.record_files import open_record_files
from ltr.data.text_files import open_texts
from tests.world.refusals import refused

# More than the rows of a Parquet file that are read at once.
RECORDS = [{"_id": f"d{n:05d}", "text": f"text {n} é", "title": "t" * (n % 3)} for n in range(5000)]


def write_lines(file, records):
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_parquet(file, records, **options):
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    file.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(records), file, **options)


def bytes_of(table):
    files = [file for file in table.folder.iterdir() if file.suffix == ".npy"]
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture
def in_one_file(tmp_path):
    write_lines(tmp_path / "one/corpus.jsonl", RECORDS)
    return bytes_of(open_record_files(tmp_path / "one/corpus.jsonl", "document"))


def test_the_order_of_the_records_changes_nothing(tmp_path, in_one_file):
    shuffled = random.Random(0).sample(RECORDS, len(RECORDS))
    write_lines(tmp_path / "corpus.jsonl.gz", shuffled)
    table = open_record_files(tmp_path / "corpus.jsonl.gz", "document")
    assert bytes_of(table) == in_one_file and len(in_one_file) == 4


def test_a_folder_of_files_reads_as_one_file(tmp_path, in_one_file):
    write_lines(tmp_path / "corpus/b.jsonl.gz", RECORDS[:1000])
    content = "".join(json.dumps(record) + "\n" for record in RECORDS[1000:2000])
    (tmp_path / "corpus/c.jsonl.xz").write_bytes(lzma.compress(content.encode()))
    write_lines(tmp_path / "corpus/a.jsonl", RECORDS[2000:])
    (tmp_path / "corpus/_SUCCESS").touch()
    table = open_record_files(tmp_path / "corpus", "document")
    assert bytes_of(table) == in_one_file
    # The digest is that of the content: not of the time, the place or the names.
    (tmp_path / "corpus").rename(tmp_path / "moved")
    assert open_record_files(tmp_path / "moved", "document").folder == table.folder
    write_lines(tmp_path / "moved/a.jsonl", RECORDS[2001:])
    assert len(open_record_files(tmp_path / "moved", "document")) == len(RECORDS) - 1


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("name", ["_id", "id"])
def test_parquet_reads_as_json_lines(tmp_path, in_one_file, name, dictionary):
    records = [{"text": r["text"], name: r["_id"], "title": r["title"] or None} for r in RECORDS]
    options = {"row_group_size": 1700, "use_dictionary": dictionary}
    write_parquet(tmp_path / "corpus.parquet", records, **options)
    assert bytes_of(open_record_files(tmp_path / "corpus.parquet", "document")) == in_one_file
    (tmp_path / "corpus.parquet").rename(tmp_path / "corpus.jsonl")
    assert bytes_of(open_record_files(tmp_path / "corpus.jsonl", "document")) == in_one_file
    (tmp_path / "corpus.jsonl").rename(tmp_path / "corpus.tsv")
    assert bytes_of(open_texts(str(tmp_path / "corpus.tsv"), "document", "x")) == in_one_file
    write_parquet(tmp_path / "corpus/1.parquet", records[:3000])
    write_parquet(tmp_path / "corpus/2.parquet", records[3000:])
    assert bytes_of(open_record_files(tmp_path / "corpus", "document")) == in_one_file


def test_a_collection_of_parquet_files(tmp_path):
    write_parquet(tmp_path / "queries.parquet", [{"id": "q", "text": "which"}])
    write_parquet(tmp_path / "corpus/part-0.snappy.parquet", RECORDS[:2])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("q\td00001\t1\n")
    collection = open_collection(tmp_path)
    assert collection.judgements("test").doc_rows.tolist() == [1]
    assert len(open_texts(str(tmp_path), "document", "--documents")) == 2
    file = str(tmp_path / "queries.parquet")
    assert list(open_texts(file, "query", "--queries").texts) == ["which"]


# Names and values of the columns, and the words of the refusal.
@pytest.mark.parametrize(
    "names, columns, words",
    [
        ("_id text", [["a", None], ["x", "y"]], "parquet:2: an id must be a text .* got null"),
        ("_id text", [["b", "c"], [" ", None]], "there is no document at all"),
        ("_id text", [["a", "a"], ["x", "y"]], "t:2: .* 'a' stands twice .*, first at .*parquet:1"),
        ("_id text", [["a"], [1]], "parquet:1: 'title' and 'text' must be strings, got '', 1"),
        ("doc text", [["a"], ["x"]], r"have the columns _id \(or id\) and text, got doc, text"),
        ("_id text text", [["a"]] * 3, "must have a name of its own, got _id, text, text"),
    ],
)
def test_a_parquet_file_that_does_not_fit_is_one_line(tmp_path, names, columns, words):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    arrays = [pyarrow.array(column) for column in columns]
    table = pyarrow.Table.from_arrays(arrays, names=names.split())
    write_table(table, tmp_path / "corpus.parquet")
    with refused(words):
        open_record_files(tmp_path / "corpus.parquet", "document")


def test_a_broken_parquet_file_is_one_line(tmp_path):
    write_parquet(tmp_path / "corpus.parquet", RECORDS, row_group_size=1000)
    content = bytearray((tmp_path / "corpus.parquet").read_bytes())
    content[20_000:21_000] = bytes(1000)
    for broken in (content, content[:-100], b"", b"no Parquet"):
        (tmp_path / "corpus.parquet").write_bytes(broken)
        with refused(r"parquet:\d+: the Parquet file is broken"):
            open_record_files(tmp_path / "corpus.parquet", "document")


def test_a_repeated_id_names_both_files(tmp_path):
    write_lines(tmp_path / "corpus/1.jsonl", [{"_id": "a", "text": "x"}, {"_id": "b", "text": "x"}])
    write_lines(tmp_path / "corpus/2.jsonl", [{"_id": "c", "text": "x"}, {"_id": "b", "text": "y"}])
    with refused(r"2\.jsonl:2: .* 'b' stands twice .*, first at .*1\.jsonl:2"):
        open_record_files(tmp_path / "corpus", "document")


@pytest.mark.parametrize(
    "name, make", [("notes.txt", Path.touch), ("a.jsonl.zip", Path.touch), ("inner", Path.mkdir)]
)
def test_a_folder_with_other_files_is_refused(tmp_path, name, make):
    write_lines(tmp_path / "corpus/1.jsonl", RECORDS[:2])
    make(tmp_path / "corpus" / name)
    with refused(f"{name}: a folder of texts must hold files"):
        open_record_files(tmp_path / "corpus", "document")


def test_an_empty_folder_and_two_kinds_of_corpora_are_refused(tmp_path):
    (tmp_path / "corpus").mkdir()
    with refused(r"there is no file .*\.jsonl, .* in this folder"):
        open_collection(tmp_path)
    write_lines(tmp_path / "corpus.jsonl", RECORDS[:2])
    with refused(r"must be one file or one folder, got corpus\.jsonl and corpus;"):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '[{"_id": "a", "text": "x"}, {"_id": "b", "text": "y"}]\n',
        '[{"_id": "a", "text": "x"},\n {"_id": "b", "text": "y"}]\n',
        '[\n{"_id": "a",\n "text": "x"},{"id": "b", "text": "y"}\n]\n',
    ],
)
def test_an_array_reads_as_lines(tmp_path, text):
    (tmp_path / "corpus.jsonl").write_text(text)
    table = open_record_files(tmp_path / "corpus.jsonl", "document")
    assert dict(zip(table.ids, table.texts, strict=True)) == {"a": "x", "b": "y"}


def test_an_object_over_several_lines_is_told(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{\n  "_id": "a",\n  "text": "x"\n}\n')
    with refused(r"jsonl:1: a line must be one JSON object, .* must stand in an array"):
        open_record_files(tmp_path / "corpus.jsonl", "document")
