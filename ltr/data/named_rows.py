"""Rows with named columns: JSON lines, JSON arrays, CSV and text with tabs, Parquet, Arrow.

A row is a number and the values of its columns by name. The number leads to its place: the line where
it begins, in Parquet and Arrow the row, counted from 1.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ltr.data.files import blocks, note_read, numbered_lines
from ltr.data.first_bytes import NO_TEXT, PACKED, kind_of_file
from ltr.data.forms import ENDINGS_OF_ROWS, Form
from ltr.data.separated_rows import ColumnBlock, Row, listed, separated_rows, single_rows
from ltr.entries import parse_json, shown
from ltr.errors import InputError

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

BATCH = 4096  # rows of a Parquet file that are read at once
PARQUET_BUFFER = 2**20  # bytes of a column
# Errors that a broken file of pyarrow leads to, beside its own: of names that are not UTF-8 the last.
BROKEN = (OSError, SystemError, UnicodeDecodeError)
BLOCK = 2**20  # bytes of a JSON array that are read at once
NO_AND_YES = {("no", "yes"), ("false", "true"), ("negative", "positive"), ("neg", "pos")}
NOT = {"no", "not", "non", "un", "in", "ir", "dis"}  # as in not_duplicate, irrelevant
WHITE = re.compile(r"\s*")
NAME_OF_OBJECT = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*')
NEXT_OF_OBJECT = re.compile(r"\s*([,}])")
# What the end of a block can cut: a number, a name such as -Infinity, an escape.
CUT = 16


def read_rows(file: Path, choose: Callable[[list[str]], list[str]] = list) -> Iterator[Row]:
    """The rows of a file, one after the other; those of text with tabs have their names in the first
    line.

    Args:
        file: the file.
        choose: gives the columns of a Parquet file that are read, out of those that are there.

    Raises:
        InputError: ``file:line`` for what is no row; ``file:row`` for a Parquet or Arrow file that is
            broken; for a missing file.
    """
    return single_rows(read_blocks(file, choose))


def read_blocks(
    file: Path, choose: Callable[[list[str]], list[str]] = list
) -> Iterator[Row | ColumnBlock]:
    """The same, but many rows together where all their values are texts."""
    reader = READERS.get(Form(file).ending, separated_rows)
    return _parquet_rows(file, choose) if reader is _parquet_rows else reader(file)


def has_line_of_names(file: Path) -> bool:
    """Whether a file has the names of its columns in its first line, where a row may stand as well."""
    return READERS.get(Form(file).ending, separated_rows) is separated_rows


def mentions(file: Path, names: Sequence[str]) -> bool:
    """Whether a file of JSON has strings, such as names of columns, that are equal to each of these
    anywhere. False for files of other forms.
    """
    if READERS.get(Form(file).ending) is not _json_rows:
        return False
    left = [json.dumps(name).encode() for name in names]
    end = b""
    for _, block in blocks(file, BLOCK, whole_lines=False):
        text = end + block
        left = [name for name in left if name not in text]
        if not left:
            return True
        end = text[-max(map(len, left)) :]
    return False


def classes_of(features: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the numbers of classes stand for, by their column.

    A class is its name, which may be a number. Only where the second of two is what the first is not,
    as ``not_duplicate`` and ``duplicate``, they are 0 and 1.

    Args:
        features: of Hugging Face's ``datasets``, as ``Features.to_dict`` gives them.
    """
    classes = {}
    for column, feature in features.items():
        while isinstance(feature, dict) and "feature" in feature:  # of a list
            feature = feature["feature"]
        if isinstance(feature, list) and len(feature) == 1:
            (feature,) = feature
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            names = feature.get("names") or []
            classes[column] = [0, 1] if _are_no_and_yes(names) else names
    return classes


