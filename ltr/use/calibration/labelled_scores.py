"""The scores of ranked documents with what is known of their relevance, by query.

Letters of shapes: Q queries, D documents in all, A answerable queries: those with a relevant document.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit


@dataclass(frozen=True)
class LabelledScores:
    """The candidates of Q queries with their scores, end to end.

    Args:
        offsets: ``[Q + 1]`` int64; the documents of query i stand from ``offsets[i]`` to
            ``offsets[i + 1]``, one at least.
        scores: ``[D]`` float32, higher is better.
        is_relevant: ``[D]`` bool.
    """

    offsets: np.ndarray
    scores: np.ndarray
    is_relevant: np.ndarray

    @classmethod
    def from_lists(
        cls, scores: Sequence[ArrayLike], labels: Sequence[ArrayLike]
    ) -> "LabelledScores":
        """Of lists by query; a document is relevant whose label is above 0. Queries without documents
        are left out.

        >>> lists = LabelledScores.from_lists([[3.0, 1.0], [2.0]], [[1, 0], [0]])
        >>> lists.has_relevant
        array([ True, False])
        """
        kept = [np.asarray(listed, np.float32) for listed in scores]
        counts = [len(listed) for listed in kept if len(listed)]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        all_labels = [np.asarray(listed, np.float32) for listed in labels]
        empty = np.empty(0, np.float32)
        return cls(
            offsets, np.concatenate([empty, *kept]), np.concatenate([empty, *all_labels]) > 0
        )

    def __len__(self) -> int:
        """Q."""
        return len(self.offsets) - 1

    @property
    def query_of_doc(self) -> np.ndarray:
        """``[D]`` int64: the query of each document, from 0."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def has_relevant(self) -> np.ndarray:
        """``[Q]`` bool: the answerable queries."""
        return self._by_query(np.logical_or, self.is_relevant)

    @property
    def highest(self) -> np.ndarray:
        """``[Q]`` float32: the best score of each query."""
        return self._by_query(np.maximum, self.scores)

    @property
    def lowest_relevant(self) -> np.ndarray:
        """``[A]`` float32: the lowest score of a relevant document, of each answerable query."""
        scores = np.where(self.is_relevant, self.scores, np.float32(np.inf))
        return self._by_query(np.minimum, scores)[self.has_relevant]

    @property
    def highest_relevant(self) -> np.ndarray:
        """``[A]`` float32: the best score of a relevant document, of each answerable query."""
        scores = np.where(self.is_relevant, self.scores, np.float32(-np.inf))
        return self._by_query(np.maximum, scores)[self.has_relevant]

    @property
    def read_as_logits(self) -> np.ndarray:
        """``[D]`` float64: the probabilities that a sigmoid behind the ranker would give."""
        probabilities: np.ndarray = expit(self.scores.astype(np.float64))
        return probabilities

    def at(self, places: np.ndarray) -> "LabelledScores":
        """The queries at these places ``[n]``, in this order."""
        counts = np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        shifts = self.offsets[places] - offsets[:-1]
        rows = np.arange(offsets[-1]) + np.repeat(shifts, counts)
        return LabelledScores(offsets, self.scores[rows], self.is_relevant[rows])

    def _by_query(self, function: np.ufunc, values: np.ndarray) -> np.ndarray:
        reduced: np.ndarray = function.reduceat(values, self.offsets[:-1]) if len(self) else values
        return reduced
