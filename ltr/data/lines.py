"""Lines of a query, a document and a value, whose ids are looked up many at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from ltr.data.query_lists import QueryLists
from ltr.errors import InputError

BLOCK = 65_536  # lines whose ids are looked up together

# Lines of one file at most: those of a second one are counted from here.
MOST_LINES = 2**40

# The number of a line with a query id, a document id and a value.
Line = tuple[int, tuple[str, str, float]]


class IdTable(Protocol):
    """Ids by row: those of a table of texts, or of what is known by its ids alone."""

    @property
    def ids(self) -> Sequence[str]: ...

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """``[N]`` int64: the row of each id, -1 where there is none."""


class GivenIds:
    """Ids that have no texts, numbered as they come.

    >>> table = GivenIds()
    >>> table.rows(["b", "a", "b"]), table.ids
    (array([0, 1, 0]), ['b', 'a'])
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._row_of: dict[str, int] = {}

    def __contains__(self, id_: str) -> bool:
        return id_ in self._row_of

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """``[N]`` int64: the row of each id, a new one for an id that is not there."""
        rows = np.empty(len(ids), dtype=np.int64)
        for number, id_ in enumerate(ids):
            row = self._row_of.setdefault(id_, len(self.ids))
            if row == len(self.ids):
                self.ids.append(id_)
            rows[number] = row
        return rows


@dataclass(frozen=True, eq=False)
class LineRows:
    """R lines with rows for their ids."""

    line_numbers: np.ndarray  # [R] int64
    query_rows: np.ndarray  # [R] int64, -1 for an unknown id
    doc_rows: np.ndarray  # [R] int64, -1 for an unknown id
    values: np.ndarray  # [R] float32

    def __len__(self) -> int:
        return len(self.line_numbers)

    def select(self, which: np.ndarray) -> "LineRows":
        """Some of the lines, by a mask or by their places here."""
        return LineRows(
            self.line_numbers[which],
            self.query_rows[which],
            self.doc_rows[which],
            self.values[which],
        )

    @cached_property
    def first_places(self) -> np.ndarray:
        """``[R]`` int64: for each line the place of the first one with its query and document."""
        pairs = self.query_rows * (self.doc_rows.max(initial=0) + 2) + self.doc_rows
        if np.diff(np.sort(pairs)).all():  # each of its own, which takes a tenth of the time
            return np.arange(len(pairs))
        order = np.argsort(pairs, kind="stable")  # lines of a pair as they come
        begins_pair = np.concatenate([[True], np.diff(pairs[order]) != 0])
        places = np.empty_like(order)
        places[order] = order[begins_pair][np.cumsum(begins_pair) - 1]
        return places

    def first_conflict(self) -> int | None:
        """The place of the first line with another value than the first one of its pair."""
        conflicts = np.flatnonzero(self.values != self.values[self.first_places])
        return int(conflicts[0]) if len(conflicts) else None

    def best_of_pairs(self) -> "LineRows":
        """The lines with the largest value of their pair."""
        best = np.full(len(self), -np.inf, np.float32)  # by first place
        np.maximum.at(best, self.first_places, self.values)
        return self.select(self.values == best[self.first_places])

    def without_repeats(self) -> "LineRows":
        """The first line of each pair of a query and a document."""
        is_first = self.first_places == np.arange(len(self))
        return self if is_first.all() else self.select(is_first)

    def lists(self) -> QueryLists:
        """The lines by query."""
        return QueryLists.from_rows(self.query_rows, self.doc_rows, self.values)


def place_of_line(sources: Sequence[str | Path], number: int) -> str:
    """``file:line`` of a line, by its number among those of all sources."""
    place, line = divmod(int(number), MOST_LINES)
    return f"{sources[place]}:{line}"


def in_line(sources: Sequence[str | Path], number: int) -> str:
    """The same where the first source is named before: ``in line 4``, or that of another file."""
    place, line = divmod(int(number), MOST_LINES)
    return (
        f"in line {line}" if len(sources) == 1 else f"in line {line} of {Path(sources[place]).name}"
    )


def lines_of_all(files: Sequence[Path], read: Callable[[Path], Iterator[Line]]) -> Iterator[Line]:
    """The lines of several files, one behind the other, each with its number among all of them."""
    for place, file in enumerate(files):
        for number, line in read(file):
            yield number + place * MOST_LINES, line


