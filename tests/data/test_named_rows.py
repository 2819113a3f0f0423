"""Rows with named columns: each kind of file gives the same rows, with the place of each."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from ltr.data import named_rows
from ltr.data.named_rows import read_rows
from ltr.errors import InputError
from tests.world.refusals import refused

ROWS = [
    {"query": "a, b", "pos": 'say "c"'},
    {"query": "two\nlines", "pos": "é 🎉 \u2028"},
    {"query": "last", "pos": "[x]"},
]


def as_csv(separator):
    text = io.StringIO()
    writer = csv.DictWriter(text, ROWS[0], delimiter=separator, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue()


def written(file):
    """A file of the rows, and the numbers that they have in it."""
    table = pa.Table.from_pylist(ROWS)
    lines = [json.dumps(row) + "\n" for row in ROWS]
    kind = file.name.removesuffix(".gz").partition(".")[2]
    numbers = [1, 2, 3]
    if kind == "parquet":
        parquet.write_table(table, file, row_group_size=2)
        return numbers
    if kind == "file.arrow":
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        return numbers
    if kind == "stream.arrow":
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        return numbers
    if kind == "jsonl":
        text = "\n".join(lines)  # empty lines between
        numbers = [1, 3, 5]
    elif kind == "json":
        text = json.dumps(ROWS, indent=4)  # each row takes four lines
        numbers = [2, 6, 10]
    elif kind == "one.json":
        text = json.dumps(ROWS)
        numbers = [1, 1, 1]
    else:
        text = as_csv({"csv": ",", "semicolon.csv": ";", "tab.csv": "\t", "sep.csv": ";"}[kind])
        numbers = [2, 3, 5]  # the text of the second row has two lines
        if kind == "sep.csv":
            text = f"sep=;\r\n{text}"
            numbers = [3, 4, 6]
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8", newline="") as opened:
        opened.write(text)
    return numbers


KINDS = ["jsonl", "json", "one.json", "csv", "semicolon.csv", "tab.csv", "sep.csv"]
KINDS += ["jsonl.gz", "json.gz", "csv.gz", "parquet", "file.arrow", "stream.arrow"]


@pytest.mark.parametrize("block", [1, 2**20])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_gives_the_rows_and_their_lines(tmp_path, monkeypatch, kind, block):
    monkeypatch.setattr(named_rows, "BLOCK", block)
    monkeypatch.setattr(named_rows, "BATCH", 1)
    file = tmp_path / f"rows.{kind}"
    numbers = written(file)
    assert list(read_rows(file)) == list(zip(numbers, ROWS, strict=True))


def test_quotes_are_text_where_tabs_stand_between(tmp_path):
    (tmp_path / "a.tsv").write_text('q\tp\n"a"\t"b\n"c"\td, e\n')
    assert list(read_rows(tmp_path / "a.tsv")) == [
        (2, {"q": '"a"', "p": '"b'}),
        (3, {"q": '"c"', "p": "d, e"}),
    ]


def test_of_a_long_line_the_beginning_says_whether_it_is_an_array(tmp_path, monkeypatch):
    """Of an array in one line a block is read, and no byte order mark within it is left out."""
    monkeypatch.setattr(named_rows, "BLOCK", 4)
    file = tmp_path / "a.json"
    file.write_text('[ {"q": "\ufeffa\ufeff\ufeffb"}]')
    assert list(read_rows(file)) == [(1, {"q": "\ufeffa\ufeff\ufeffb"})]


CLASSES = {
    "what is and what is not": (["not_duplicate", "duplicate"], [0, 1, -1]),
    "in one word": (["irrelevant", "Relevant"], [0, 1, -1]),
    "yes": (["no", "yes"], [0, 1, -1]),
    "numbers": (["1", "0"], ["1", "0", -1]),
    "turned": (["entailment", "not_entailment"], ["entailment", "not_entailment", -1]),
    "degrees": (["very_relevant", "relevant"], ["very_relevant", "relevant", -1]),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_is_what_its_name_says(tmp_path, case):
    """As Hugging Face's ``datasets`` note it in Parquet and Arrow."""
    names, expected = CLASSES[case]
    label = {"names": names, "_type": "ClassLabel"}
    features = {"one": label, "some": {"feature": label, "_type": "List"}, "q": {"_type": "Value"}}
    noted = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"one": [0, 1, -1], "some": [[0, 1], [-1], None], "q": [0, 1, 2]})
    table = table.replace_schema_metadata(noted)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        rows = [row for _, row in read_rows(tmp_path / name)]
        assert [row["one"] for row in rows] == expected
        assert [row["some"] for row in rows] == [expected[:2], [-1], None]
        assert [row["q"] for row in rows] == [0, 1, 2]


