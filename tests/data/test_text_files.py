"""Files and folders of texts."""

import gzip
import json

import pytest

from ltr.data.text_files import open_texts
from tests.world.refusals import refused

TABLES = {
    "a.jsonl": json.dumps({"_id": "b", "text": "w1"})
    + "\n"
    + json.dumps({"_id": "a", "title": "w2", "text": "w3"}),
    "a.tsv": "b\tw1\na\tw2 w3\n",
    "a.txt": "w2 w3\nw1\n",
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("packed", [False, True])
def test_files_of_texts(tmp_path, name, packed):
    file = tmp_path / (name + ".gz" * packed)
    file.write_bytes(gzip.compress(TABLES[name].encode()) if packed else TABLES[name].encode())
    table = open_texts(str(file), "document", "--documents")
    assert dict(zip(table.ids, table.texts, strict=True)) == (
        {"1": "w2 w3", "2": "w1"} if name == "a.txt" else {"a": "w2 w3", "b": "w1"}
    )


BAD = [
    ("a.tsv", "b w1\n", r"a\.tsv:1: expected id<TAB>text, got no tab"),
    (
        "test.tsv",  # one's own triples
        "w0 w21 w7\tw0 w3\tw9\n",
        r"test\.tsv:1: a \.tsv must hold id<TAB>text here, and no pairs .* got the id 'w0 w21 w7'; write",
    ),
    ("a.tsv", "b\tw1\nb\tw2\n", r"a\.tsv:2: document id 'b' stands twice"),
    ("a.tsv", "b\t \n", r"a\.tsv:1: document 'b' has an empty text"),
    ("a.jsonl", "{}\n", r"a\.jsonl:1: a line must be an object with '_id'"),
    ("a.txt", "", r"a\.txt: there is no document at all"),
    ("a.tsv", "", r"a\.tsv: there is no document at all"),
    ("a.jsonl", "", r"a\.jsonl: there is no document at all"),
    (
        "a.csv",
        "b,w1\n",
        r"--documents .*a\.csv: a file of texts must be .*, got \.csv; write it as",
    ),
    ("a.json", '[{"_id": "a"}]', r"a file of texts must be .*, got \.json"),
    ("a.csv.gz", "b,w1\n", r"a file of texts must be .*, got \.csv"),
]


@pytest.mark.parametrize("name", ["A.TXT", "a"])
def test_a_file_of_one_text_a_line(tmp_path, name):
    (tmp_path / name).write_text("w1\n")
    assert list(open_texts(str(tmp_path / name), "document", "--documents").texts) == ["w1"]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_broken_files_of_texts(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with refused(said):
        open_texts(str(tmp_path / name), "document", "--documents")
