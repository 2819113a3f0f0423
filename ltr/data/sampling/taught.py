"""Training on the scores of a teacher: they take the place of the labels that rows have."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists, values_of
from ltr.data.sampling.rows import Rows
from ltr.data.sampling.triplet_rows import TripletRows
from ltr.errors import InputError

log = logging.getLogger(__name__)

Unscored = Literal["refuse", "leave_out"]


@dataclass(eq=False)
class TaughtRows:
    """The rows of ``rows``, with the scores of a teacher as labels.

    With ``leave_out``, rows of queries without any score are left out; an InputError if all are.
    """

    rows: Rows  # draw the documents
    scores: QueryLists
    unscored: Unscored  # a document without a score is refused, or left out of its list
    ids: tuple[Sequence[str], Sequence[str]]  # of queries and of documents, for errors
    where: str  # the split, for errors

    def __post_init__(self) -> None:
        self._numbers = np.arange(len(self.rows))  # of these rows, among those of ``rows``
        if self.unscored == "leave_out":
            scored_queries = self.scores.query_rows[np.diff(self.scores.offsets) > 0]
            self._numbers = np.flatnonzero(np.isin(self.rows.query_rows, scored_queries))
        if len(self._numbers) == 0:
            raise InputError(
                f"{self.where}: no query has a document with a score; score the documents that are trained on",
                option="labels.scores",
            )
        self.query_rows = self.rows.query_rows[self._numbers]

    def __len__(self) -> int:
        return len(self._numbers)

    def with_negatives(self, number: int, lists: QueryLists) -> "TaughtRows":
        """See :meth:`ltr.data.sampling.triplet_rows.TripletRows.with_negatives`."""
        assert isinstance(self.rows, TripletRows), "other rows have no negatives"
        return replace(self, rows=self.rows.with_negatives(number, lists))

    def log_left_out(self) -> None:
        """Say how many rows are left out, if any."""
        if n_left_out := len(self.rows) - len(self):
            log.info(
                "%s: %d of %d rows are left out, as their queries have no document with a score",
                self.where,
                n_left_out,
                len(self.rows),
            )

    def check(self, drawable: Iterable[tuple[int, np.ndarray]]) -> None:
        """Check that all documents have a score.

        Args:
            drawable: queries with the documents that may be drawn, by row.

        Raises:
            InputError: if not; it counts the documents without a score and names the first.
        """
        unscored_pairs: list[tuple[int, int]] = []
        for query_row, doc_rows in drawable:
            scored_rows, _ = self.scores.of(query_row)
            for doc_row in doc_rows[~np.isin(doc_rows, scored_rows)].tolist():
                unscored_pairs.append((query_row, doc_row))
        if unscored_pairs:
            query_ids, doc_ids = self.ids
            query_row, doc_row = unscored_pairs[0]
            raise InputError(
                f"{self.where}: {len(unscored_pairs)} pairs have no score, first document {doc_ids[doc_row]!r} of query {query_ids[query_row]!r}; score the documents that are trained on, or set labels.unscored to leave_out",
                option="labels.scores",
            )

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row, with scores as labels.

        If none of its documents has a score, the query's document of the best score stands alone: a
        list can't be empty, and a made-up label would be learnt.
        """
        drawn = self.rows.draw(epoch, int(self._numbers[row]))
        scored_rows, scores = self.scores.of(drawn.query_row)
        has_score = np.isin(drawn.doc_rows, scored_rows)
        if self.unscored == "refuse" and not has_score.all():
            self.check([(drawn.query_row, drawn.doc_rows)])
        taught = drawn.documents_at(np.flatnonzero(has_score))
        if not has_score.any():
            taught = drawn.alone(int(scored_rows[scores.argmax()]))
        return taught._replace(labels=values_of(taught.doc_rows, scored_rows, scores))
