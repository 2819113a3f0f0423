"""Documents by query, and the list of one query. Judgements, candidate pools, scores and mined
negatives all have this one shape.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import digest_of_arrays, map_array
from ltr.errors import InputError

OWN_TEXT = np.nan  # the value of a document that has the text of the query itself


def _array_of(numbers: Iterable[float], dtype: type[np.int64 | np.float32]) -> np.ndarray:
    """Numbers as an array; itself, where it is one of this type."""
    if isinstance(numbers, np.ndarray):
        return numbers.astype(dtype, copy=False)
    return np.fromiter(numbers, dtype)


class LabelledList(NamedTuple):
    """One query with some of its documents, by row."""

    query_row: int
    doc_rows: np.ndarray  # [N] int64
    labels: np.ndarray  # [N] float32
    # [N] float32: the distance of each document to the query in the index that mined it; NaN for one
    # that was not mined, such as a relevant one. None where nothing is mined: NaN for all.
    distances: np.ndarray | None = None
    # [M] float32: all grades of the query above 0, the largest first, as a perfect ranking would
    # have them. Training lists have none.
    ideal: np.ndarray | None = None
    # [J] int64, all judged documents of the query; in training lists also what must not be a
    # negative of it though nobody judged it, see ltr.data.sampling.rows.
    known_rows: np.ndarray | None = None
    known_grades: np.ndarray | None = None  # [J] float32, NaN for the query's own text

    def documents_at(self, places: np.ndarray) -> "LabelledList":
        """The documents at these places ``[n]``, in this order. What is known of the query stays."""
        distances = None if self.distances is None else self.distances[places]
        return self._replace(
            doc_rows=self.doc_rows[places], labels=self.labels[places], distances=distances
        )

    def alone(self, doc_row: int) -> "LabelledList":
        """A document alone that was not mined, of the list or not, with label 0. What is known of
        the query stays.
        """
        return self._replace(
            doc_rows=np.array([doc_row], dtype=np.int64),
            labels=np.zeros(1, dtype=np.float32),
            distances=None,
        )


class QueryLists(NamedTuple):
    """For each of Q queries some documents with a value, D in all, end to end (compressed sparse
    rows).
    """

    # [Q] int64, ascending, as `of` needs them; end_to_end and lists_at keep the order they are given.
    query_rows: np.ndarray
    # [Q + 1] int64; the documents of query i stand from offsets[i] to offsets[i + 1].
    offsets: np.ndarray
    doc_rows: np.ndarray  # [D] int64
    values: np.ndarray  # [D] float32: a grade, a score or a distance

    @classmethod
    def from_rows(
        cls, query_rows: Iterable[int], doc_rows: Iterable[int], values: Iterable[float]
    ) -> "QueryLists":
        """Group documents by query, each given with its query and value; those of a query keep
        their order.
        """
        query_of_doc = _array_of(query_rows, np.int64)
        docs = _array_of(doc_rows, np.int64)
        value_of_doc = _array_of(values, np.float32)
        order = np.argsort(query_of_doc, kind="stable")
        query_of_doc = query_of_doc[order]
        is_first = np.diff(query_of_doc, prepend=-1) != 0
        offsets = np.append(np.flatnonzero(is_first), len(order))
        return cls(query_of_doc[is_first], offsets, docs[order], value_of_doc[order])

    @classmethod
    def from_matrix(
        cls, query_rows: np.ndarray, doc_rows: np.ndarray, values: np.ndarray
    ) -> "QueryLists":
        """Lists of at most K documents: ascending queries ``[Q]``, documents and values ``[Q, K]``;
        a document of -1 is padding and is left out.
        """
        present = doc_rows >= 0
        counts = present.sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(
            query_rows,
            offsets,
            doc_rows[present].astype(np.int64),
            values[present].astype(np.float32),
        )

    @classmethod
    def end_to_end(cls, parts: Sequence["QueryLists"]) -> "QueryLists":
        """The lists of several parts, which have no query in common, one after the other: to be
        brought into the order of their queries where they are not, see :meth:`lists_at`.
        """
        if not parts:
            return cls.from_rows([], [], [])
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(
            np.concatenate([part.query_rows for part in parts]),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.concatenate([part.doc_rows for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def check(self, n_queries: int, n_docs: int, folder: Path, mend: str, option: str) -> None:
        """Check that arrays of a folder can be lists of a collection.

        Args:
            n_queries, n_docs: rows of the tables of queries and of documents.
            folder: where the arrays are, for errors.
            mend: what to do otherwise, for errors.
            option: the one that names the folder, for errors.

        Raises:
            InputError: about the first file that can't be.
        """
        check_rows(self.query_rows, n_queries, folder / "query_rows.npy", mend, option)
        if (np.diff(self.query_rows) <= 0).any():
            raise InputError(
                f"{folder / 'query_rows.npy'}: the file is damaged, its numbers must rise; {mend}",
                option=option,
            )
        check_rows(self.doc_rows, n_docs, folder / "doc_rows.npy", mend, option)
        n_listed = len(self.doc_rows)
        check_rows(self.offsets, n_listed + 1, folder / "offsets.npy", mend, option)
        ends = (self.offsets[:1].tolist(), self.offsets[-1:].tolist())
        has_offsets = len(self.offsets) == len(self.query_rows) + 1 and ends == ([0], [n_listed])
        if not has_offsets or (np.diff(self.offsets) < 0).any():
            raise InputError(
                f"{folder / 'offsets.npy'}: the file is damaged, it must have {len(self.query_rows) + 1} numbers from 0 to {n_listed} that never fall; {mend}",
                option=option,
            )
        if self.values.shape != self.doc_rows.shape or self.values.dtype != np.float32:
            raise InputError(
                f"{folder / 'values.npy'}: the file is damaged, it must have {n_listed} numbers (float32), got {self.values.dtype} of shape {self.values.shape}; {mend}",
                option=option,
            )

    @property
    def place_in_list(self) -> np.ndarray:
        """``[D]`` int64: the place of each document in the list of its query, from 0."""
        return np.arange(len(self.doc_rows)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @property
    def query_of_doc(self) -> np.ndarray:
        """``[D]`` int64: the query of each document, by row."""
        return np.repeat(self.query_rows, np.diff(self.offsets))

    def of(self, query_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents and values of one query; empty where it has none."""
        place = int(np.searchsorted(self.query_rows, query_row))
        if place == len(self.query_rows) or self.query_rows[place] != query_row:
            return self.doc_rows[:0], self.values[:0]
        span = slice(self.offsets[place], self.offsets[place + 1])
        return self.doc_rows[span], self.values[span]

    def lists_at(self, places: np.ndarray) -> "QueryLists":
        """The lists at these places ``[n]``, in this order.

        >>> lists = QueryLists.from_rows([4, 4, 7, 9], [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
        >>> lists.lists_at(np.array([0, 2])).doc_rows
        array([0, 1, 3])
        """
        counts = np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        shifts = self.offsets[places] - offsets[:-1]  # from here to there
        rows = np.arange(offsets[-1]) + np.repeat(shifts, counts)
        return QueryLists(self.query_rows[places], offsets, self.doc_rows[rows], self.values[rows])

    def of_queries(self, query_rows: np.ndarray) -> "QueryLists":
        """The lists of these queries, as far as they have one."""
        return self.lists_at(np.flatnonzero(np.isin(self.query_rows, query_rows)))

    def where(self, is_kept: np.ndarray) -> "QueryLists":
        """The documents of a mask ``[D]``, and the queries that have one of them."""
        return QueryLists.from_rows(
            self.query_of_doc[is_kept], self.doc_rows[is_kept], self.values[is_kept]
        )

    def n_relevant(self) -> np.ndarray:
        """``[Q]``: how many documents of each query have a value above 0."""
        n_before = np.concatenate([[0], np.cumsum(self.values > 0)])
        return n_before[self.offsets[1:]] - n_before[self.offsets[:-1]]

    def largest_fraction(self) -> float:
        """The largest value that is no whole number; 0 where all are whole.

        >>> QueryLists.from_rows([0, 0, 1], [0, 1, 0], [4.75, 5.0, 0.5]).largest_fraction()
        4.75
        """
        return largest_fraction(self.values)

    def zero_below(self, level: float | None) -> "QueryLists":
        """The same documents, with 0 for each value below the level; None changes nothing."""
        return self._replace(values=zero_below(self.values, level))

    def labelled(self, query_row: int, doc_rows: np.ndarray) -> LabelledList:
        """The given documents of a query as a list, with the grades that they have here as labels;
        a document that nobody judged has label 0. The values must be grades.
        """
        judged_rows, grades = self.of(query_row)
        return LabelledList(
            query_row=int(query_row),
            doc_rows=doc_rows,
            labels=values_of(doc_rows, judged_rows, grades),
            ideal=np.sort(grades[grades > 0])[::-1],
            known_rows=judged_rows,
            known_grades=grades,
        )

    def joined(self, other: "QueryLists") -> "QueryLists":
        """Each query's documents here, followed by those it has in ``other``; a document that both
        have keeps the value it has here.
        """
        queries = np.concatenate([self.query_of_doc, other.query_of_doc])
        docs = np.concatenate([self.doc_rows, other.doc_rows])
        values = np.concatenate([self.values, other.values])
        # np.unique returns where each pair occurs first, ordered by pair. Sorting these places
        # restores the order in which they came.
        pairs = np.stack([queries, docs])
        _, first_places = np.unique(pairs, axis=1, return_index=True)
        kept = np.sort(first_places)
        return QueryLists.from_rows(queries[kept], docs[kept], values[kept])

    def best_first(self) -> "QueryLists":
        """The documents of each query sorted by value, largest first; of documents with equal
        values the one with the larger row comes first, as in trec_eval.
        """
        # By places: the queries need not ascend here.
        list_of_doc = np.repeat(np.arange(len(self.query_rows)), np.diff(self.offsets))
        if (self.values == self.values[:1]).all():  # by one number, which takes a third of the time
            order = np.argsort(list_of_doc * (self.doc_rows.max(initial=0) + 1) - self.doc_rows)
        else:
            order = np.lexsort((-self.doc_rows, -self.values, list_of_doc))
        return self._replace(doc_rows=self.doc_rows[order], values=self.values[order])

    def cut(self, depth: int | None) -> "QueryLists":
        """The first ``depth`` documents of every query; None keeps all."""
        if depth is None:
            return self
        # A depth beyond int64 would overflow in numpy; one of len(doc_rows) cuts nothing.
        return self._cut(np.full(len(self.query_rows), min(depth, len(self.doc_rows))))

    def cut_ordered(self, depth: int | None) -> "QueryLists":
        """The same, but a list whose documents all have one value has no order, and stays whole.

        >>> lists = QueryLists.from_rows([0, 0, 1, 1], [7, 8, 7, 8], [2, 1, 0, 0])
        >>> lists.cut_ordered(1).doc_rows.tolist()
        [7, 7, 8]
        """
        if depth is None:
            return self
        is_other = self.place_in_list > 0
        is_other[1:] &= self.values[1:] != self.values[:-1]
        n_before = np.concatenate([[0], np.cumsum(is_other)])
        has_order = n_before[self.offsets[1:]] > n_before[self.offsets[:-1]]
        # A depth beyond int64 would overflow in numpy; one of len(doc_rows) cuts nothing.
        n_docs = len(self.doc_rows)
        return self._cut(np.where(has_order, min(depth, n_docs), n_docs))

    def _cut(self, depths: np.ndarray) -> "QueryLists":
        """The first documents of every query, as many as its depth says."""
        counts = np.diff(self.offsets)
        offsets = np.concatenate([[0], np.cumsum(np.minimum(counts, depths))])
        kept = self.place_in_list < np.repeat(depths, counts)
        return QueryLists(self.query_rows, offsets, self.doc_rows[kept], self.values[kept])

    def without_values(self) -> "QueryLists":
        """The same documents, whose values nobody knows: NaN."""
        return self._replace(values=np.full_like(self.values, np.nan))

    def digest(self) -> str:
        """A digest of all rows and values."""
        return digest_of_arrays(*self)

    def save(self, folder: Path) -> None:
        """Write one array per attribute."""
        for name, array in self._asdict().items():
            np.save(folder / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> "QueryLists":
        """Map what :meth:`save` wrote."""
        arrays = {}
        for name in cls._fields:
            mapped = map_array(folder / f"{name}.npy")
            # A plain array over the map: a slice of a memmap is a memmap, which costs microseconds.
            arrays[name] = np.asarray(mapped)
        return cls(**arrays)


def largest_fraction(values: np.ndarray) -> float:
    """The largest value that is no whole number; 0 where all are whole."""
    fractions = values[values % 1 > 0]  # no NaN is above 0
    return float(fractions.max(initial=0.0))


def zero_below(grades: np.ndarray, level: float | None) -> np.ndarray:
    """Grades as training counts them from a level of relevance on: 0 for each below it; None changes
    nothing.

    >>> zero_below(np.array([3.0, 1.0, 2.0, -1.0], np.float32), level=2)
    array([3., 0., 2., 0.], dtype=float32)
    """
    if level is None:
        return grades
    return np.where(grades >= level, grades, np.float32(0))


def cannot_be_negatives(values: np.ndarray) -> np.ndarray:
    """``[D]`` bool, whether documents of these values must not be negatives of their query: those
    that are relevant, or have its own text.
    """
    return ~(values <= 0)  # above 0, or NaN


def check_rows(rows: np.ndarray, n: int, file: Path, mend: str, option: str | None = None) -> None:
    """Check that the array of a file holds rows of a table of n rows; an InputError otherwise."""
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InputError(
            f"{file}: the file is damaged, it must hold whole numbers [N], got {rows.dtype} of shape {rows.shape}; {mend}",
            option=option,
        )
    if rows.size and not (rows.min() >= 0 and rows.max() < n):
        raise InputError(
            f"{file}: the file is damaged, its numbers must be from 0 to {n - 1}, got {rows.min()} to {rows.max()}; {mend}",
            option=option,
        )


def are_among(doc_rows: np.ndarray, known_rows: np.ndarray) -> np.ndarray:
    """``[K]`` bool, which documents of a query are known ones ``[J]``, in any order. For short lists
    several times as fast as ``np.isin``.
    """
    return values_of(doc_rows, known_rows, np.ones(len(known_rows), np.float32)) > 0


def values_of(doc_rows: np.ndarray, known_rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values (grades, scores or soft labels) of some documents of a query, ``[K]`` float32, 0
    for a document that has none.

    Documents are given by row, in any order: ``doc_rows [K]`` int64 are those that are asked for,
    ``known_rows [J]`` int64 those that have the ``values [J]``.

    >>> values_of(np.array([7, 3, 9]), known_rows=np.array([9, 7]), values=np.array([1.0, 2.0]))
    array([2., 0., 1.], dtype=float32)
    """
    found = np.zeros(len(doc_rows), dtype=np.float32)
    if len(known_rows) == 0:
        return found
    # The place of each document among the known ones, if it is one of them.
    order = np.argsort(known_rows)
    ranks = np.searchsorted(known_rows, doc_rows, sorter=order)
    places = order[ranks.clip(max=len(order) - 1)]
    is_known = known_rows[places] == doc_rows
    found[is_known] = values[places[is_known]]
    return found
