"""Headers and quotes in files of texts with tabs between."""

import pytest

from ltr.data.collection import open_collection
from ltr.data.labelled_texts import open_labelled_texts
from ltr.data.text_files import open_texts

HEADERS = [
    (open_collection, "query\tnegative\tpositive"),
    (open_collection, "question\tcontext\tanswer"),
    (open_collection, "qid\tquery\tpassage"),
    (open_labelled_texts, "text\tlabel"),
    (lambda path: open_texts(path, "document", "--documents"), "id\ttext"),
    (open_labelled_texts, '"text"\t"label"'),
]


def test_numbered_texts_are_no_header(tmp_path):
    """As one writes to try something: every line looks like a header."""
    file = tmp_path / "docs.tsv"
    file.write_text("doc1\tdocument 1\ndoc2\tdocument 2\n")
    table = open_texts(str(file), "document", "--documents")
    assert list(table.texts) == ["document 1", "document 2"]


@pytest.mark.parametrize("read, header", HEADERS)
def test_words_that_name_columns_are_texts_elsewhere(tmp_path, read, header):
    """Beside other texts, and below the first line."""
    file = tmp_path / "train.tsv"
    row = "\t".join(f"w{n}" for n, _ in enumerate(header.split("\t")))
    first = "\t".join(["w9", *header.split("\t")[1:]]).replace('"', "")
    file.write_text(f"{first}\n{row}\n{header}\n")
    read(str(file))


@pytest.mark.parametrize(
    ("read", "column"), [(open_collection, "the same answer again"), (open_labelled_texts, "label")]
)
def test_quotes_of_a_spreadsheet_get_one_warning(tmp_path, caplog, read, column):
    """Three of six lines: what only holds quotes, or stands between them, may be meant so. Where
    all columns stand between quotes, a program has written them.
    """
    texts = ["w1", '"w2 ""w3"" w4"', '"w5" and "w6"', '"w7"', '"""w8"""']
    file = tmp_path / "train.tsv"
    lines = [f"{text}\t{column}\n" for text in texts]
    file.write_text("".join([*lines, f'"w9"\t"{column}"\n']))
    read(str(file))
    (warning,) = caplog.messages
    assert f"{file}:2: " in warning
    assert "3 lines hold quotes as spreadsheets write them, which are read as text" in warning


def test_quotes_in_a_file_of_texts_get_a_warning(tmp_path, caplog):
    file = tmp_path / "docs.tsv"
    file.write_text('1\t"w1 ""w2"""\n2\tw3\n')
    open_texts(str(file), "document", "--documents")
    assert f"{file}:1: " in caplog.text
