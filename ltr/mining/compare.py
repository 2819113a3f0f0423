"""Two folders of negatives side by side.

Letters of shapes: P pairs of a query and a negative that it has in either folder; Q queries that have negatives in both.
"""

from typing import NamedTuple

import numpy as np

from ltr.mining.negatives import MinedNegatives


class Overlap(NamedTuple):
    """What two folders have in common among the first k negatives of each query, averaged over the queries."""

    share: float  # of the first folder's negatives, those that the second has too
    jaccard: float  # of the negatives of either, those of both


class SideBySide(NamedTuple):
    """The pairs of two folders, by query and then by document.

    Attributes:
        query_rows, doc_rows: ``[P]`` int64.
        ranks: ``[P, 2]`` int64, from 1; 0 where a folder has not the pair.
        distances: ``[P, 2]`` float32, NaN where a folder has not the pair, or knows no distances.
        suspected: ``[P]`` bool, likely false negatives: negatives in both folders that are nearer to their query than relevant
            documents are on average, by each folder that knows distances.
        nearness: ``[P]`` float32, the distance as a share of that average, the larger one; NaN where no folder knows it.
    """

    query_rows: np.ndarray
    doc_rows: np.ndarray
    ranks: np.ndarray
    distances: np.ndarray
    suspected: np.ndarray
    nearness: np.ndarray

    @classmethod
    def of(cls, first: MinedNegatives, second: MinedNegatives) -> "SideBySide":
        """Compare the negatives of two folders of one collection."""
        lists, n_docs = [one.lists() for one in (first, second)], int(max(first.ids.max(), second.ids.max())) + 1
        pairs = [np.repeat(one.query_rows, np.diff(one.offsets)) * n_docs + one.doc_rows for one in lists]
        either = np.unique(np.concatenate(pairs))
        ranks, distances = np.zeros((len(either), 2), np.int64), np.full((len(either), 2), np.nan, np.float32)
        shares = np.full((len(either), 2), np.nan, np.float32)
        for side, (folder, one, codes) in enumerate(zip((first, second), lists, pairs, strict=True)):
            at = np.searchsorted(either, codes)
            ranks[at, side] = np.arange(len(codes)) - np.repeat(one.offsets[:-1], np.diff(one.offsets)) + 1
            relevant = folder.manifest.get("mean_distance", {}).get("relevant")
            if folder.has_distances:
                distances[at, side] = one.values
                shares[at, side] = one.values / relevant if relevant else np.nan
        nearness = np.fmax(shares[:, 0], shares[:, 1])  # of one where the other knows none
        suspected = (ranks > 0).all(axis=1) & (nearness < 1)
        return cls(either // n_docs, either % n_docs, ranks, distances, suspected, nearness)

    def _counts(self, k: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the Q queries; and ``[Q, 3]``, how many of the first k negatives are in the first, the second, and both."""
        there = (self.ranks > 0) & (self.ranks <= (k or self.ranks.max(initial=0)))
        query_rows, at = np.unique(self.query_rows, return_inverse=True)
        sides = (there[:, 0], there[:, 1], there.all(axis=1))
        counts = np.stack([np.bincount(at, side, len(query_rows)) for side in sides], axis=1)
        asked = (counts[:, :2] > 0).all(axis=1)
        return query_rows[asked], counts[asked]

    def overlap(self, k: int | None = None) -> Overlap:
        """The overlap of the first k negatives of each query, or of all."""
        _, counts = self._counts(k)
        if not len(counts):
            return Overlap(0.0, 0.0)
        first, second, both = counts.T
        return Overlap(float((both / first).mean()), float((both / (first + second - both)).mean()))

    def rank_shift(self) -> float:
        """By how many places a negative of both folders stands elsewhere, on average; NaN where there is none."""
        ranks = self.ranks[(self.ranks > 0).all(axis=1)]
        return float(np.abs(ranks[:, 0] - ranks[:, 1]).mean()) if len(ranks) else float("nan")

    def changed(self) -> tuple[np.ndarray, np.ndarray]:
        """The Q queries, those first whose negatives have changed most, and the Jaccard overlap of each."""
        query_rows, counts = self._counts(None)
        first, second, both = counts.T
        jaccard = both / (first + second - both)
        order = np.argsort(jaccard, kind="stable")
        return query_rows[order], jaccard[order]
