"""The rows of a training epoch: each is a list of documents, drawn anew in every epoch."""

import logging
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists
from ltr.errors import InputError

log = logging.getLogger(__name__)

Keep = Literal["relevant", "any", "all"]


class Rows(Protocol):
    """The rows of a training epoch."""

    def __len__(self) -> int: ...

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function of (seed, epoch, row)."""


@dataclass(eq=False)
class TripletRows:
    """One row per query: some of its relevant documents, and others to rank below them.

    ``query_rows``, ``[R]`` int64, has the query of each row; queries without negatives are left out; an InputError if all are.
    """

    judged: QueryLists  # every query has a relevant document
    negatives: QueryLists | None  # documents to draw negatives from, by query; None draws from the whole corpus
    n_docs: int  # of the corpus
    positives: int  # how many to draw
    negatives_per_query: int
    seed: int
    _: KW_ONLY
    have_distances: bool = False  # whether the values of the negatives are distances, which then travel with the documents
    where: str  # the split, for errors

    def __post_init__(self) -> None:
        queries = self.judged.query_rows
        rows = [row for row in queries if self.negatives is None or len(self._others(self.negatives, row)[0])]
        if not rows:
            text = f"{self.where}: no query has a document to rank below its relevant ones; choose another source of negatives"
            raise InputError(text, option="negatives")
        if left_out := len(queries) - len(rows):
            log.info("%s: %d of %d queries have no negatives and are left out", self.where, left_out, len(queries))
        self.query_rows = np.asarray(rows)

    def __len__(self) -> int:
        return len(self.query_rows)

    def _others(self, negatives: QueryLists, query_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents to draw negatives from, and their values."""
        judged_rows, grades = self.judged.of(query_row)
        doc_rows, values = negatives.of(query_row)
        kept = (doc_rows != judged_rows[grades > 0][:, None]).all(axis=0)  # faster than np.isin for so few documents
        return doc_rows[kept], values[kept]

    def draw(self, epoch: int, row: int) -> LabelledList:
        """Relevant documents come first."""
        query_row = int(self.query_rows[row])
        rng = np.random.default_rng([self.seed, epoch, query_row])
        judged_rows, grades = self.judged.of(query_row)
        relevant = np.flatnonzero(grades > 0)
        positive = rng.choice(relevant, min(self.positives, len(relevant)), replace=False)
        distances = None
        if self.negatives is None:
            negative = _draw_outside(rng, self.n_docs, judged_rows[relevant], self.negatives_per_query)
        else:
            others, values = self._others(self.negatives, query_row)
            chosen = rng.choice(len(others), min(self.negatives_per_query, len(others)), replace=False)
            negative = others[chosen]
            if self.have_distances:  # no loss asks for a margin of a relevant document
                distances = np.concatenate([np.zeros(len(positive), np.float32), values[chosen]])
        doc_rows = np.concatenate([judged_rows[positive], negative])
        labels = np.concatenate([grades[positive], np.zeros(len(negative), np.float32)])
        return LabelledList(query_row, doc_rows, labels, distances, judged_rows=judged_rows, judged_grades=grades)


def _draw_outside(rng: np.random.Generator, n: int, forbidden: np.ndarray, count: int) -> np.ndarray:
    """``count`` different numbers below n, none of them forbidden (fewer if there are not so many)."""
    count = min(count, n - len(forbidden))
    drawn: dict[int, None] = {}
    closed = set(forbidden.tolist())
    while len(drawn) < count:
        drawn.update((d, None) for d in rng.integers(n, size=2 * count).tolist() if d not in closed)
    return np.asarray(list(drawn)[:count], dtype=np.int64)


class ListSource(Protocol):
    """Lists by query."""

    def whole(self, query: int) -> LabelledList:
        """A query with all its documents."""


class GradedLists(NamedTuple):
    """A query's candidates (none without ``pools``), of grade 0 where nobody judged one, then its other judged documents."""

    judged: QueryLists
    pools: QueryLists | None

    def whole(self, query: int) -> LabelledList:
        judged_rows, _ = self.judged.of(query)
        pool = judged_rows[:0] if self.pools is None else self.pools.of(query)[0]
        doc_rows = np.concatenate([pool, judged_rows[~np.isin(judged_rows, pool)]])
        return self.judged.labelled(query, doc_rows)._replace(ideal=None)


