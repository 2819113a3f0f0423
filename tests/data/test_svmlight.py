"""Rows of feature vectors: both readers agree, and an error leads to the line."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ltr.data import svmlight
from ltr.data.svmlight import _read_at_once, _read_line_by_line, place_of, read_rows
from tests.world.refusals import refused


def careful(block: bytes):
    return _read_line_by_line(block, 1, Path("x"), 1)


def random_block(generator: np.random.Generator) -> bytes:
    """A few rows as files have them: comments, blank lines, tabs, rows without a feature, numbers
    in every notation.
    """
    lines = []
    for _ in range(generator.integers(1, 6)):
        features = np.sort(generator.choice(30, generator.integers(0, 5), replace=False)) + 1
        pairs = []
        for feature in features:
            random_value = f"{generator.random():.6f}"
            values = ["0", "-1.5", "+.25", "3.", "1e-3", "2E2", random_value]
            pairs.append(f"{feature}:{generator.choice(values)}")
        between = generator.choice([" ", "\t", "  "])
        end = generator.choice(["", " # x: 1", "#", " \r"])
        begin = f"{generator.integers(0, 5)} qid:{generator.integers(0, 4)}"
        lines.append(f"{begin} {between.join(pairs)}{end}")
        for other in ("", "# a comment, 1:2"):
            lines += [other] * (generator.random() < 0.2)
    return "\n".join(lines).encode() + b"\n" * generator.integers(0, 2)


def same(a, b) -> bool:
    arrays = zip(a[:5], b[:5], strict=True)
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays)


def test_both_readers_agree_on_whatever_is_well_formed():
    generator = np.random.default_rng(0)
    for _ in range(100):
        block = random_block(generator)
        fast = _read_at_once(block, 1)
        assert fast is not None and same(fast, careful(block)), block


def test_the_fast_reader_accepts_nothing_that_the_careful_one_refuses():
    """Bytes of sound blocks are changed, put in and taken out at random; some stay sound."""
    generator = np.random.default_rng(1)
    accepted = 0
    for _ in range(1000):
        block = bytearray(random_block(generator))
        for _ in range(generator.integers(1, 3)):
            at = generator.integers(len(block) + 1)
            letter = generator.choice(list(b"qid:01-+.eE \n#\t"))
            block[at : at + generator.integers(0, 3)] = bytes([letter] * generator.integers(0, 2))
        fast = _read_at_once(bytes(block), 1)
        if fast is not None:
            accepted += 1
            assert same(fast, careful(bytes(block))), bytes(block)
    assert 100 < accepted < 900


def test_values_in_sight(tmp_path):
    """A label below 0 counts as 0; features may stand in any order; the last line has no end."""
    file = tmp_path / "train.txt"
    file.write_text(
        "\ufeff-1 qid:7 3:0.5 1:2 # docid = d-1 x\n\n#docid = no row\n2 qid:3\n1.0 qid:7 2:-4"
    )
    (rows,) = read_rows(file, 1)
    assert rows.labels.tolist() == [0, 2, 1] and rows.qids.tolist() == [7, 3, 7]
    assert rows.counts.tolist() == [2, 0, 1] and rows.columns.tolist() == [2, 0, 1]
    assert rows.values.tolist() == [0.5, 2, -4] and rows.doc_ids == [b"d-1", b"", b""]
    places = [place_of([file, file], row) for row in range(4)]
    assert places == [f"{file}:{line}" for line in (1, 4, 5, 1)]


def test_the_numbering_may_begin_at_zero(tmp_path):
    (tmp_path / "a.txt").write_text("1 qid:1 0:5 2:6\n")
    (rows,) = read_rows(tmp_path / "a.txt", 0)
    assert rows.columns.tolist() == [0, 2]


def test_blocks_end_at_lines_and_count_them(tmp_path, monkeypatch):
    text = "".join(f"{i % 3} qid:{i} 1:{i} 2:0.5\n" for i in range(50))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (whole,) = read_rows(tmp_path / "a.txt", 1)
    monkeypatch.setattr(svmlight, "BLOCK_BYTES", 100)
    for name in ("a.txt", "a.txt.gz"):
        parts = list(read_rows(tmp_path / name, 1))
        assert len(parts) > 5
        columns = list(zip(*parts, strict=True))[:5]
        assert same([np.concatenate(column) for column in columns], whole)
    (tmp_path / "a.txt").write_text(text + "1 qid:1 1:x\n")
    with refused("a.txt:51: the value of feature 1"):
        list(read_rows(tmp_path / "a.txt", 1))


BAD_LINES = {
    "1": "a line must be 'label qid:N feature:value …', got '1'",
    "1 1:0.5": "a line must be 'label qid:N feature:value …', got '1 1:0.5'",
    "x qid:1 1:0.5": "a label must be a finite number .*, got 'x'",
    "nan qid:1 1:0.5": "a label must be a finite number .*, got 'nan'",
    "-1.5 qid:1 1:1": "a label with a fraction must not be negative, got '-1.5'; add one number",
    "1e30 qid:1 1:1": r"a label must be a number below 10\^7, got '1e30'",
    "10000000 qid:1 1:1": r"a label must be a number below 10\^7, got '10000000'",
    "1 qid:a 1:0.5": "the number of a query must be a finite number .*, got 'a'",
    "1 qid:-1 1:0.5": "the number of a query must be whole, .* got 'qid:-1'",
    "1 qid:1.5 1:0.5": "the number of a query must be whole, .* got 'qid:1.5'",
    "1 qid:9007199254740993 1:1": r"the number of a query must be whole, from 0 to 2\^53 - 1",
    "1 qid:1 5": "after the qid each entry must be feature:value, got '5'",
    "1 qid:1 1:": "the value of feature 1 must be a finite number .*, got ''",
    "1 qid:1 1: 5": "the value of feature 1 must be a finite number .*, got ''",
    "1 qid:1 1:2:3 4": "the value of feature 1 must be a finite number .*, got '2:3'",
    "1 qid:1 1:inf": "the value of feature 1 must be a finite number .*, got 'inf'",
    "1 qid:1 1:1e39": "the value of feature 1 must be a finite number .*, got '1e39'",
    "1 qid:1 1:1_0": "the value of feature 1 must be a finite number .*, got '1_0'",
    "1 qid:1 1.5:2": "the number of a feature must be whole, got '1.5:2'",
    "1 qid:1 0:2": "features are numbered from 1, got '0:2'; "
    "for a file numbered from 0 set first_feature to 0",
    "1 qid:1 -1:2": "features are numbered from 1, got '-1:2'$",
    "1 qid:1 100001:2": "the number of a feature must be at most 100,000, as rows are stored dense",
    "1 qid:1 2:1 3:1 2:5": "feature 2 stands twice; keep one value of it",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named_with_its_number(tmp_path, line):
    (tmp_path / "train.txt").write_bytes(f"# head\n1 qid:1 1:5\n\n{line}\nworse\n".encode())
    with refused(r"train.txt:4: " + BAD_LINES[line]):
        list(read_rows(tmp_path / "train.txt", 1))


def test_labels_of_every_notation_and_up_to_seven_digits():
    """The fast reader reads them, too."""
    block = b"1.0 qid:1\n2e0 qid:1\n+3 qid:1\n9999999 qid:1\n-9999999 qid:1\n"
    fast = _read_at_once(block, 1)
    assert fast is not None and fast.labels.tolist() == [1, 2, 3, 9999999, 0]
    assert same(fast, careful(block))


def test_a_colon_too_many_in_one_line_does_not_make_up_for_one_missing_in_another(tmp_path):
    (tmp_path / "train.txt").write_text("0 qid:1 5\n0:7 qid:2 1:3\n")
    with refused(r"train.txt:1: after the qid each entry must be feature:value, got '5'"):
        list(read_rows(tmp_path / "train.txt", 1))


def test_a_document_id_is_utf8(tmp_path):
    lines = b"1 qid:1 1:5 # docid = \xc3\xa9\n1 qid:1 1:5 # docid = \xff\n"
    (tmp_path / "train.txt").write_bytes(lines)
    with refused("train.txt:2: a document id must be UTF-8"):
        list(read_rows(tmp_path / "train.txt", 1))