def value_of_class(value: Any, classes: Sequence[Any]) -> Any:
    """The same of a value, or of those of a list; what is no number of a class stays."""
    if isinstance(value, list):
        return [value_of_class(each, classes) for each in value]
    if isinstance(value, int) and 0 <= value < len(classes):
        return classes[value]
    return value


def _are_no_and_yes(names: Sequence[str]) -> bool:
    if len(names) != 2:
        return False
    no, yes = (name.lower() for name in names)
    return (no, yes) in NO_AND_YES or no.removesuffix(yes).strip(" _-") in NOT


def _json_rows(file: Path) -> Iterator[Row]:
    """An array of objects, or one object a line."""
    for _, block in blocks(file, BLOCK, whole_lines=False):
        beginning = block.lstrip()
        if beginning:
            is_array = beginning.startswith(b"[")
            yield from _rows_of_array(file) if is_array else _rows_of_lines(file)
            return


def _rows_of_lines(file: Path) -> Iterator[Row]:
    for number, line in numbered_lines(file):
        try:
            row = parse_json(line)
        except ValueError as error:
            # error.msg, not str(error): that would add "line 1 column 7", counted within this line.
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InputError(
                f"{file}:{number}: a line must be one JSON object, got {line[:60]!r} ({reason}); objects over several lines must stand in an array"
            ) from None
        yield number, _object(row, f"{file}:{number}")


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: a row must be an object with named columns, got {shown(row)}")
    return row


def _rows_of_array(file: Path) -> Iterator[Row]:
    """The objects of an array, however its lines are broken. A block of it is in memory at a time, and
    more where a row is longer.
    """
    parts = filter(None, _decoded_parts(file))  # one within a character is empty
    decode = json.JSONDecoder().raw_decode
    text = ""
    place = 0
    line = 1  # at the place
    awaited = "["
    while True:
        white = WHITE.match(text, place)
        assert white is not None  # it may be empty
        line += text.count("\n", place, white.end())
        place = white.end()
        if place == len(text):
            text = next(parts, "")
            place = 0
            if text:
                continue
            if awaited != "end":
                raise InputError(
                    f"{file}:{line}: the array does not end; the file may be cut short"
                )
            return
        sign = text[place]
        beginning = text[place : place + 60]
        if awaited == "end":
            raise InputError(
                f"{file}:{line}: nothing must stand behind the end of the array, got {beginning!r}; make one array of all rows, or write one object a line"
            )
        if awaited == "," and sign not in ",]":
            raise InputError(
                f"{file}:{line}: a comma must stand between the rows of an array, got {beginning!r}"
            )
        if awaited == "row" and sign != "]":
            try:
                row, end = decode(text, place)
            except json.JSONDecodeError as error:
                is_cut = error.pos >= len(text) - CUT or error.msg.startswith("Unterminated")
                part = next(parts, "") if is_cut else ""
                if part:
                    text = text[place:] + part
                    place = 0
                    continue
                at = line + text.count("\n", place, error.pos)
                begin = text.rfind("\n", 0, error.pos) + 1
                raise InputError(
                    f"{file}:{at}: a row must be a JSON object, got {text[begin : begin + 60]!r} ({error.msg})"
                ) from None
            except (ValueError, RecursionError) as error:  # digits without end, nested too deep
                raise InputError(f"{file}:{line}: a row must be a JSON object ({error})") from None
            if not isinstance(row, dict):
                raise InputError(
                    f"{file}:{line}: each element of the array must be an object with named columns, got {shown(row)}; write lists of values as CSV, or as objects"
                )
            yield line, row
            line += text.count("\n", place, end)
            place = end
            awaited = ","
        else:
            place += 1
            awaited = "end" if sign == "]" else "row"


class _Pairs(list[tuple[str, Any]]):
    """The names and values of an object, also those of a name that comes twice."""


