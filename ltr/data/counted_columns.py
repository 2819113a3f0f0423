"""Texts with tabs between: what the columns of such a file hold, counted once and kept in the cache."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from ltr.data.cache_folder import cached, origin_of
from ltr.data.columns import is_certain
from ltr.data.files import digest_of, numbered_lines_in, text_blocks
from ltr.data.progress import reading
from ltr.data.separated_rows import SplitRows, split_tabs, stripped
from ltr.entries import parse_json
from ltr.errors import InputError

log = logging.getLogger(__name__)

NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+([.,]0*)?")
CODE = re.compile(r"[A-Za-z].*[0-9]|[0-9].*[A-Za-z]")
WORD = re.compile(
    r"[!-~]+"
)  # of ASCII, as ids and codes are: other scripts write texts without spaces

MOST = 0.9  # of the lines: the share from which a column counts as one of numbers
MOST_VALUES = 100  # different values of a column that is told of
DISTINCT = 2 * MOST_VALUES  # different values of a column that are counted
LETTERS = 30  # of a value that may be a label


@dataclass
class Column:
    """What one column holds, over the lines that have as many columns as most.

    Attributes:
        numbers: lines in which it is a number.
        single_words: lines in which it is one word of ASCII.
        codes: lines in which it is one such word of letters and digits.
        fractions: lines in which it is a number that is not whole.
        phrases: lines in which it is several words.
        first_values: its first different values, at most ``DISTINCT`` of them.
    """

    numbers: int = 0
    single_words: int = 0
    codes: int = 0
    fractions: int = 0
    phrases: int = 0
    first_values: dict[str, None] = field(default_factory=dict)

    def add(self, value: str, n_lines: int = 1) -> None:
        """Count lines with this value, which has no white space or quotes at its ends."""
        if self.distinct < DISTINCT:
            self.first_values[value] = None
        if " " in value:
            self.phrases += n_lines
        elif NUMBER.fullmatch(value):
            self.numbers += n_lines
            self.single_words += n_lines
            if WHOLE_NUMBER.fullmatch(value) is None:
                self.fractions += n_lines
        elif WORD.fullmatch(value):
            self.single_words += n_lines
            if CODE.search(value) is not None:
                self.codes += n_lines

    def add_many(self, values: list[bytes]) -> None:
        """Count lines with these values, as UTF-8."""
        if self.distinct == DISTINCT:
            others = [value for value in values if b" " not in value]
            self.phrases += len(values) - len(others)
            values = others
        for value, n_lines in Counter(values).items():
            self.add(value.decode(), n_lines)

    @property
    def distinct(self) -> int:
        """How many different values it has, at most ``DISTINCT``."""
        return len(self.first_values)

    @cached_property
    def values(self) -> Sequence[str] | None:
        """Its different values, where they are few and short."""
        are_short = all(len(v) <= LETTERS and len(v.split()) <= 3 for v in self.first_values)
        return sorted(self.first_values) if are_short and self.distinct <= MOST_VALUES else None


# The number of a line with its values, or that of the first of many.
Lines = tuple[int, list[str] | SplitRows]


class CountedColumns(NamedTuple):
    """What the columns of a file hold.

    Attributes:
        lines: that are not empty, without that of the names.
        first: number of the first line, which may be that of the names.
        names: of the columns, where the first line holds them; empty elsewhere.
        columns: those of the lines that have as many as most.
        others: lines with another number of columns.
        first_other: number of the first of them.
        first_others: columns of that.
        quoted: lines with quotes as spreadsheets write them.
        first_quoted: the first of them, with its number.
    """

    lines: int
    first: int
    names: Sequence[str]
    columns: Sequence[Column]
    others: int
    first_other: int
    first_others: int
    quoted: int
    first_quoted: str

    @property
    def n_of_most(self) -> int:
        """Lines with as many columns as most."""
        return self.lines - self.others

    def share(self, count: int) -> float:
        """What a number of lines is of those with as many columns as most."""
        return count / max(1, self.n_of_most)

    def has_texts(self, column: Column) -> bool:
        """Whether half of the values of a column or more are several words."""
        return self.share(column.single_words) <= 0.5

    def holds_numbers(self, column: Column) -> bool:
        """Whether nearly all values of a column are numbers."""
        return self.share(column.numbers) >= MOST


def columns_of(file: Path, layout: str = "", digest: str | None = None) -> CountedColumns:
    """What the columns of a file hold: counted once, and kept in the cache. Quotes of spreadsheets get
    a warning.

    Args:
        file: plain or packed.
        layout: what a line of texts must be, for errors; empty where who reads it checks the lines.
        digest: of the file, where it is known.

    Raises:
        InputError: with ``file:line`` for a text between quotes that holds a tab or the end of a
            line; where there is a layout, for a line of one column or with an empty one.
    """

    def build(folder: Path) -> None:
        counted = _count_columns(file, _checked_lines(file, layout))
        (folder / "columns.json").write_text(
            json.dumps(counted._asdict(), default=asdict), encoding="utf-8"
        )

    def open_counted(folder: Path) -> CountedColumns:
        entries: dict[str, Any] = parse_json((folder / "columns.json").read_bytes())
        entries["columns"] = [Column(**column) for column in entries["columns"]]
        return CountedColumns(**entries)

    content = f"columns-3 {layout} {digest or digest_of(file)}"
    with reading([file]):
        counted = cached("columns", content, build, open_counted, origin_of(file))
    if counted.quoted:
        log.warning(
            "%s:%s: %d lines hold quotes as spreadsheets write them, which are read as text; save the file without them",
            file,
            counted.first_quoted,
            counted.quoted,
        )
    return counted


def _count_columns(file: Path, lines: Iterator[Lines]) -> CountedColumns:
    beginning = [
        (number, values) for number, values in islice(lines, 2) if isinstance(values, list)
    ]
    if not beginning:
        return CountedColumns(0, 1, [], [], 0, 0, 0, 0, "")
    first, first_values = beginning[0]
    lines_of_width: dict[int, _LinesOfWidth] = {}  # by the number of columns
    breaks = _Breaks()
    breaks.add(first, first_values)
    for number, values in chain(beginning[1:], lines):
        n_columns = len(values.columns if isinstance(values, SplitRows) else values)
        if n_columns not in lines_of_width:
            lines_of_width[n_columns] = _LinesOfWidth(number)
        if isinstance(values, SplitRows):
            lines_of_width[n_columns].add_many(values)
            breaks.add(number, [])
        else:
            lines_of_width[n_columns].add(number, values)
            breaks.add(number, values)
    names: list[str] = []
    second_values = beginning[1][1] if len(beginning) > 1 else None
    if _are_names(first_values, second_values, lines_of_width.get(len(first_values))):
        names = [value.strip().strip('"')[:60] for value in first_values]
    else:
        like_first = lines_of_width.setdefault(len(first_values), _LinesOfWidth(first))
        like_first.add(first, first_values)
    widths = list(lines_of_width.values())
    commonest = max(widths, key=lambda width: width.n_lines, default=_LinesOfWidth(first))
    n_lines = sum(width.n_lines for width in widths)
    odd = [(w.first, n_columns) for n_columns, w in lines_of_width.items() if w is not commonest]
    first_odd_line, n_columns_of_first_odd = min(odd, default=(0, 0))
    quoted = [(width.first_quoted, width.shown_quoted) for width in widths if width.n_quoted]
    first_quoted, shown_quoted = min(quoted, default=(0, ""))
    breaks.refuse(file, len(commonest.columns), n_lines)
    return CountedColumns(
        lines=n_lines,
        first=first,
        names=names,
        columns=commonest.columns,
        others=n_lines - commonest.n_lines,
        first_other=first_odd_line,
        first_others=n_columns_of_first_odd,
        quoted=sum(width.n_quoted for width in widths),
        first_quoted=f"{first_quoted}: {shown_quoted}",
    )


class _Breaks:
    """Tabs and line ends within quotes. A quote may also begin in one text and end in another one, as
    in sentences of a novel; so a break is one where the columns are as many as elsewhere without it,
    or where every other line has one.
    """

    def __init__(self) -> None:
        # By what it is, the columns of a line with it, and those without it: how many, and where.
        self._n_of_break: Counter[tuple[str, int, int]] = Counter()
        self._first_line: dict[tuple[str, int, int], int] = {}
        self._n_before = 0  # columns of the line before, where it ends within quotes

    def add(self, number: int, values: list[str]) -> None:
        """Look at one line."""
        if '"' not in "".join(values):
            self._n_before = 0
            return
        opened = [place for place, value in enumerate(values) if _opens(value)]
        closed = [place for place, value in enumerate(values) if _closes(value)]
        if self._n_before and closed[:1] == [0]:
            n_joined = self._n_before + len(values) - 1
            self._add_break("line end", max(self._n_before, len(values)), n_joined, number)
        if opened and closed and opened[0] < closed[-1]:
            self._add_break("tab", len(values), len(values) - (closed[-1] - opened[0]), number)
        self._n_before = len(values) if opened[-1:] == [len(values) - 1] else 0

    def _add_break(self, what: str, n_with: int, n_without: int, number: int) -> None:
        key = (what, n_with, n_without)
        self._n_of_break[key] += 1
        self._first_line.setdefault(key, number)

    def refuse(self, file: Path, n_columns: int, n_lines: int) -> None:
        """Raise an InputError for the first break.

        Args:
            file: for the error.
            n_columns: that most lines have.
            n_lines: of the file.
        """
        for (what, n_with, n_without), count in self._n_of_break.items():
            is_break = n_with != n_columns and n_without == n_columns
            if is_break or 4 * count >= n_lines:
                where = f"{file}:{self._first_line[what, n_with, n_without]}"
                raise InputError(
                    f"{where}: a text must hold no {what}, got one between quotes; write a space for it"
                )


def _checked_lines(file: Path, layout: str) -> Iterator[Lines]:
    """The lines of a file one by one, but many without quotes together behind the first two."""
    n_alone = 0
    for first, block in text_blocks(file):
        together = split_tabs(block) if n_alone >= 2 and b'"' not in block else None
        if together is not None:
            yield first, together
            continue
        for number, line in numbered_lines_in(file, first, block):
            values = line.split("\t")
            if layout and len(values) < 2:
                raise InputError(
                    f"{file}:{number}: expected {layout}, got one column: {line[:60]!r}{separator_hint(line)}"
                )
            if layout and not all(map(str.strip, values)):
                column = 1 + next(place for place, value in enumerate(values) if not value.strip())
                raise InputError(f"{file}:{number}: column {column} is empty")
            n_alone += 1
            yield number, values


def separator_hint(line: str) -> str:
    """What stands between the columns of a line without a tab, perhaps."""
    if line.lstrip().startswith(("{", "[")):
        return "; JSON is read from files called .jsonl or .json"
    for separator, name in ((";", "semicolons"), ("|", "bars"), (",", "commas")):
        if separator in line:
            return f"; where {name} stand between the columns, write tabs"
    return ""


def _opens(value: str) -> bool:
    """Whether a value begins with a quote that does not end in it."""
    return value.startswith('"') and value.count('"') % 2 == 1


def _closes(value: str) -> bool:
    """Whether a value ends with a quote that did not begin in it."""
    return value.rstrip().endswith('"') and value.count('"') % 2 == 1


class _LinesOfWidth:
    """Counts lines that all have the same number of columns, and what their columns hold."""

    def __init__(self, first: int) -> None:
        self.first = first  # number of the first line
        self.n_lines = 0
        self.n_quoted = 0
        self.first_quoted = 0
        self.shown_quoted = ""
        self.columns: list[Column] = []

    def add(self, number: int, values: list[str]) -> None:
        """Count one line."""
        if not self.columns:
            self.columns = [Column() for _ in values]
        self.n_lines += 1
        self.first = min(self.first, number)
        if _is_of_spreadsheet(values):
            self.n_quoted += 1
            if self.n_quoted == 1 or number < self.first_quoted:
                self.first_quoted = number
                self.shown_quoted = repr("\t".join(values)[:60])
        for value, column in zip(values, self.columns, strict=True):
            column.add(value.strip().strip('"'))

    def add_many(self, lines: SplitRows) -> None:
        """Count many lines without quotes, which come behind others."""
        if not self.columns:
            self.columns = [Column() for _ in lines.columns]
        self.n_lines += len(lines.places)
        for values, column in zip(lines.columns, self.columns, strict=True):
            column.add_many(stripped(values))


def _are_names(
    values: list[str], second_values: list[str] | None, others: _LinesOfWidth | None
) -> bool:
    """Whether the first line of a file holds the names of its columns: it has words that columns are
    called by; or it is of a few words where a column of the other lines is one of numbers, or of
    single words where theirs all have several.

    Args:
        values: of the first line.
        second_values: of the second line, if there is one.
        others: the other lines of as many columns, if there are any.
    """
    if len(values) < 2:
        return False
    if all(map(is_certain, values)):
        # Where the second one is of such words, too, as "doc1<TAB>document 1" and
        # "doc2<TAB>document 2", both are texts.
        return not second_values or not all(map(is_certain, second_values))
    if others is None or others.n_lines < 3:
        return False
    stripped = [value.strip().strip('"') for value in values]
    if not all(map(may_be_name, stripped)):
        return False
    columns = others.columns
    if any(column.numbers >= MOST * others.n_lines for column in columns):
        return True
    is_single = all(len(value.split()) == 1 for value in stripped)
    return is_single and all(column.phrases == others.n_lines for column in columns)


def may_be_name(value: str) -> bool:
    """Whether a value of a first line may be the name of a column: a few words, and no number.

    >>> may_be_name("Question asked"), may_be_name("how large is a cat"), may_be_name("0.5")
    (True, False, False)
    """
    is_long = len(value) > LETTERS or len(value.split()) > 3
    return not is_long and NUMBER.fullmatch(value) is None


def _is_quoted(text: str) -> bool:
    """Whether a text stands between quotes."""
    return len(text) > 2 and text.startswith('"') and text.endswith('"')


def _has_doubled_quotes(text: str) -> bool:
    """Whether the quotes within a text that stands between quotes are doubled."""
    inside = text[1:-1]
    return '""' in inside and '"' not in inside.replace('""', "")


def _is_of_spreadsheet(values: list[str]) -> bool:
    """Whether all columns stand between quotes, or one with quotes in it, which are doubled."""
    if '"' not in "".join(values):
        return False
    quoted = [value for value in values if _is_quoted(value)]
    return len(quoted) == len(values) or any(_has_doubled_quotes(text) for text in quoted)