class ListRows:
    """One row per query (with ``keep`` ``all`` several) with its whole list, or with what :func:`cut_list` makes of a longer one.

    ``queries``, ``[Q]`` int64, are the queries to rank; ``query_rows``, ``[R]`` int64, has the query of each row.
    """

    def __init__(self, source: ListSource, queries: np.ndarray, list_size: int | None, keep: Keep, seed: int) -> None:
        self.source, self.list_size, self.keep, self.seed = source, list_size, keep, seed
        n_parts = np.ones(len(queries), dtype=np.int64)
        if list_size is not None and keep == "all":
            n_parts = np.asarray([-(-len(source.whole(query).doc_rows) // list_size) for query in queries])
        self.query_rows = np.repeat(queries, n_parts)
        self._parts = np.concatenate([np.arange(n) for n in n_parts])

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


def cut_list(labels: np.ndarray, size: int, keep: Keep, rng: np.random.Generator) -> list[np.ndarray]:
    """What stays of a list of more than ``size`` documents: their places, drawn anew at every call.

    Args:
        labels: ``[N]``, the grades of the documents.
        size: documents of a list at most.
        keep: see :class:`ltr.datamodules.ListDataModule`; ``all`` gives ⌈N / size⌉ lists, another one.
    """
    order = rng.permutation(len(labels))
    if keep == "all":
        return np.array_split(order, -(-len(order) // size))
    if keep == "relevant":
        order = order[np.argsort(-labels[order], kind="stable")]
        grades = labels[order]
        if grades[0] == grades[size - 1] > grades[-1]:  # nothing to rank: the best of another grade takes the last place
            order[size - 1] = order[np.argmax(grades < grades[0])]
    return [order[:size]]


def with_two_grades(source: ListSource, queries: np.ndarray, where: str) -> np.ndarray:
    """The queries whose documents differ in grade; a loss learns nothing from the others. An InputError if there are none."""
    kept = np.asarray([query for query in queries if np.ptp(source.whole(query).labels) > 0], dtype=np.int64)
    if not len(kept):
        raise InputError(f"{where}: no query has two documents of different grades; there is nothing to rank")
    return kept


class Groups(Protocol):
    """The groups of an epoch."""

    owners: np.ndarray  # [G] int64, ascending: the query or the label that each group belongs to

    def draw(self, epoch: int, group: int) -> LabelledList:
        """The documents of a group in an epoch: a pure function of (seed, epoch, group)."""


class QueryGroups:
    """One group per query: ``docs_per_group`` (or all) of its relevant documents, drawn without repeats, anew in each epoch."""

    def __init__(self, judged: QueryLists, docs_per_group: int, seed: int, *, where: str) -> None:
        self.judged, self.docs_per_group, self.seed = judged, docs_per_group, seed
        self.owners = judged.query_rows
        _log_small(where, judged.n_relevant(), docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        query_row = int(self.owners[group])
        judged_rows, grades = self.judged.of(query_row)
        relevant = np.flatnonzero(grades > 0)
        rng = np.random.default_rng([self.seed, epoch, query_row])
        drawn = rng.choice(relevant, min(self.docs_per_group, len(relevant)), replace=False)
        return LabelledList(query_row, judged_rows[drawn], grades[drawn], judged_rows=judged_rows, judged_grades=grades)


class LabelGroups:
    """The texts of each label, shuffled anew in each epoch and cut into groups.

    The query of a list is the label's number, and every text is relevant. A text that is left over alone is skipped in this
    epoch; in the next it is another one. ``n_labels`` labels have two texts or more; fewer than two such are an InputError.

    Args:
        labels: ``[R]`` int64, the number of each text's label.
        docs_per_group: texts of a group, at least 2; the last one of a label may have fewer.
    """

    def __init__(self, labels: np.ndarray, docs_per_group: int, seed: int, *, where: str) -> None:
        self.labels, self.seed = labels, seed
        counts = np.bincount(labels)
        single, self.n_labels = int((counts == 1).sum()), int((counts > 1).sum())
        if self.n_labels < 2:
            came = f"{self.n_labels} of {(counts > 0).sum()} labels; groups are told from groups of other labels"
            raise InputError(f"{where}: at least two labels must have two texts or more, got {came}")
        ends = np.cumsum(counts).tolist()  # of each label, in texts sorted by label; a text alone makes no group
        starts = [(i, at) for i, end in enumerate(ends) for at in range(end - counts[i], end - 1, docs_per_group)]
        self.owners, self._starts = np.asarray(starts, dtype=np.int64).T
        self._stops = np.minimum(self._starts + docs_per_group, np.asarray(ends)[self.owners])
        self._order: tuple[int, np.ndarray] | None = None
        if single:
            log.info("%s: %d of %d labels have one text only and are left out", where, single, single + self.n_labels)
        if alone := int(((counts > 1) & (counts % docs_per_group == 1)).sum()):
            log.info("%s: %d of %d texts are left over alone, other ones in each epoch", where, alone, len(labels))
        _log_small(where, self._stops - self._starts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        if self._order is None or self._order[0] != epoch:
            shuffled = np.random.default_rng([self.seed, epoch, 1]).permutation(len(self.labels))
            self._order = epoch, shuffled[np.argsort(self.labels[shuffled], kind="stable")]
        doc_rows = self._order[1][self._starts[group] : self._stops[group]]
        return LabelledList(int(self.owners[group]), doc_rows, np.ones(len(doc_rows), dtype=np.float32))


def _log_small(where: str, sizes: np.ndarray, docs_per_group: int) -> None:
    if small := int((sizes < docs_per_group).sum()):
        log.info("%s: %d of %d groups have fewer than %d documents", where, small, len(sizes), docs_per_group)