def values_by_query(file: Path) -> Iterator[tuple[int, str, list[tuple[str, Any]]]]:
    """Of a file ``{query: {document: value}}`` each query with its line, and what it has."""
    text = "".join(_decoded_parts(file))
    decode = json.JSONDecoder(object_pairs_hook=_Pairs).raw_decode
    line = 1
    counted = 0  # the letters before it are those of the lines above and of a part of this one

    def where(place: int) -> str:
        nonlocal line, counted
        line += text.count("\n", counted, place)
        counted = place
        return f"{file}:{line}"

    sign = "{"
    place = text.index(sign) + 1
    while sign != "}":
        last = NEXT_OF_OBJECT.match(text, place)
        if sign == "{" and last and last[1] == "}":  # an empty one
            place = last.end()
            break
        name = NAME_OF_OBJECT.match(text, place)
        if name is None:
            raise InputError(
                f"{where(place)}: a query must stand here in quotes, with a colon behind it, got {text[place : place + 60]!r}; the file may be cut short"
            )
        try:
            query = parse_json(name[1])
            values, place = decode(text, name.end())
        except json.JSONDecodeError as error:
            at = error.pos if error.doc is text else name.start(1)
            raise InputError(
                f"{where(at)}: a query must have a JSON object, got {text[at : at + 60]!r} ({error.msg}); the file may be cut short"
            ) from None
        except (ValueError, RecursionError) as error:  # digits without end, nested too deep
            raise InputError(
                f"{where(name.end())}: a query must have a JSON object ({error})"
            ) from None
        if not isinstance(values, _Pairs):
            raise InputError(
                f"{where(name.end())}: query {query!r:.60} must have an object of documents and numbers, got {shown(values)}"
            )
        where(name.end())
        yield line, query, values
        next_one = NEXT_OF_OBJECT.match(text, place)
        if next_one is None:
            raise InputError(
                f"{where(place)}: a comma must stand between the queries of an object, got {text[place : place + 60]!r}; the file may be cut short"
            )
        sign = next_one[1]
        place = next_one.end()
    if text[place:].strip():
        raise InputError(
            f"{where(place)}: nothing must stand behind the end of the object, got {text[place : place + 60].strip()!r}; make one object of all queries"
        )


