"""The rows of a training epoch: each is a list of documents, drawn anew in every epoch."""

import logging
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists, grades_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

Epoch = Literal["queries", "pairs"]
Keep = Literal["relevant", "any", "all"]


class Rows(Protocol):
    """The rows of a training epoch."""

    def __len__(self) -> int: ...

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function of (seed, epoch, row)."""


class RelevantRows:
    """The relevant documents of each row of an epoch, ``size`` at most, drawn without repeats and anew in each epoch.

    Over ``queries``, each query has one row. Over ``pairs``, it has as many rows as its relevant documents fill, dealt out
    evenly: an epoch has every pair of a query and a relevant document once. A query that fits into one row is drawn alike.

    ``queries``, ``[Q]`` int64, are those that have rows. ``query_rows`` and ``counts``, ``[R]`` int64, have the query of each
    row, and how many documents it has.
    """

    def __init__(self, judged: QueryLists, queries: np.ndarray, size: int, epoch: Epoch, seed: int) -> None:
        self.judged, self.seed = judged, seed
        n_relevant = judged.n_relevant()[np.searchsorted(judged.query_rows, queries)]
        n_parts = -(-n_relevant // size) if epoch == "pairs" else np.ones_like(n_relevant)
        self.query_rows, self._parts = _in_parts(queries, n_parts)
        self._n_parts, self._n_drawn = (np.repeat(n, n_parts) for n in (n_parts, np.minimum(n_relevant, size * n_parts)))
        self.counts = self._n_drawn // self._n_parts + (self._parts < self._n_drawn % self._n_parts)

    def draw(self, epoch: int, row: int) -> tuple[LabelledList, np.random.Generator]:
        """The list of a row, and the generator of whatever else the row draws."""
        query_row, part = int(self.query_rows[row]), int(self._parts[row])
        judged_rows, grades = self.judged.of(query_row)
        rng = np.random.default_rng([self.seed, epoch, query_row])
        drawn = rng.choice(np.flatnonzero(grades > 0), self._n_drawn[row], replace=False)  # the same in all rows of the query
        drawn = np.array_split(drawn, self._n_parts[row])[part]
        if part:
            rng = np.random.default_rng([self.seed, epoch, query_row, part])
        return LabelledList(query_row, judged_rows[drawn], grades[drawn], judged_rows=judged_rows, judged_grades=grades), rng


def _in_parts(queries: np.ndarray, n_parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each query once for each of its parts, and the number of the part."""
    return np.repeat(queries, n_parts), np.concatenate([np.arange(n) for n in n_parts])


class Source(NamedTuple):
    """Where negatives are drawn from, and how many of a row."""

    n: int
    lists: QueryLists | None  # documents to draw from, by query; None draws from the whole corpus
    have_distances: bool = False  # whether the values are distances, which then travel with the documents


