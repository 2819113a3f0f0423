"""The form of a file."""

import gzip

import pytest

from ltr.data.forms import Form

# A name, what the file holds, and its form: the ending, the names or the number of its columns, the key.
FORMS = [
    ("a.JSONL.GZ", b"{", (".jsonl", 0, "rows-2 .jsonl ")),
    ("a.tsv", b"PAR1\x15\x04", (".parquet", 0, "rows-2 .parquet ")),
    ("a.trec", b"# of BM25\nq Q0 d 1 2.5 t\n", (".trec", 6, "")),
    ("a.txt", b"q\td\t2\n", (".txt", 3, "")),
    ("a.TSV", b"\n", (".tsv", 0, "")),
    ("a", b"query-id\tcorpus-id\tscore\n", ("", ("query-id", "corpus-id", "score"), "")),
    ("a.tsv", b"qid\tpid\n", (".tsv", ("qid", "pid"), "rows-2 .tsv ")),
]


@pytest.mark.parametrize("name, content, expected", FORMS)
def test_the_form_of_a_file(tmp_path, name, content, expected):
    is_packed = name.endswith(".GZ")
    (tmp_path / name).write_bytes(gzip.compress(content) if is_packed else content)
    form = Form(tmp_path / name)
    assert (form.ending, form.names or form.n_columns, form.key) == expected
