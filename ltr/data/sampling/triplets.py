"""Relevant documents of a query, and others to rank below them."""

import logging
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists, grades_of
from ltr.data.sampling.relevant import Epoch, RelevantRows
from ltr.errors import InputError

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """Where negatives are drawn from, and how many of a row."""

    n: int
    lists: QueryLists | None  # documents to draw from, by query; None draws from the whole corpus
    have_distances: bool = (
        False  # whether the values are distances, which then travel with the documents
    )


@dataclass(eq=False)
class TripletRows:
    """Relevant documents of a query, and others to rank below them: first those of the first
    source, and no document twice.

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
    # [Q] int64, those that have rows; None: those with a negative, found once and kept by replace()
    queries: np.ndarray | None = None
    # Of some negatives: NaN, which is never drawn, or a soft label. All others have label 0.
    labels: QueryLists | None = None

    def __post_init__(self) -> None:
        self.queries = self._learnable() if self.queries is None else self.queries
        self.relevant = RelevantRows(
            self.judged, self.queries, self.positives, self.epoch, self.seed
        )
        self.query_rows = self.relevant.query_rows

    def __len__(self) -> int:
        return len(self.query_rows)

    def _learnable(self) -> np.ndarray:
        """The queries with a document to rank below the relevant ones."""
        queries = self.judged.query_rows
        rows = [
            row
            for row in queries
            if any(
                one.lists is None or len(self._others(one.lists, row)[0]) for one in self.sources
            )
        ]
        if not rows:
            text = f"{self.where}: no query has a document to rank below its relevant ones; choose another source of negatives"
            raise InputError(text, option="negatives")
        if left_out := len(queries) - len(rows):
            log.info(
                "%s: %d of %d queries have no negatives and are left out",
                self.where,
                left_out,
                len(queries),
            )
        return np.asarray(rows)

    def _closed(self, query_row: int) -> np.ndarray:
        """Documents that are no negatives."""
        judged_rows, grades = self.judged.of(query_row)
        if self.labels is None:
            return judged_rows[grades > 0]
        others, labels = self.labels.of(query_row)
        return np.concatenate([judged_rows[grades > 0], others[np.isnan(labels)]])

    def _others(
        self, negatives: QueryLists, query_row: int, taken: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Documents to draw negatives from, without those taken (or closed), and their values."""
        taken = self._closed(query_row) if taken is None else taken
        doc_rows, values = negatives.of(query_row)
        kept = (doc_rows != taken[:, None]).all(axis=0)  # faster than np.isin for so few documents
        return doc_rows[kept], values[kept]

    def drawable(self) -> Iterator[tuple[int, np.ndarray]]:
        """The documents that may be drawn, by query: the relevant ones, and those of sources that
        name theirs.
        """
        assert self.queries is not None, "the constructor sets them"
        for query_row in self.queries.tolist():
            judged_rows, grades = self.judged.of(query_row)
            others = [
                self._others(source.lists, query_row)[0]
                for source in self.sources
                if source.lists is not None
            ]
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
        negative = []
        # No loss asks for a margin, and so for the distance, of a relevant document.
        distances = [np.zeros(len(one.doc_rows), np.float32)]
        for source in self.sources:
            drawn, values = self._drawn(source, one.query_row, taken, rng)
            negative.append(drawn)
            distances.append(
                values if source.have_distances else np.full(len(drawn), np.nan, np.float32)
            )
            taken = np.concatenate([taken, drawn])
        others = np.concatenate(negative)
        doc_rows = np.concatenate([one.doc_rows, others])
        soft = (
            np.zeros(len(others), np.float32)
            if self.labels is None
            else grades_of(others, *self.labels.of(one.query_row))
        )
        labels = np.concatenate([one.labels, soft])
        # NaN where a source has none; whether all have them is has_distances of the data module.
        some_distances = any(source.have_distances for source in self.sources)
        return one._replace(
            doc_rows=doc_rows,
            labels=labels,
            distances=np.concatenate(distances) if some_distances else None,
        )


def _draw_outside(
    rng: np.random.Generator, n: int, forbidden: np.ndarray, count: int
) -> np.ndarray:
    """``count`` different numbers below n, none of them forbidden (fewer if there are not so many)."""
    count = min(count, n - len(forbidden))
    drawn: dict[int, None] = {}
    closed = set(forbidden.tolist())
    while len(drawn) < count:
        drawn.update((d, None) for d in rng.integers(n, size=2 * count).tolist() if d not in closed)
    return np.asarray(list(drawn)[:count], dtype=np.int64)
