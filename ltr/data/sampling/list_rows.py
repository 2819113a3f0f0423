"""Rows of whole graded lists, and of what stays of a long one."""

import math
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.relevant import not_negatives
from ltr.data.sampling.rows import in_parts
from ltr.errors import InputError

# What stays of a long list: the documents of the largest grades, a random sample of all, or all of
# them in several rows.
Keep = Literal["relevant", "any", "all"]


class WholeLists(Protocol):
    """Where lists come from: a :class:`GradedLists` or a split of feature vectors."""

    def whole(self, query: int) -> LabelledList:
        """A query with all its documents."""


class GradedLists(NamedTuple):
    """Lists of a query's candidates, followed by its judged documents that are no candidates; what
    nobody judged has grade 0, and what can't be a negative is left out.
    """

    judged: QueryLists
    known: QueryLists  # see ltr.mining.same_texts.known_documents
    pools: QueryLists | None  # the candidates; without, only judged documents are listed

    def whole(self, query: int) -> LabelledList:
        doc_rows, grades = self.judged.of(query)
        relevant = doc_rows[grades > 0]
        if self.pools is not None:
            pool, _ = self.pools.of(query)
            others = doc_rows[~np.isin(doc_rows, pool)]
            doc_rows = np.concatenate([pool, others])
        may_be_negative = ~np.isin(doc_rows, not_negatives(self.known, query))
        labelled = self.judged.labelled(
            query, doc_rows[may_be_negative | np.isin(doc_rows, relevant)]
        )
        known_rows, known_grades = self.known.of(query)
        return labelled._replace(ideal=None, judged_rows=known_rows, judged_grades=known_grades)


class ListRows:
    """Rows of whole lists; a list of more than ``list_size`` documents is cut by :func:`cut_list`.

    A query has one row, or with ``keep`` ``all`` as many as its list has parts.

    Args:
        source: has the whole lists.
        queries: ``[Q]`` int64, the queries to rank.
        list_size: documents of a row at most; None: no limit.
        keep: what stays of a longer list.
        seed: of the draws.

    Attributes:
        query_rows: ``[R]`` int64, the query of each row.
    """

    def __init__(
        self, source: WholeLists, queries: np.ndarray, list_size: int | None, keep: Keep, seed: int
    ) -> None:
        self.source = source
        self.list_size = list_size
        self.keep = keep
        self.seed = seed
        n_parts = np.ones(len(queries), dtype=np.int64)
        if list_size is not None and keep == "all":
            lengths = [len(source.whole(query).doc_rows) for query in queries]
            n_parts = -(-np.asarray(lengths) // list_size)  # rounded up
        self.query_rows, self._parts = in_parts(queries, n_parts)

    def __len__(self) -> int:
        return len(self.query_rows)

    def draw(self, epoch: int, row: int) -> LabelledList:
        query = int(self.query_rows[row])
        whole = self.source.whole(query)
        if self.list_size is None or len(whole.doc_rows) <= self.list_size:
            return whole
        # The rows of a query cut its list alike, and each takes its own part.
        rng = np.random.default_rng([self.seed, epoch, query])
        kept = cut_list(whole.labels, self.list_size, self.keep, rng)[self._parts[row]]
        return whole.documents_at(kept)


def cut_list(
    labels: np.ndarray, size: int, keep: Keep, rng: np.random.Generator
) -> list[np.ndarray]:
    """What stays of a list of more than ``size`` documents, drawn anew at every call: arrays of
    places in the list.

    Args:
        labels: ``[N]``, the grades of the documents.
        size: documents that stay in one array, at most; 2 or more, or nothing could be ranked.
        keep: see :class:`ltr.datamodules.ListDataModule`; ``all`` returns ⌈N / size⌉ arrays,
            the others just one.
        rng: draws them.
    """
    order = rng.permutation(len(labels))
    if keep == "all":
        n_parts = math.ceil(len(order) / size)
        return np.array_split(order, n_parts)
    if keep == "relevant":
        order = order[np.argsort(-labels[order], kind="stable")]
        grades = labels[order]
        if grades[size - 1] > 0 and grades[-1] <= 0:
            # No room for an irrelevant document, and many losses know only relevant or not: the best
            # one takes the last place.
            order[size - 1] = order[np.argmax(grades <= 0)]
        elif grades[0] == grades[size - 1] and grades[-1] < grades[0]:
            # Nothing could be ranked: the best document of another grade takes the last place.
            order[size - 1] = order[np.argmax(grades < grades[0])]
    return [order[:size]]


def n_with_both(rows: ListRows) -> int:
    """How many rows have a relevant and an irrelevant document, in the first epoch."""
    n_rows = 0
    for row in range(len(rows)):
        relevant = rows.draw(0, row).labels > 0
        if relevant.any() and not relevant.all():
            n_rows += 1
    return n_rows


def with_two_grades(source: WholeLists, queries: np.ndarray, where: str) -> np.ndarray:
    """The queries whose documents differ in grade; a loss learns nothing from the others.

    Raises:
        InputError: if there are none.
    """
    kept = [query for query in queries if np.ptp(source.whole(query).labels) > 0]
    if not kept:
        raise InputError(
            f"{where}: no query has two documents of different grades; there is nothing to rank"
        )
    return np.asarray(kept, dtype=np.int64)