def look_up(
    lines: Iterable[Line],
    queries: IdTable,
    corpus: IdTable,
    refuse_unknown: Sequence[str | Path] = (),
) -> LineRows:
    """The rows of the ids of all lines.

    Args:
        lines: a line number with a query id, a document id and a value.
        queries, corpus: the tables that know the ids.
        refuse_unknown: the files that the lines come from, for the error at an unknown id; without
            them there is none, and the row is -1.
    """
    numbers = [np.empty(0, dtype=np.int64)]
    query_rows = [np.empty(0, dtype=np.int64)]
    doc_rows = [np.empty(0, dtype=np.int64)]
    values = [np.empty(0, dtype=np.float32)]
    for block in _in_blocks(lines):
        rows = _rows_of_block(block, queries, corpus)
        if refuse_unknown:
            _refuse_unknown(refuse_unknown, block, rows)
        numbers.append(rows.line_numbers)
        query_rows.append(rows.query_rows)
        doc_rows.append(rows.doc_rows)
        values.append(rows.values)
    return LineRows(
        np.concatenate(numbers),
        np.concatenate(query_rows),
        np.concatenate(doc_rows),
        np.concatenate(values),
    )


def lists_of_lines(
    sources: Sequence[str | Path],
    kind: str,
    queries: IdTable,
    corpus: IdTable,
    lines: Iterable[Line],
) -> QueryLists:
    """Numbered lines (query, doc, value) as lists by query, every id and pair checked.

    Args:
        sources: the files that the lines come from, for errors.
        kind: what a line is, for errors.
        queries, corpus: the tables that know the ids.
        lines: a line number with a query id, a document id and a value.
    """
    known = look_up(lines, queries, corpus, refuse_unknown=sources)
    if not len(known):
        raise InputError(f"{sources[0]}: the split is empty; at least one {kind} is needed")
    repeats = np.flatnonzero(known.first_places != np.arange(len(known)))
    if len(repeats):
        raise second_of_pair(sources, kind, queries, corpus, known, repeats[0])
    return known.lists()


def second_of_pair(
    sources: Sequence[str | Path],
    kind: str,
    queries: IdTable,
    corpus: IdTable,
    rows: LineRows,
    second: int,
) -> InputError:
    """The error of a line whose query and document stand in an earlier one, too.

    Args:
        sources, kind, queries, corpus: as of :func:`lists_of_lines`.
        rows: of all lines.
        second: the place of the line there.
    """
    first = rows.first_places[second]
    query_id = queries.ids[rows.query_rows[second]]
    doc_id = corpus.ids[rows.doc_rows[second]]
    where = place_of_line(sources, rows.line_numbers[second])
    return InputError(
        f"{where}: a second {kind} for query {query_id!r} and document {doc_id!r}, {rows.values[second]:.9g}, first {rows.values[first]:.9g} {in_line(sources, rows.line_numbers[first])}; keep one"
    )


def _rows_of_block(block: list[Line], queries: IdTable, corpus: IdTable) -> LineRows:
    numbers = []
    query_ids = []
    doc_ids = []
    values = []
    for number, (query, doc, value) in block:
        numbers.append(number)
        query_ids.append(query)
        doc_ids.append(doc)
        values.append(value)
    return LineRows(
        np.asarray(numbers, dtype=np.int64),
        queries.rows(query_ids),
        corpus.rows(doc_ids),
        np.asarray(values, dtype=np.float32),
    )


def _refuse_unknown(sources: Sequence[str | Path], block: list[Line], rows: LineRows) -> None:
    """Raise an InputError at the first line of a block whose query or document is unknown."""
    unknown = np.flatnonzero((rows.query_rows < 0) | (rows.doc_rows < 0))
    if not len(unknown):
        return
    number, (query, doc, _) = block[unknown[0]]
    where = place_of_line(sources, number)
    if rows.query_rows[unknown[0]] < 0:
        raise InputError(f"{where}: query {query!r} is not in the queries")
    raise InputError(f"{where}: document {doc!r} is not in the corpus, or has no text")


def _in_blocks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in blocks. Those before one that can't be read come first: an unknown id among them is
    the first mistake.
    """
    block: list[Line] = []
    try:
        for line in lines:
            block.append(line)
            if len(block) == BLOCK:
                yield block
                block = []
    except InputError:
        if block:
            yield block
        raise
    if block:
        yield block
