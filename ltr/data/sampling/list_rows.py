"""Rows of whole graded lists, and of what stays of a long one."""

import math
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.relevant import not_negatives
from ltr.data.sampling.rows import in_parts
from ltr.data.trec import text_of_grade
from ltr.errors import InputError

# What stays of a long list: the documents of the largest grades, a random sample of all, or all of
# them in several rows.
Keep = Literal["relevant", "any", "all"]


class WholeLists(Protocol):
    """Gives the list of a query: a :class:`GradedLists` or a split of feature vectors."""

    def whole(self, query_row: int) -> LabelledList:
        """A query with all its documents."""


class GradedLists(NamedTuple):
    """Lists of a query's candidates, followed by its judged documents that are no candidates; what
    nobody judged has grade 0, and what can't be a negative is left out.
    """

    judged: QueryLists
    known: QueryLists  # see ltr.data.sampling.rows
    pools: QueryLists | None  # the candidates; without, only judged documents are listed

    def whole(self, query_row: int) -> LabelledList:
        judged_rows, grades = self.judged.of(query_row)
        listed = judged_rows
        if self.pools is not None:
            pool, _ = self.pools.of(query_row)
            others = judged_rows[~np.isin(judged_rows, pool)]
            listed = np.concatenate([pool, others])
        relevant = judged_rows[grades > 0]
        forbidden = np.setdiff1d(not_negatives(self.known, query_row), relevant)
        labelled = self.judged.labelled(query_row, listed[~np.isin(listed, forbidden)])
        known_rows, known_grades = self.known.of(query_row)
        return labelled._replace(ideal=None, known_rows=known_rows, known_grades=known_grades)


class ListRows:
    """Rows of whole lists; a list of more than ``list_size`` documents is cut by :func:`cut_list`.

    A query has one row, or with ``keep`` ``all`` as many as its list has parts.

    Args:
        whole_lists: give the list of each query.
        query_rows: ``[Q]`` int64, the queries to rank.
        list_size: documents of a row at most; None: no limit.
        keep: what stays of a longer list.
        seed: of the draws.

    Attributes:
        query_rows: ``[R]`` int64, the query of each row.
    """

    def __init__(
        self,
        whole_lists: WholeLists,
        query_rows: np.ndarray,
        list_size: int | None,
        keep: Keep,
        seed: int,
    ) -> None:
        self.whole_lists = whole_lists
        self.list_size = list_size
        self.keep = keep
        self.seed = seed
        n_parts = np.ones(len(query_rows), dtype=np.int64)
        if list_size is not None and keep == "all":
            lengths = [len(whole_lists.whole(query_row).doc_rows) for query_row in query_rows]
            n_parts = -(-np.asarray(lengths) // list_size)  # rounded up
        self.query_rows, self._parts = in_parts(query_rows, n_parts)

    def __len__(self) -> int:
        return len(self.query_rows)

    def draw(self, epoch: int, row: int) -> LabelledList:
        query_row = int(self.query_rows[row])
        whole = self.whole_lists.whole(query_row)
        if self.list_size is None or len(whole.doc_rows) <= self.list_size:
            return whole
        # The rows of a query cut its list alike, and each takes its own part.
        rng = np.random.default_rng([self.seed, epoch, query_row])
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
        keep: see :data:`Keep`; ``all`` returns ⌈N / size⌉ arrays, the others just one.
        rng: draws them.
    """
    order = rng.permutation(len(labels))
    if keep == "all":
        n_parts = math.ceil(len(order) / size)
        return np.array_split(order, n_parts)
    if keep == "relevant":
        order = order[np.argsort(-labels[order], kind="stable")]
        order[size - 1] = order[_place_of_last(labels[order], size)]
    return [order[:size]]


def _place_of_last(grades: np.ndarray, size: int) -> int:
    """Which document becomes the last of the ``size`` that stay, by its place.

    Args:
        grades: ``[N]`` of the whole list, the largest first.
        size: below N.
    """
    if grades[size - 1] > 0 and grades[-1] <= 0:
        # No room for an irrelevant document, and many losses know only relevant or not: the best one.
        return int(np.argmax(grades <= 0))
    if grades[0] == grades[size - 1] and grades[-1] < grades[0]:
        # Nothing could be ranked: the best document of another grade.
        return int(np.argmax(grades < grades[0]))
    return size - 1


def n_with_relevant_and_not(rows: ListRows) -> int:
    """How many rows have a relevant and an irrelevant document, in the first epoch."""
    n_rows = 0
    for row in range(len(rows)):
        relevant = rows.draw(0, row).labels > 0
        if relevant.any() and not relevant.all():
            n_rows += 1
    return n_rows


def with_two_grades(whole_lists: WholeLists, query_rows: np.ndarray, where: str) -> np.ndarray:
    """The queries whose documents differ in grade; a loss learns nothing from the others.

    Raises:
        InputError: if there are none.
    """
    kept = []
    for query_row in query_rows:
        if np.ptp(whole_lists.whole(query_row).labels) > 0:
            kept.append(query_row)
    if not kept:
        raise InputError(
            f"{where}: no query has two documents of different grades; there is nothing to rank"
        )
    return np.asarray(kept, dtype=np.int64)


def with_documents(whole_lists: WholeLists, query_rows: np.ndarray, where: str) -> np.ndarray:
    """The queries that have a document, for losses that learn from lists of one grade, too.

    Raises:
        InputError: if the documents of all queries have one grade.
    """
    kept = []
    grades: set[float] = set()
    for query_row in query_rows:
        labels = whole_lists.whole(query_row).labels
        grades.update(labels.tolist())
        if len(labels):
            kept.append(query_row)
    if len(grades) < 2:
        raise InputError(
            f"{where}: two documents must have different grades, and those of all queries are {', '.join(map(text_of_grade, grades))}; there is nothing to learn"
        )
    return np.asarray(kept, dtype=np.int64)