@dataclass(eq=False)
class TripletRows:
    """Relevant documents of a query, and others to rank below them: first those of the first source, and no document twice.

    Queries that no source has a document for are left out; an InputError if all are.
    """

    judged: QueryLists  # every query has a relevant document
    sources: tuple[Source, ...]
    n_docs: int  # of the corpus
    positives: int  # how many to draw
    seed: int
    _: KW_ONLY
    epoch: Epoch
    where: str  # the split, for errors
    queries: np.ndarray | None = None  # [Q] int64, those that have rows; None: those with a negative
    labels: QueryLists | None = None  # of documents that are not relevant; NaN is never drawn, and all others are 0

    def __post_init__(self) -> None:
        self.queries = self._learnable() if self.queries is None else self.queries
        self.relevant = RelevantRows(self.judged, self.queries, self.positives, self.epoch, self.seed)
        self.query_rows = self.relevant.query_rows

    def __len__(self) -> int:
        return len(self.query_rows)

    def _learnable(self) -> np.ndarray:
        """The queries with a document to rank below the relevant ones."""
        queries = self.judged.query_rows
        rows = [row for row in queries if any(one.lists is None or len(self._others(one.lists, row)[0]) for one in self.sources)]
        if not rows:
            text = f"{self.where}: no query has a document to rank below its relevant ones; choose another source of negatives"
            raise InputError(text, option="negatives")
        if left_out := len(queries) - len(rows):
            log.info("%s: %d of %d queries have no negatives and are left out", self.where, left_out, len(queries))
        return np.asarray(rows)

    def _closed(self, query_row: int) -> np.ndarray:
        """Documents that are no negatives."""
        judged_rows, grades = self.judged.of(query_row)
        if self.labels is None:
            return judged_rows[grades > 0]
        others, labels = self.labels.of(query_row)
        return np.concatenate([judged_rows[grades > 0], others[np.isnan(labels)]])

    def _others(self, negatives: QueryLists, query_row: int, taken: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Documents to draw negatives from, without those taken (or closed), and their values."""
        taken = self._closed(query_row) if taken is None else taken
        doc_rows, values = negatives.of(query_row)
        kept = (doc_rows != taken[:, None]).all(axis=0)  # faster than np.isin for so few documents
        return doc_rows[kept], values[kept]

    def drawable(self) -> Iterator[tuple[int, np.ndarray]]:
        """The documents that may be drawn, by query: the relevant ones, and those of sources that name theirs."""
        assert self.queries is not None, "the constructor sets them"
        for query_row in self.queries.tolist():
            judged_rows, grades = self.judged.of(query_row)
            others = [self._others(source.lists, query_row)[0] for source in self.sources if source.lists is not None]
            yield query_row, np.concatenate([judged_rows[grades > 0], *others])

    def _drawn(
        self, source: Source, query_row: int, taken: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Documents of a source, none of those taken, and their values."""
        if source.lists is None:
            drawn = _draw_outside(rng, self.n_docs, taken, source.n)
            return drawn, np.zeros(len(drawn), np.float32)
        others, values = self._others(source.lists, query_row, taken)
        chosen = rng.choice(len(others), min(source.n, len(others)), replace=False)
        return others[chosen], values[chosen]

    def draw(self, epoch: int, row: int) -> LabelledList:
        """Relevant documents come first."""
        one, rng = self.relevant.draw(epoch, row)
        taken = self._closed(one.query_row)
        negative, distances = [], [np.zeros(len(one.doc_rows), np.float32)]  # no loss asks for a margin of a relevant document
        for source in self.sources:
            drawn, values = self._drawn(source, one.query_row, taken, rng)
            negative.append(drawn)
            distances.append(values if source.have_distances else np.full(len(drawn), np.nan, np.float32))
            taken = np.concatenate([taken, drawn])
        others = np.concatenate(negative)
        doc_rows = np.concatenate([one.doc_rows, others])
        soft = np.zeros(len(others), np.float32) if self.labels is None else grades_of(others, *self.labels.of(one.query_row))
        labels = np.concatenate([one.labels, soft])
        known = any(source.have_distances for source in self.sources)
        return one._replace(doc_rows=doc_rows, labels=labels, distances=np.concatenate(distances) if known else None)


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
        self.query_rows, self._parts = _in_parts(queries, n_parts)

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


class QueryGroups:
    """Groups of ``docs_per_group`` or fewer relevant documents of a query, see :class:`RelevantRows`.

    Judgements keep two groups of one query apart, so they may share a batch: each has an owner of its own. Fewer than two queries
    are an InputError.
    """

    def __init__(self, judged: QueryLists, docs_per_group: int, seed: int, *, epoch: Epoch, where: str) -> None:
        if (n := len(judged.query_rows)) < 2:
            raise InputError(f"{where}: a batch needs at least 2 queries, to be told from each other; got {n}")
        self.relevant = RelevantRows(judged, judged.query_rows, docs_per_group, epoch, seed)
        self.owners = np.arange(len(self.relevant.query_rows))
        _log_small(where, self.relevant.counts, docs_per_group)

    def draw(self, epoch: int, group: int) -> LabelledList:
        return self.relevant.draw(epoch, group)[0]


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


# ``draw`` is a pure function of (seed, epoch, group); ``owners``, [G] int64, ascend: a batch never holds two groups of one owner.
Groups = QueryGroups | LabelGroups


def _log_small(where: str, sizes: np.ndarray, docs_per_group: int) -> None:
    if small := int((sizes < docs_per_group).sum()):
        log.info("%s: %d of %d groups have fewer than %d documents", where, small, len(sizes), docs_per_group)