def _decoded_parts(file: Path) -> Iterator[str]:
    """A text in parts that need not end where lines do: an array may stand in one line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for number, block in blocks(file, BLOCK, whole_lines=False):
        try:
            yield decoder.decode(block)
        except UnicodeDecodeError as error:
            number += block.count(b"\n", 0, error.start)
            raise InputError(
                f"{file}:{number}: text must be UTF-8, got byte 0x{error.object[error.start]:02x}; save the file as UTF-8"
            ) from None


def _parquet_rows(
    file: Path, choose: Callable[[list[str]], list[str]] = list
) -> Iterator[Row | ColumnBlock]:
    """Of the file a few thousand rows are in memory at a time."""
    _refuse_other_kind(file, "Parquet")
    pyarrow = _pyarrow(file)
    from pyarrow.parquet import ParquetFile

    first_row = 1
    try:
        with ParquetFile(file, buffer_size=PARQUET_BUFFER, pre_buffer=False) as opened:
            names = choose(opened.schema_arrow.names)
            bytes_of_row = file.stat().st_size / max(1, opened.metadata.num_rows)
            # Several threads would take as many times the memory.
            for batch in opened.iter_batches(BATCH, columns=names, use_threads=False):
                yield from _rows_of_batch(batch, file, first_row)
                first_row += len(batch)
                note_read(int(len(batch) * bytes_of_row))
    except (pyarrow.ArrowException, *BROKEN) as error:  # the last for broken offsets
        raise _broken(file, first_row, "Parquet", error) from None


def _arrow_rows(file: Path) -> Iterator[Row | ColumnBlock]:
    """Of both kinds that Arrow writes: a file, and a stream, as those of Hugging Face datasets."""
    _refuse_other_kind(file, "Arrow")
    pyarrow = _pyarrow(file)
    first_row = 1
    try:
        with pyarrow.OSFile(str(file)) as opened:
            is_stream = opened.read(6) != b"ARROW1"
            opened.seek(0)
            if is_stream:
                batches = iter(pyarrow.ipc.open_stream(opened))
            else:
                arrow = pyarrow.ipc.open_file(opened)
                batches = map(arrow.get_batch, range(arrow.num_record_batches))
            n_noted = 0
            for batch in batches:
                try:
                    batch.validate(full=True)  # broken offsets would lead anywhere in memory
                except pyarrow.ArrowInvalid as error:
                    if "UTF8" not in str(error):  # of which the rows are told below
                        raise
                yield from _rows_of_batch(batch, file, first_row)
                first_row += len(batch)
                note_read(opened.tell() - n_noted)
                n_noted = opened.tell()
    except (pyarrow.ArrowException, *BROKEN) as error:  # the last for broken offsets
        raise _broken(file, first_row, "Arrow", error) from None


def _refuse_other_kind(file: Path, expected: str) -> None:
    """Raise an InputError for a file of another known kind under such a name."""
    kind = kind_of_file(file)
    if kind in PACKED:
        raise InputError(f"{file}: the file must hold {expected}, got {kind}; unpack it")
    if kind not in ("text", "UTF-16", expected):
        raise InputError(f"{file}: the file must hold {expected}, got {NO_TEXT[kind]}")


def _pyarrow(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        what = "Parquet" if file.suffix == ".parquet" else "Arrow"
        raise InputError(f"{file}: {what} needs another package: pip install pyarrow") from None
    return pyarrow


def _broken(file: Path, row: int, what: str, error: Exception) -> InputError:
    text = " ".join(str(error).split())[:100]
    return InputError(
        f"{file}:{row}: the {what} file is broken here or further on ({text}); fetch or write it again"
    )


def _rows_of_batch(batch: "RecordBatch", file: Path, first_row: int) -> Iterator[Row | ColumnBlock]:
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise InputError(f"{file}: each column must have a name of its own, got {listed(names)}")
    if all(map(_has_texts_alone, batch.columns)):
        texts = [column.cast("binary").to_pylist() for column in batch.columns]
        if not any(b"\0" in b"".join(values) for values in texts):
            yield ColumnBlock(np.arange(first_row, first_row + len(batch)), names, texts)
            return
    columns = [_values(column, str(file), first_row) for column in batch.columns]
    for name, classes in _classes_of_schema(batch.schema).items():
        if name in names:
            place = names.index(name)
            columns[place] = value_of_class(columns[place], classes)
    for row, values in enumerate(zip(*columns, strict=True), start=first_row):
        yield row, dict(zip(names, values, strict=True))


def _has_texts_alone(column: "Array") -> bool:
    if str(column.type) != "string" or column.null_count:
        return False
    try:
        column.validate(full=True)
    except ValueError:  # what is no UTF-8 is told of row by row
        return False
    return True


def _classes_of_schema(schema: Any) -> dict[str, list[Any]]:
    """The classes that Hugging Face's ``datasets`` has noted in a file."""
    try:
        noted = parse_json((schema.metadata or {})[b"huggingface"])
        return classes_of(noted["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _values(column: "Array", source: str, first_row: int) -> list[Any]:
    """The values of a column; an InputError for the first that is not UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        pass
    for row, value in enumerate(column, start=first_row):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{source}:{row}: text must be UTF-8, got byte 0x{error.object[error.start]:02x}; write the file again"
            ) from None
    raise AssertionError("all values together failed, so one of them does")


Reader = Callable[[Path], Iterator[Row | ColumnBlock]]
READERS: dict[str, Reader] = dict.fromkeys(ENDINGS_OF_ROWS, _json_rows)
READERS |= {".csv": separated_rows, ".parquet": _parquet_rows, ".arrow": _arrow_rows}
