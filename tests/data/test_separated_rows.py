"""Rows that are split many at once, beside those that Python's csv reads one by one."""

import csv
import io
import random

import pytest

from ltr.data import files, named_rows
from ltr.data.named_rows import read_blocks, read_rows
from ltr.data.separated_rows import ColumnBlock, single_rows, split_rows, split_tabs, stripped

PARTS = ["a", "é", "🐈", ",", "\t", '"', "\n", "\r\n", " ", "x y", ""]


def test_rows_with_quotes_by_hand():
    """Separators, line ends and quotes within quotes; the second row begins in the third line."""
    split = split_rows(b'a,"b,""\nc"\r\n"",d\n"e', b",", has_quotes=True)
    assert split is not None
    assert split.columns == [[b"a", b""], [b'b,"\nc', b"d"]]
    assert split.places.tolist() == [0, 2]
    assert (split.n_lines, split.n_bytes) == (3, len(b'a,"b,""\nc"\r\n"",d\n'))


def test_quotes_are_text_where_they_say_nothing():
    assert split_rows(b'"a,b"\nc,"d\n', b",").columns == [[b'"a', b"c"], [b'b"', b'"d']]


@pytest.mark.parametrize(
    "block",
    [
        b"a,b\n",  # one line
        b"a,b\n\nc,d\n",
        b"a,b\nc\nd,e\n",
        b"a,b\nc\nd,e,f\n",
        b"a\nb\n",  # where an empty line could not be told
        b"a,b\nc,d\re\n",
        b"a,b\nc,\0\n",
        b"a,b\nc,\xff\n",
        b'a,b\nc,d"e\nf,"g\n',
        b'a,b\nc,"d"e\n',
        b'a,b\nc,""d\n',
    ],
)
def test_what_is_not_plain_is_left_to_who_reads_row_by_row(block):
    assert split_rows(block, b",", has_quotes=True) is None


def test_lines_with_tabs_are_whole_and_have_no_empty_value():
    assert split_tabs(b"a\tb\nc\t d \n").columns == [[b"a", b"c"], [b"b", b" d "]]
    assert split_tabs(b"a\tb\nc\td\ne") is None
    assert split_tabs("a\tb\nc\t\u3000\n".encode()) is None  # ideographic space


def test_white_space_is_that_of_strings():
    texts = [" a ", "\u3000b\x1c", "\x1f", "\xa0", "é\n"]
    assert stripped([text.encode() for text in texts]) == [text.strip().encode() for text in texts]
    assert stripped([b" a\x1c", b"\x1d"]) == [b"a", b""]


@pytest.mark.parametrize("size", [1, 40, 300, 2**18])
def test_random_rows_are_those_of_csv_however_much_is_read_at_once(tmp_path, monkeypatch, size):
    monkeypatch.setattr(files, "READ_AT_ONCE", size)
    rng = random.Random(size)
    n_together = 0
    for case in range(40):
        rows = []
        for _ in range(rng.choice([1, 3, 30])):
            rows.append(["".join(rng.choices(PARTS, k=rng.randint(1, 4))) for _ in range(3)])
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator=rng.choice(["\n", "\r\n"]))
        writer.writerows([["q", "p", "n"], *rows])
        (tmp_path / f"{case}.csv").write_text(text.getvalue(), newline="")
        read = list(read_blocks(tmp_path / f"{case}.csv"))
        n_together += sum(isinstance(each, ColumnBlock) for each in read)
        assert [list(row.values()) for _, row in single_rows(read)] == rows
        numbers = [number for number, _ in single_rows(read)]
        assert numbers == _lines_of_rows(text.getvalue())
    assert (n_together > 0) == (size > 1)


def _lines_of_rows(text: str) -> list[int]:
    """The line where each row behind the names begins, as csv counts them."""
    reader = csv.reader(io.StringIO(text, newline="\n"))
    next(reader)
    numbers = [reader.line_num + 1 for _ in reader]
    return [2, *numbers[:-1]]


def test_rows_of_texts_in_parquet_come_together(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(named_rows, "BATCH", 2)
    columns = {"q": ["a", "é", ""], "p": ["b", "c", "d"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    blocks = list(read_blocks(tmp_path / "a.parquet"))
    assert [block.numbers.tolist() for block in blocks] == [[1, 2], [3]]
    assert blocks[0].columns == [[b"a", "é".encode()], [b"b", b"c"]]
    parquet.write_table(pa.table(columns | {"n": [None, "x", "y"]}), tmp_path / "b.parquet")
    assert next(read_blocks(tmp_path / "b.parquet")) == (1, {"q": "a", "p": "b", "n": None})
    assert list(read_rows(tmp_path / "a.parquet"))[1] == (2, {"q": "é", "p": "c"})