BROKEN = {
    "no JSON": ("a.jsonl", '{"q": "a"}\n{"q": }\n', ":2: a line must be one JSON object"),
    "no object": ("a.jsonl", '{"q": "a"}\n3\n', ":2: a row must be an object"),
    "over lines": ("a.jsonl", '{\n"q": "a"}\n', ":1: .* must stand in an array"),
    "too deep": ("a.json", "[" * 100_000, ":1: a row must be a JSON object .*recursion"),
    "no comma": ("a.json", '[{"q": "a"}\n{"q": "b"}]', ":2: a comma must stand between"),
    "within": ("a.json", '[{"q": "a"},\n{"q" "b"}]', """:2: .* got '{"q" "b"}]'"""),
    "cut": ("a.json", '[{"q": "a"},\n{"q": "b', """:2: .* got '{"q": "b' .*Unterminated"""),
    "no end": ("a.json", '[{"q": "a"},\n', ":2: the array does not end"),
    "not a row": ("a.json", '[{"q": "a"},\n"b"]', ':2: each element .* be an object .* got "b"'),
    "lists": ("a.jsonl", '["q", "p"]\n["a", "b"]\n', ':1: .* got "q"; write lists of values as'),
    "two arrays": (
        "a.json",
        '[{"q": "a"}]\n [{"q": "b"}]\n',
        """:2: nothing must stand behind the end of the array, got '\\[{"q": "b"}""",
    ),
    "an object behind": ("a.json", '[{"q": "a"}]{"q": "b"}', ":1: nothing must stand behind"),
    "arrays as lines": ("a.jsonl", '[{"q": "a"}]\n[{"q": "b"}]', ":2: nothing must stand behind"),
    "columns": ("a.csv", "q,p\na,b\nc\n", r":3: expected 2 columns \(q, p\), got 1: 'c'"),
    "a quote": ("a.csv", 'q,p\na,b\n"c,d\ne,f\n', ":3: .* quotes in pairs .*unexpected end"),
    "behind it": ("a.csv", 'q,p\na,"b"c\n', ":2: .* quotes in pairs"),
    "names": ("a.csv", "q,q\na,b\n", ":1: each column must have a name of its own, got q, q"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_row_is_one_line_that_leads_to_it(tmp_path, case):
    name, text, words = BROKEN[case]
    (tmp_path / name).write_text(text)
    with refused(f"{name}{words}"):
        list(read_rows(tmp_path / name))


@pytest.mark.parametrize("kind", ["parquet", "stream.arrow"])
def test_a_broken_binary_file_is_said_with_its_row(tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    written(file)
    file.write_bytes(file.read_bytes()[:-40])
    with refused(f"rows.{kind}:[13]: the .* file is broken here or further on"):
        list(read_rows(file))


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_whatever_byte_of_a_table_is_wrong_is_one_line_or_a_row(tmp_path, ending):
    """Of an offset, of the name of a column, of the schema: no traceback, and no memory of others."""
    table = pa.table({"query": ["a b", "c d"] * 5, "pos": [["x"], ["y z"]] * 5})
    file = tmp_path / f"a.{ending}"
    if ending == "arrow":
        with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_file(opened, table.schema) as writer:
            writer.write_table(table)
    else:
        parquet.write_table(table, file)
    whole = file.read_bytes()
    told = []
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        try:
            assert all(row.keys() for _, row in read_rows(file))
        except InputError as error:
            told.append(str(error))
    assert len(told) > 50
    assert all(line.startswith(str(file)) for line in told)
