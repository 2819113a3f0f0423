"""The tables of several sources one behind the other, read as one table is: ids, texts or tokens."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np

Table = TypeVar("Table")


def concatenated(tables: Sequence[Table], names: Sequence[str] = ()) -> Table:
    """Tables one behind the other. It is read as one of them is; a table alone stays as it is.

    Args:
        tables: all of one kind: ids, texts, or tokens that one tokenizer has made.
        names: of the tables, for ids: an id is then ``NAME/ID``. A table alone may have an empty
            one.

    Example:
        >>> ids = concatenated([["q1", "q2"], ["q1"]], names=["a", "b"])
        >>> len(ids), ids[1], ids[2]
        (3, 'a/q2', 'b/q1')
    """
    if len(tables) == 1 and not any(names):
        return tables[0]
    return cast(Table, Concatenated(tables, names))  # it has the methods that its parts have


class Concatenated(Sequence):
    """Tables one behind the other, see :func:`concatenated`.

    Args:
        parts: the tables. What is asked of all must be what each of them can tell: only tokens have
            ``lengths``, ``between``, ``views`` and ``pieces``, and only those of a template ``text``
            and ``instruction``.
        names: of the tables, for ids; empty for others.
    """

    def __init__(self, parts: Sequence[Any], names: Sequence[str] = ()) -> None:
        assert all(names), "only a table alone has no name, and it stays as it is"
        self.parts = list(parts)
        self.names = list(names)
        self._first = np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, row: int) -> Any:  # type: ignore[override]  # no slices
        number, row_of_part = self._place(row)
        entry = self.parts[number][row_of_part]
        return f"{self.names[number]}/{entry}" if self.names else entry

    @property
    def rendering_key(self) -> str | list[object]:
        """See :class:`ltr.data.tokens.Tokens`."""
        return self.parts[0].rendering_key

    @property
    def dtype(self) -> np.dtype:
        """Of the tokens."""
        return self.parts[0].dtype

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """See :meth:`ltr.data.tokens.Tokens.lengths`."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(
                f"rows must be between 0 and {len(self) - 1}, got {rows.min()} to {rows.max()}"
            )
        lengths = np.empty(len(rows), dtype=np.int64)
        for part, places, rows_of_part in self._by_part(rows):
            lengths[places] = part.lengths(rows_of_part)
        return lengths

    def between(self, first: int, stop: int) -> Any:
        """The tokens of the texts from one row up to another one, without a copy."""
        assert not self.names, "ids are read one by one"
        spans = []
        for part, begin in zip(self.parts, self._first[:-1].tolist(), strict=True):
            first_of_part = max(first - begin, 0)
            stop_of_part = min(stop - begin, len(part))
            if first_of_part < stop_of_part:
                spans.append(part.between(first_of_part, stop_of_part))
        return concatenated(spans or [self.parts[0].between(0, 0)])

    def views(
        self, rows: np.ndarray, counts: np.ndarray, *, last: bool = False
    ) -> list[memoryview]:
        """See :meth:`ltr.data.tokens.Tokens.views`."""
        starts = self.lengths(rows) - counts if last else np.zeros_like(counts)
        return self.pieces(rows, starts, counts)

    def pieces(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> list[memoryview]:
        """See :meth:`ltr.data.tokens.Tokens.pieces`."""
        views = [memoryview(b"")] * len(rows)
        for part, places, rows_of_part in self._by_part(rows):
            pieces_of_part = part.pieces(rows_of_part, starts[places], counts[places])
            for place, view in zip(places.tolist(), pieces_of_part, strict=True):
                views[place] = view
        return views

    def text(self, row: int) -> str:
        """See :meth:`ltr.data.templated_pairs.FieldTexts.text`."""
        number, row_of_part = self._place(row)
        return self.parts[number].text(row_of_part)

    def instruction(self, row: int) -> str:
        """See :meth:`ltr.data.templated_pairs.FieldTexts.instruction`."""
        number, row_of_part = self._place(row)
        return self.parts[number].instruction(row_of_part)

    def _place(self, row: int) -> tuple[int, int]:
        """The number of the part that has this row, and the row there."""
        if not 0 <= row < len(self):
            raise IndexError(f"rows must be between 0 and {len(self) - 1}, got {row}")
        number = bisect_right(self._first, row) - 1
        return number, row - int(self._first[number])

    def _by_part(self, rows: np.ndarray) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
        """Each part that has some of the rows, their places among the rows, and their own rows."""
        part_of_row = np.searchsorted(self._first, rows, side="right") - 1
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(part_of_row == number)
            if len(places):
                yield part, places, rows[places] - self._first[number]
