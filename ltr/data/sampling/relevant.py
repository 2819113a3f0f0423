"""The relevant documents of each row, and what is never a negative beside them."""

from typing import Literal

import numpy as np

from ltr.data.query_lists import LabelledList, QueryLists, cannot_be_negatives
from ltr.data.sampling.rows import in_parts

# What an epoch has once: each query, or each pair of a query and a relevant document.
EpochOver = Literal["queries", "pairs"]


def not_negatives(known: QueryLists, query_row: int) -> np.ndarray:
    """The documents that must not be drawn as negatives of a query: relevant ones, those with the
    text of one, and those with the text of the query, whose grade is NaN.

    Args:
        known: see :mod:`ltr.data.sampling.rows`.
        query_row: the query.
    """
    known_rows, grades = known.of(query_row)
    return known_rows[cannot_be_negatives(grades)]


class RelevantDraws:
    """Draws the relevant documents of each row of an epoch, ``size`` at most, without repeats and
    anew in each epoch.

    Over ``queries``, each query has one row. Over ``pairs``, it has as many rows as its relevant
    documents fill, dealt out evenly: an epoch has every pair of a query and a relevant document
    once. A query that fits into one row is drawn the same way in both.

    Args:
        judged: the judgements; those above 0 are relevant.
        known: what lists carry as known of their query, see :mod:`ltr.data.sampling.rows`.
        queries: ``[Q]`` int64, the queries that have rows.
        size: relevant documents of a row at most.
        epoch_over: ``queries`` or ``pairs``.
        seed: of the draws.

    Attributes:
        query_rows: ``[R]`` int64, the query of each row.
        counts: ``[R]`` int64, how many documents each row has.
    """

    def __init__(
        self,
        judged: QueryLists,
        known: QueryLists,
        queries: np.ndarray,
        size: int,
        epoch_over: EpochOver,
        seed: int,
    ) -> None:
        self.judged = judged
        self.known = known
        self.seed = seed
        n_relevant = judged.n_relevant()[np.searchsorted(judged.query_rows, queries)]
        n_parts = np.ones_like(n_relevant)
        if epoch_over == "pairs":
            n_parts = -(-n_relevant // size)  # rounded up
        self.query_rows, self._parts = in_parts(queries, n_parts)
        # For each row: the parts of its query, and the documents drawn for all of them.
        self._n_parts = np.repeat(n_parts, n_parts)
        self._n_drawn = np.repeat(np.minimum(n_relevant, size * n_parts), n_parts)
        # As np.array_split deals them out in draw(): the first parts take one more each.
        n_longer = self._n_drawn % self._n_parts
        self.counts = self._n_drawn // self._n_parts + (self._parts < n_longer)

    def draw(self, epoch: int, row: int) -> tuple[LabelledList, np.random.Generator]:
        """The list of a row, and the generator of whatever else the row draws."""
        query_row = int(self.query_rows[row])
        part = int(self._parts[row])
        judged_rows, grades = self.judged.of(query_row)
        rng = np.random.default_rng([self.seed, epoch, query_row])
        # All rows of the query draw the same documents here, and each takes its own part of them.
        drawn_for_all = rng.choice(np.flatnonzero(grades > 0), self._n_drawn[row], replace=False)
        drawn = np.array_split(drawn_for_all, self._n_parts[row])[part]
        # Part 0 goes on with this generator, so that a query of one row draws alike over queries and
        # over pairs; the other parts have generators of their own.
        if part:
            rng = np.random.default_rng([self.seed, epoch, query_row, part])
        known_rows, known_grades = self.known.of(query_row)
        relevant = LabelledList(
            query_row,
            judged_rows[drawn],
            grades[drawn],
            known_rows=known_rows,
            known_grades=known_grades,
        )
        return relevant, rng
