"""Whole graded lists, and what stays of a long one."""

from typing import Literal, NamedTuple, Protocol

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.rows import in_parts
from ltr.errors import InputError

Keep = Literal["relevant", "any", "all"]


class ListSource(Protocol):
    """Lists by query."""

    def whole(self, query: int) -> LabelledList:
        """A query with all its documents."""


class GradedLists(NamedTuple):
    """A query's candidates (none without ``pools``), of grade 0 where nobody judged one, then its
    other judged documents.
    """

    judged: QueryLists
    pools: QueryLists | None

    def whole(self, query: int) -> LabelledList:
        judged_rows, _ = self.judged.of(query)
        pool = judged_rows[:0] if self.pools is None else self.pools.of(query)[0]
        doc_rows = np.concatenate([pool, judged_rows[~np.isin(judged_rows, pool)]])
        return self.judged.labelled(query, doc_rows)._replace(ideal=None)


class ListRows:
    """One row per query (with ``keep`` ``all`` several) with its whole list, or with what
    :func:`cut_list` makes of a longer one.

    ``queries``, ``[Q]`` int64, are the queries to rank; ``query_rows``, ``[R]`` int64, has the
    query of each row.
    """

    def __init__(
        self, source: ListSource, queries: np.ndarray, list_size: int | None, keep: Keep, seed: int
    ) -> None:
        self.source = source
        self.list_size = list_size
        self.keep = keep
        self.seed = seed
        n_parts = np.ones(len(queries), dtype=np.int64)
        if list_size is not None and keep == "all":
            n_parts = np.asarray(
                [-(-len(source.whole(query).doc_rows) // list_size) for query in queries]
            )
        self.query_rows, self._parts = in_parts(queries, n_parts)

    def __len__(self) -> int:
        return len(self.query_rows)

    def draw(self, epoch: int, row: int) -> LabelledList:
        query = int(self.query_rows[row])
        one = self.source.whole(query)
        if self.list_size is None or len(one.doc_rows) <= self.list_size:
            return one
        rng = np.random.default_rng([self.seed, epoch, query])
        kept = cut_list(one.labels, self.list_size, self.keep, rng)[self._parts[row]]
        return one._replace(doc_rows=one.doc_rows[kept], labels=one.labels[kept])


def cut_list(
    labels: np.ndarray, size: int, keep: Keep, rng: np.random.Generator
) -> list[np.ndarray]:
    """What stays of a list of more than ``size`` documents: their places, drawn anew at every call.

    Args:
        labels: ``[N]``, the grades of the documents.
        size: documents of a list at most.
        keep: see :class:`ltr.datamodules.ListDataModule`; ``all`` returns ⌈N / size⌉ arrays,
            the others just one.
    """
    order = rng.permutation(len(labels))
    if keep == "all":
        return np.array_split(order, -(-len(order) // size))
    if keep == "relevant":
        order = order[np.argsort(-labels[order], kind="stable")]
        grades = labels[order]
        if (
            grades[0] == grades[size - 1] > grades[-1]
        ):  # nothing to rank: the best of another grade takes the last place
            order[size - 1] = order[np.argmax(grades < grades[0])]
    return [order[:size]]


def with_two_grades(source: ListSource, queries: np.ndarray, where: str) -> np.ndarray:
    """The queries whose documents differ in grade; a loss learns nothing from the others. An
    InputError if there are none.
    """
    kept = np.asarray(
        [query for query in queries if np.ptp(source.whole(query).labels) > 0], dtype=np.int64
    )
    if not len(kept):
        raise InputError(
            f"{where}: no query has two documents of different grades; there is nothing to rank"
        )
    return kept
