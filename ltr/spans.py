"""Cutting rows into spans, so that memory does not grow with their number."""

from collections.abc import Iterable, Iterator

import numpy as np


def spans(n: int, size: int) -> Iterator[slice]:
    """The spans of ``size`` rows that n rows are cut into; the last may be shorter.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for begin in range(0, n, size):
        yield slice(begin, min(begin + size, n))


def rows_of_spans(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The rows of spans end to end, int64.

    Args:
        starts: ``[n]`` int64, the first row of each span.
        counts: ``[n]`` int64, its rows.

    >>> rows_of_spans(np.array([3, 9]), np.array([2, 1]))
    array([3, 4, 9])
    """
    n_before = np.cumsum(counts) - counts  # rows of the spans before
    return np.arange(counts.sum()) + np.repeat(starts - n_before, counts)


class RowSpans:
    """Some rows of a table, ascending, as the spans that they make up: a row has a place among
    them, from 0.

    >>> rows = RowSpans([slice(3, 5), slice(9, 10)])
    >>> len(rows), rows[np.array([0, 1, 2, -1])], rows.places(np.array([9, 4, 5, 2]))
    (3, array([ 3,  4,  9, -1]), array([ 2,  1, -1, -1]))

    Args:
        spans: none of them empty, each behind the one before.
    """

    def __init__(self, spans: Iterable[slice]) -> None:
        bounds = np.array([(span.start, span.stop) for span in spans], np.int64).reshape(-1, 2)
        assert (np.diff(bounds.ravel()) >= 0).all() and (bounds[:, 0] < bounds[:, 1]).all(), (
            "each document has a row, and rows ascend"
        )
        self._begins, self._ends = bounds.T
        # Behind the last place of each span.
        self._end_places = np.cumsum(self._ends - self._begins)

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> "RowSpans":
        """Of rows ``[n]`` int64, ascending."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        firsts = rows[np.append(0, cuts)] if len(rows) else rows
        lasts = rows[np.append(cuts, len(rows)) - 1] if len(rows) else rows
        bounds = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return cls(slice(first, last + 1) for first, last in bounds)

    def __len__(self) -> int:
        return int(self._end_places[-1]) if len(self._end_places) else 0

    def __getitem__(self, places: np.ndarray | int) -> np.ndarray:
        """The rows at some places, an array of int64 of any shape; -1 at the place -1."""
        places = np.asarray(places)
        if len(self) == 0:
            return np.full_like(places, -1)
        spans = np.searchsorted(self._end_places, places, side="right")
        rows = self._ends[spans] - (self._end_places[spans] - places)
        return np.where(places < 0, -1, rows)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """The places of some rows of the table ``[P]`` int64; -1 for a row that is none of these."""
        if len(self) == 0:
            return np.full_like(rows, -1)
        spans = np.searchsorted(self._ends, rows, side="right").clip(max=len(self._ends) - 1)
        is_one = (rows >= self._begins[spans]) & (rows < self._ends[spans])
        places = self._end_places[spans] - (self._ends[spans] - rows)
        return np.where(is_one, places, -1)
