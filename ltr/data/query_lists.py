"""Documents by query: judgements, candidate pools and mined negatives share this one shape; and one
list of it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import digest_of_arrays


class LabelledList(NamedTuple):
    """One query with some of its documents, by row."""

    query_row: int
    doc_rows: np.ndarray  # [N] int64
    labels: np.ndarray  # [N] float32
    distances: np.ndarray | None = None  # [N] float32
    ideal: np.ndarray | None = None  # [M] float32, see RankingBatch
    judged_rows: np.ndarray | None = None  # [J] int64, all judged documents of the query
    judged_grades: np.ndarray | None = None  # [J] float32


class QueryLists(NamedTuple):
    """For each of Q queries some documents with a value, end to end (compressed sparse rows)."""

    query_rows: np.ndarray  # [Q] int64, ascending
    offsets: (
        np.ndarray
    )  # [Q + 1] int64; the documents of query i stand from offsets[i] to offsets[i + 1]
    doc_rows: np.ndarray  # [R] int64
    values: np.ndarray  # [R] float32: a grade, a score or a distance

    @classmethod
    def from_rows(
        cls, query_rows: Iterable[int], doc_rows: Iterable[int], values: Iterable[float]
    ) -> "QueryLists":
        """Group lines by query; the documents of a query keep their order."""
        queries = np.fromiter(query_rows, dtype=np.int64)
        order = np.argsort(queries, kind="stable")
        present, counts = np.unique(queries, return_counts=True)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        docs = np.fromiter(doc_rows, dtype=np.int64)[order]
        return cls(present, offsets, docs, np.fromiter(values, dtype=np.float32)[order])

    @classmethod
    def from_matrix(
        cls, query_rows: np.ndarray, doc_rows: np.ndarray, values: np.ndarray
    ) -> "QueryLists":
        """Of ascending queries ``[Q]`` the documents ``[Q, K]`` with their values; -1 is none."""
        present = doc_rows >= 0
        counts = present.sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(
            query_rows,
            offsets,
            doc_rows[present].astype(np.int64),
            values[present].astype(np.float32),
        )

    def of(self, query_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents and values of one query; empty where it has none."""
        at = int(np.searchsorted(self.query_rows, query_row))
        if at == len(self.query_rows) or self.query_rows[at] != query_row:
            return self.doc_rows[:0], self.values[:0]
        part = slice(self.offsets[at], self.offsets[at + 1])
        return self.doc_rows[part], self.values[part]

    def n_relevant(self) -> np.ndarray:
        """``[Q]``: how many documents of each query have a value above 0."""
        return np.add.reduceat((self.values > 0).astype(np.int64), self.offsets[:-1])

    def labelled(self, query_row: int, doc_rows: np.ndarray) -> LabelledList:
        """Label documents of a query, where the values are grades; 0 for a document that nobody
        judged.
        """
        judged_rows, grades = self.of(query_row)
        ideal = np.sort(grades[grades > 0])[::-1]
        labels = grades_of(doc_rows, judged_rows, grades)
        return LabelledList(int(query_row), doc_rows, labels, None, ideal, judged_rows, grades)

    def joined(self, other: "QueryLists") -> "QueryLists":
        """Also the documents of the other lists; one that both have keeps its value."""
        sides = [
            (np.repeat(one.query_rows, np.diff(one.offsets)), one.doc_rows, one.values)
            for one in (self, other)
        ]
        queries, docs, values = (np.concatenate(both) for both in zip(*sides, strict=True))
        kept = np.sort(np.unique(np.stack([queries, docs]), axis=1, return_index=True)[1])
        return QueryLists.from_rows(queries[kept], docs[kept], values[kept])

    def best_first(self) -> "QueryLists":
        """Sort the documents of each query by value, largest first; of equal ones the larger row
        comes first, as in trec_eval.
        """
        query_of_doc = np.repeat(np.arange(len(self.query_rows)), np.diff(self.offsets))
        order = np.lexsort((-self.doc_rows, -self.values, query_of_doc))
        return self._replace(doc_rows=self.doc_rows[order], values=self.values[order])

    def first(self, depth: int | None) -> "QueryLists":
        """The first ``depth`` documents of every query; None keeps all."""
        if depth is None:
            return self
        counts = np.diff(self.offsets)
        place = np.arange(len(self.doc_rows)) - np.repeat(self.offsets[:-1], counts)
        offsets = np.concatenate(
            [[0], np.cumsum(np.minimum(counts, min(depth, len(self.doc_rows))))]
        )
        return QueryLists(
            self.query_rows, offsets, self.doc_rows[place < depth], self.values[place < depth]
        )

    def digest(self) -> str:
        """The same for the same lists, and else another one."""
        return digest_of_arrays(*self)

    def save(self, folder: Path) -> None:
        """Write one array per attribute."""
        for name, array in self._asdict().items():
            np.save(folder / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> "QueryLists":
        """Map what :meth:`save` wrote."""
        # As plain arrays over the map: every slice of a memmap makes another memmap, for
        # microseconds.
        return cls(
            **{
                name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
                for name in cls._fields
            }
        )


def grades_of(doc_rows: np.ndarray, judged_rows: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """``[K]`` float32: the grades of a query's documents, 0 where nobody judged one.

    Documents are given by row, ``doc_rows [K]`` and ``judged_rows [J]`` int64, in any order.

    >>> grades_of(np.array([7, 3, 9]), judged_rows=np.array([9, 7]), grades=np.array([1.0, 2.0]))
    array([2., 0., 1.], dtype=float32)
    """
    found = np.zeros(len(doc_rows), dtype=np.float32)
    if len(judged_rows):
        order = np.argsort(judged_rows)
        at = order[np.searchsorted(judged_rows, doc_rows, sorter=order).clip(max=len(order) - 1)]
        judged = judged_rows[at] == doc_rows
        found[judged] = grades[at[judged]]
    return found
