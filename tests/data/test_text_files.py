"""Files and folders of texts."""

import bz2
import gzip

import pytest

from ltr.data.text_files import open_texts
from tests.world.refusals import refused

JSON_LINES = '{"_id": "b", "text": "w1"}\n{"_id": "a", "title": "w2", "text": "w3"}'
READ = [
    ("a.jsonl", JSON_LINES, {"a": "w2 w3", "b": "w1"}),
    ("a.tsv", "b\tw1\na\tw2 w3\n", {"a": "w2 w3", "b": "w1"}),
    ("a.txt", "w2 w3\nw1\n", {"1": "w2 w3", "2": "w1"}),
    ("A.TXT", "w1\n", {"1": "w1"}),
    ("a", "w1\n", {"1": "w1"}),
]


@pytest.mark.parametrize("name, content, expected", READ)
def test_files_of_texts(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / f"{name}.Bz2").write_bytes(bz2.compress(content.encode()))
    for file in (tmp_path / name, tmp_path / f"{name}.gz", tmp_path / f"{name}.Bz2"):
        table = open_texts(str(file), "document", "--documents")
        assert dict(zip(table.ids, table.texts, strict=True)) == expected


BAD = [
    ("a.tsv", "b w1\n", r"a\.tsv:1: expected id<TAB>text, got no tab"),
    (
        "test.tsv",  # one's own triples
        "w0 w21 w7\tw0 w3\tw9\n",
        r"test\.tsv:1: a \.tsv must hold id<TAB>text here, and no pairs .* "
        "got the id 'w0 w21 w7'; write",
    ),
    ("a.tsv", "b\tw1\nb\tw2\n", r"a\.tsv:2: document id 'b' stands twice"),
    ("a.tsv", "b\t \n", r"a\.tsv: there is no document at all"),
    ("a.jsonl", "{}\n", r"a\.jsonl:1: a line must be an object with '_id'"),
    ("a.txt", "", r"a\.txt: there is no document at all"),
    ("a.tsv", "", r"a\.tsv: there is no document at all"),
    ("a.jsonl", "", r"a\.jsonl: there is no document at all"),
    ("a.csv", "b,w1\n", r"--documents .*a\.csv: a file of texts .*, got \.csv; write it as"),
    ("a.json", '[{"_id": "a"}]', r"a file of texts must be .*, got \.json"),
    ("a.csv.gz", "b,w1\n", r"a file of texts must be .*, got \.csv"),
]


@pytest.mark.parametrize("name, content, words", BAD)
def test_broken_files_of_texts(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with refused(words):
        open_texts(str(tmp_path / name), "document", "--documents")
