"""Text between separators: CSV and text with tabs, many rows at once."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ltr.data.files import decoded_lines_in, text_blocks
from ltr.data.forms import Form
from ltr.errors import InputError

Row = tuple[int, dict[str, Any]]

LONGEST_FIELD = (
    2**24
)  # letters of a CSV file between quotes; more come of a quote that does not end
SEPARATORS = "\t,;"
LINE_END = ord("\n")
RETURN = ord("\r")
QUOTE = b'"'
# Of ASCII white space to a str, and not to bytes.
OTHER_SPACES = (b"\x1c", b"\x1d", b"\x1e", b"\x1f")


class ColumnBlock(NamedTuple):
    """Rows that were read together, column by column. All their values are texts without NUL.

    Attributes:
        numbers: ``[N]`` int64, as those of rows.
        names: of the columns.
        columns: the N values of each column, as UTF-8.
    """

    numbers: np.ndarray
    names: Sequence[str]
    columns: list[list[bytes]]

    def named(self, name: str) -> list[list[bytes]]:
        """The values of the columns of a name, which lines with tabs have several of."""
        named = zip(self.names, self.columns, strict=True)
        return [column for each, column in named if each == name]

    def rows(self) -> Iterator[Row]:
        """The rows, one after the other."""
        columns = [map(bytes.decode, column) for column in self.columns]
        for number, *values in zip(self.numbers.tolist(), *columns, strict=True):
            yield number, dict(zip(self.names, values, strict=True))


def single_rows(rows: Iterable[Row | ColumnBlock]) -> Iterator[Row]:
    """Rows, some of which come together, one by one."""
    for each in rows:
        if isinstance(each, ColumnBlock):
            yield from each.rows()
        else:
            yield each


class SplitRows(NamedTuple):
    """The whole rows of a block of text.

    Attributes:
        places: ``[N]`` int64: how many lines of the block stand before each row.
        columns: the N values of each column, as UTF-8.
        n_bytes, n_lines: of the block, which these rows take.
    """

    places: np.ndarray
    columns: list[list[bytes]]
    n_bytes: int
    n_lines: int


def split_rows(block: bytes, separator: bytes, *, has_quotes: bool = False) -> SplitRows | None:
    """Split a block of text, if it is plain: all rows have as many columns, no line is empty, and
    quotes are as spreadsheets write them. None for another one, and for one of a single line.

    A sign between separators or lines is one before which stands an even number of quotes.

    Args:
        block: whole lines of a file, the last of which may lack its end.
        separator: one byte.
        has_quotes: whether what stands between quotes is one value, with quotes in it twice, perhaps
            over several lines; they are text elsewhere.
    """
    if b"\0" in block or len(block) > LONGEST_FIELD or not _is_utf8(block):
        return None
    codes = np.frombuffer(block, np.uint8)
    is_line_end = codes == LINE_END
    has_returns = b"\r" in block
    if has_returns and not is_line_end[1 + np.flatnonzero(codes[:-1] == RETURN)].all():
        return None
    is_end = is_line_end | (codes == separator[0])
    has_quotes = has_quotes and QUOTE in block
    if has_quotes:
        is_end &= np.cumsum(codes == QUOTE[0], dtype=np.uint8) % 2 == 0
    line_ends = np.flatnonzero(is_line_end)
    if len(line_ends) < 2:
        return None
    ends = np.flatnonzero(is_end)
    row_ends = np.flatnonzero(is_line_end[ends])
    n_rows = len(row_ends)
    if not n_rows:  # the first one goes on in the next block
        return SplitRows(row_ends, [], 0, 0)
    n_columns = int(row_ends[0]) + 1
    if n_columns == 1 or (row_ends + 1 != n_columns * np.arange(1, n_rows + 1)).any():
        return None
    ends = ends[: n_rows * n_columns]
    n_bytes = int(ends[-1]) + 1
    marked = codes[:n_bytes].copy()
    marked[ends] = 0
    values = marked.tobytes().split(b"\0")[:-1]
    columns = [values[place::n_columns] for place in range(n_columns)]
    if has_returns:
        columns[-1] = [value.removesuffix(b"\r") for value in columns[-1]]
    if has_quotes:
        for column in columns:
            if not _take_quotes_off(column):
                return None
    n_lines = np.searchsorted(line_ends, ends[n_columns - 1 :: n_columns]) + 1  # up to each row
    places = np.concatenate([[0], n_lines])
    return SplitRows(places[:-1], columns, n_bytes, int(places[-1]))


def split_tabs(block: bytes) -> SplitRows | None:
    """Split a block of text with tabs, if it is plain and no value is empty; None for another one."""
    found = split_rows(block, b"\t")
    if found is None or found.n_bytes < len(block):
        return None
    return found if all(all(stripped(column)) for column in found.columns) else None


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _take_quotes_off(values: list[bytes]) -> bool:
    """Replace each value with quotes by what they say; False where one says nothing."""
    for place in [place for place, value in enumerate(values) if QUOTE in value]:
        value = values[place]
        inside = value[1:-1]
        is_quoted = len(value) > 1 and value[:1] == value[-1:] == QUOTE
        if not is_quoted or QUOTE in inside.replace(QUOTE * 2, b""):
            return False
        values[place] = inside.replace(QUOTE * 2, QUOTE)
    return True


def stripped(values: list[bytes]) -> list[bytes]:
    """Texts as UTF-8 without white space at their ends."""
    joined = b"".join(values)
    if joined.isascii() and not any(space in joined for space in OTHER_SPACES):
        return list(map(bytes.strip, values))
    return [value.decode().strip().encode() for value in values]


def separated_rows(file: Path) -> Iterator[Row | ColumnBlock]:
    """Rows behind a first line of names, with quotes as spreadsheets write them: within them stand
    separators, line ends, and quotes twice. In ``.tsv`` quotes are text. From the first row on that
    is not plain they come one by one.

    Raises:
        InputError: ``file:line`` for what is no row.
    """
    blocks = text_blocks(file)
    number, block = next(blocks, (1, b""))
    lines = _lines_of(file, chain([(number, block)], blocks))
    first = next(lines, "")
    n_before = 1
    if first.lower().startswith("sep="):  # as spreadsheets say what stands between
        first = next(lines, "")
        n_before = 2
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if Form(file).has_rows else csv.QUOTE_NONE
    separator = max(SEPARATORS, key=lambda sign: len(_split(first, sign)))
    if quoting == csv.QUOTE_NONE:
        separator = "\t"
        names = [name.strip() for name in first.split(separator)]
    else:
        names = [name.strip() for name in _split(first, separator)]
    if len(set(names)) < len(names):
        raise InputError(
            f"{file}:{n_before}: each column must have a name of its own, got {listed(names)}"
        )
    number = n_before + 1
    if block.count(b"\n") > n_before:
        rest = block.split(b"\n", n_before)[-1]
        has_quotes = quoting == csv.QUOTE_MINIMAL
        while block and (found := split_rows(rest, separator.encode(), has_quotes=has_quotes)):
            if found.columns and len(found.columns) != len(names):
                break
            if found.columns:
                yield ColumnBlock(number + found.places, names, found.columns)
            number += found.n_lines
            _, block = next(blocks, (0, b""))
            rest = rest[found.n_bytes :] + block
        lines = _lines_of(file, chain([(number, rest)], blocks))
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    n_before = number - 1
    try:
        for values in reader:
            if values and len(values) != len(names):
                raise InputError(
                    f"{file}:{number}: expected {len(names)} columns ({listed(names)}), got {len(values)}: {separator.join(values)[:60]!r}"
                )
            if values:  # no empty line
                yield number, dict(zip(names, values, strict=True))
            number = reader.line_num + n_before + 1
    except csv.Error as error:
        raise InputError(
            f"{file}:{number}: a row must be text between separators {separator!r}, with quotes in pairs ({error})"
        ) from None


def _lines_of(file: Path, blocks: Iterator[tuple[int, bytes]]) -> Iterator[str]:
    for first, block in blocks:
        for _, line in decoded_lines_in(file, first, block):
            yield line


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def listed(names: Sequence[str]) -> str:
    """Names of columns, for errors."""
    return ", ".join(names)[:200]
