"""Files and folders of texts."""

import gzip
import json

import pytest

from ltr.data.text_files import open_texts
from ltr.errors import InputError

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
    ("a.tsv", "b\tw1\nb\tw2\n", r"a\.tsv:2: document id 'b' stands twice"),
    ("a.tsv", "b\t \n", r"a\.tsv:1: document 'b' has an empty text"),
    ("a.jsonl", "{}\n", r"a\.jsonl:1: a line must be an object with '_id'"),
    ("a.txt", "", r"a\.txt: there is no document at all"),
    ("a.tsv", "", r"a\.tsv: there is no document at all"),
    ("a.jsonl", "", r"a\.jsonl: there is no document at all"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_broken_files_of_texts(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        open_texts(str(tmp_path / name), "document", "--documents")
