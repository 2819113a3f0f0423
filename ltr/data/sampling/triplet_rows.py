"""Rows of relevant documents of a query, and of others to rank below them (negatives)."""

import logging
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists, values_of
from ltr.data.sampling.relevant import EpochOver, RelevantDraws, not_negatives
from ltr.errors import InputError

log = logging.getLogger(__name__)


class Negatives(NamedTuple):
    """What negatives are drawn from, as mined lists or the corpus.

    Attributes:
        per_row: how many of them a row gets, at most.
        lists: the documents to draw from, by query, with their mined distances or NaN; None: the
            whole corpus.
    """

    per_row: int
    lists: QueryLists | None


@dataclass(eq=False)
class TripletRows:
    """Rows of one or more relevant documents of a query, followed by its negatives, in the order of
    ``negatives``. No document comes twice.

    Queries without a document to draw as a negative are left out; an InputError if all are.
    """

    judged: QueryLists  # every query has a relevant document
    known: QueryLists  # see ltr.data.sampling.rows
    negatives: tuple[Negatives, ...]
    n_docs: int  # of the corpus
    positives_per_row: int  # relevant documents, at most
    seed: int
    _: KW_ONLY
    epoch_over: EpochOver
    where: str  # the split, for errors
    # [Q] int64, the queries that have rows. None: those with a negative. They are found once:
    # dataclasses.replace() hands them on, so rows keep their numbers when the negatives change.
    queries: np.ndarray | None = None
    # By an audit: a soft label of some negatives, or NaN for a document that must not be drawn. All
    # other negatives have label 0.
    audit_labels: QueryLists | None = None

    def __post_init__(self) -> None:
        if self.queries is None:
            self.queries = self._queries_with_negatives()
        self.relevant = RelevantDraws(
            self.judged,
            self.known,
            self.queries,
            self.positives_per_row,
            self.epoch_over,
            self.seed,
        )
        self.query_rows = self.relevant.query_rows

    def __len__(self) -> int:
        return len(self.query_rows)

    def with_negatives(self, number: int, lists: QueryLists) -> "TripletRows":
        """The same rows, with these lists as the negatives of this number."""
        negatives = list(self.negatives)
        negatives[number] = negatives[number]._replace(lists=lists)
        return replace(self, negatives=tuple(negatives))

    def _queries_with_negatives(self) -> np.ndarray:
        all_queries = self.judged.query_rows
        queries = [query_row for query_row in all_queries if self._has_negatives(query_row)]
        if not queries:
            raise InputError(
                f"{self.where}: no query has a document to rank below its relevant ones; choose another source of negatives, such as bm25 or random",
                option="negatives",
            )
        if left_out := len(all_queries) - len(queries):
            log.info(
                "%s: %d of %d queries have no negatives and are left out",
                self.where,
                left_out,
                len(all_queries),
            )
        return np.asarray(queries)

    def _has_negatives(self, query_row: int) -> bool:
        forbidden = self._forbidden(query_row)
        for _, lists in self.negatives:
            if lists is None:  # the whole corpus
                if len(set(forbidden.tolist())) < self.n_docs:
                    return True
                continue
            doc_rows, _ = _without(lists, query_row, forbidden)
            if len(doc_rows):
                return True
        return False

    def _forbidden(self, query_row: int) -> np.ndarray:
        """The documents that must not be drawn as negatives of a query: those of
        :func:`not_negatives`, and those that the audit labels NaN.
        """
        forbidden = not_negatives(self.known, query_row)
        if self.audit_labels is None:
            return forbidden
        labelled_rows, labels = self.audit_labels.of(query_row)
        return np.concatenate([forbidden, labelled_rows[np.isnan(labels)]])

    def drawable(self) -> Iterator[tuple[int, np.ndarray]]:
        """The documents that may be drawn, by query: the relevant ones, and those of all negatives
        but the whole corpus.
        """
        assert self.queries is not None, "the constructor finds them"
        for query_row in self.queries.tolist():
            judged_rows, grades = self.judged.of(query_row)
            forbidden = self._forbidden(query_row)
            drawable = [judged_rows[grades > 0]]
            for _, lists in self.negatives:
                if lists is not None:
                    doc_rows, _ = _without(lists, query_row, forbidden)
                    drawable.append(doc_rows)
            yield query_row, np.concatenate(drawable)

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row; its relevant documents come first."""
        relevant, rng = self.relevant.draw(epoch, row)
        query_row = relevant.query_row
        # A relevant document was not mined.
        distances = [np.full(len(relevant.doc_rows), np.nan, np.float32)]
        drawn_rows = []
        forbidden = self._forbidden(query_row)
        for count, lists in self.negatives:
            doc_rows, mined_distances = self._draw_from(lists, count, query_row, forbidden, rng)
            drawn_rows.append(doc_rows)
            distances.append(mined_distances)
            # The next negatives must not be these documents again.
            forbidden = np.concatenate([forbidden, doc_rows])
        negatives = np.concatenate(drawn_rows)
        negative_labels = np.zeros(len(negatives), np.float32)
        if self.audit_labels is not None:
            labelled_rows, labels = self.audit_labels.of(query_row)
            negative_labels = values_of(negatives, labelled_rows, labels)
        return relevant._replace(
            doc_rows=np.concatenate([relevant.doc_rows, negatives]),
            labels=np.concatenate([relevant.labels, negative_labels]),
            distances=np.concatenate(distances),
        )

    def _draw_from(
        self,
        lists: QueryLists | None,
        count: int,
        query_row: int,
        forbidden: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Documents of some negatives, none of them forbidden, and their distances or NaN."""
        if lists is None:
            drawn = _draw_outside(rng, self.n_docs, forbidden, count)
            return drawn, np.full(len(drawn), np.nan, np.float32)
        doc_rows, values = _without(lists, query_row, forbidden)
        chosen = rng.choice(len(doc_rows), min(count, len(doc_rows)), replace=False)
        return doc_rows[chosen], values[chosen]


def _without(
    lists: QueryLists, query_row: int, forbidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The documents of a query that are not forbidden, and their values."""
    doc_rows, values = lists.of(query_row)
    # Of shape [forbidden, documents]: faster than np.isin for so few documents.
    kept = (doc_rows != forbidden[:, None]).all(axis=0)
    return doc_rows[kept], values[kept]


def _draw_outside(
    rng: np.random.Generator, n: int, forbidden: np.ndarray, count: int
) -> np.ndarray:
    """``count`` different numbers below n, none of them forbidden (fewer if there are not so many)."""
    closed = set(forbidden.tolist())
    count = min(count, n - len(closed))
    drawn: dict[int, None] = {}  # a set that keeps the order in which numbers were drawn
    while len(drawn) < count:
        # Twice as many as needed: repeated and forbidden ones are few, so one round mostly does.
        for number in rng.integers(n, size=2 * count).tolist():
            if number not in closed:
                drawn[number] = None
    return np.asarray(list(drawn)[:count], dtype=np.int64)
