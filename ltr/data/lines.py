"""Lines of a query, a document and a value, whose ids are looked up many at a time."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.errors import InputError

BLOCK = 65_536  # lines whose ids are looked up together

# The number of a line with a query id, a document id and a value.
Line = tuple[int, tuple[str, str, float]]


class LineRows(NamedTuple):
    """R lines with rows for their ids."""

    numbers: np.ndarray  # [R] int64, of the lines
    query_rows: np.ndarray  # [R] int64, -1 for an unknown id
    doc_rows: np.ndarray  # [R] int64, -1 for an unknown id
    values: np.ndarray  # [R] float32

    def select(self, which: np.ndarray) -> "LineRows":
        """Some of the lines, by a mask or by their places here."""
        return LineRows(*[column[which] for column in self])

    def first_of_pairs(self) -> np.ndarray:
        """``[R]`` int64: for each line the place of the first one with its query and document."""
        order = np.lexsort((self.doc_rows, self.query_rows))  # lines of a pair as they come
        same_query = np.diff(self.query_rows[order]) == 0
        same_doc = np.diff(self.doc_rows[order]) == 0
        begins_pair = np.concatenate([[True], ~(same_query & same_doc)])
        firsts = np.empty_like(order)
        firsts[order] = order[begins_pair][np.cumsum(begins_pair) - 1]
        return firsts

    def lists(self) -> QueryLists:
        """The lines by query."""
        return QueryLists.from_rows(self.query_rows, self.doc_rows, self.values)


def look_up(lines: Iterable[Line], queries: TextTable, corpus: TextTable) -> LineRows | None:
    """The rows of the ids of all lines; None if there is no line."""
    blocks = [rows for _, rows in _blocks_with_rows(lines, queries, corpus)]
    return _join(blocks) if blocks else None


def _join(blocks: list[LineRows]) -> LineRows:
    return LineRows(*[np.concatenate(columns) for columns in zip(*blocks, strict=True)])


def lists_of_lines(
    source: str | Path,
    kind: str,
    queries: TextTable,
    corpus: TextTable,
    lines: Iterable[Line],
) -> QueryLists:
    """Numbered lines (query, doc, value) as lists by query, every id and pair checked.

    Args:
        source: where the lines come from, for errors.
        kind: what a line is, for errors.
        queries, corpus: the tables that know the ids.
        lines: a line number with a query id, a document id and a value.
    """
    blocks = []
    for block, rows in _blocks_with_rows(lines, queries, corpus):
        unknown = np.flatnonzero((rows.query_rows < 0) | (rows.doc_rows < 0))
        if len(unknown):
            number, (query, doc, _) = block[unknown[0]]
            if rows.query_rows[unknown[0]] < 0:
                raise InputError(f"{source}:{number}: query {query!r} is not in the queries")
            raise InputError(
                f"{source}:{number}: document {doc!r} is not in the corpus, or has no text"
            )
        blocks.append(rows)
    if not blocks:
        raise InputError(f"{source}: the split is empty; at least one {kind} is needed")
    known = _join(blocks)
    blocks.clear()
    firsts = known.first_of_pairs()
    repeats = np.flatnonzero(firsts != np.arange(len(firsts)))
    if len(repeats):
        second = repeats[0]
        first = firsts[second]
        query_id = queries.ids[known.query_rows[second]]
        doc_id = corpus.ids[known.doc_rows[second]]
        raise InputError(
            f"{source}:{known.numbers[second]}: a second {kind} for query {query_id!r} and document {doc_id!r}, first in line {known.numbers[first]}"
        )
    return known.lists()


def _blocks_with_rows(
    lines: Iterable[Line], queries: TextTable, corpus: TextTable
) -> Iterator[tuple[list[Line], LineRows]]:
    for block in _in_blocks(lines):
        numbers = []
        query_ids = []
        doc_ids = []
        values = []
        for number, (query, doc, value) in block:
            numbers.append(number)
            query_ids.append(query)
            doc_ids.append(doc)
            values.append(value)
        yield (
            block,
            LineRows(
                np.asarray(numbers, dtype=np.int64),
                queries.rows(query_ids),
                corpus.rows(doc_ids),
                np.asarray(values, dtype=np.float32),
            ),
        )


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
