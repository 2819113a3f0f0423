"""Mined negatives on disk: a folder per refresh, whole or absent, bound to the collection that it
was mined from.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.artefact import Artefact
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError

NEGATIVES = Artefact(
    "negatives",
    ("ids", "distances"),
    "'candidates', 'bm25', 'random' or a folder with ids.npy, distances.npy and manifest.json",
    "mine again",
)


class MinedNegatives(NamedTuple):
    """For every query of a collection its hardest documents."""

    # [Q, K] int64, rows of documents, hardest first; -1 where a query has fewer (or none)
    ids: np.ndarray
    # [Q, K] float32, Euclidean distance of each to its query (of length 1 where cosines are
    # compared); NaN where the manifest's "distance" is null: nobody knows them
    distances: np.ndarray
    manifest: dict  # how they were mined

    @classmethod
    def of_queries(
        cls,
        query_rows: np.ndarray,
        n_queries: int,
        ids: np.ndarray,
        distances: np.ndarray,
        manifest: dict,
    ) -> "MinedNegatives":
        """The negatives ``[M, K]`` of M of the Q queries; the others have none."""
        shape = (n_queries, ids.shape[1])
        whole = cls(np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.float32), manifest)
        whole.ids[query_rows], whole.distances[query_rows] = ids, distances
        return whole

    @classmethod
    def of_lists(cls, lists: QueryLists, n_queries: int, manifest: dict) -> "MinedNegatives":
        """Lists of negatives, hardest first, whose values are distances; for n_queries queries in
        all.
        """
        counts = np.diff(lists.offsets)
        places = np.arange(len(lists.doc_rows)) - np.repeat(lists.offsets[:-1], counts)
        ids = np.full((len(counts), counts.max()), -1, dtype=np.int64)
        distances = np.zeros(ids.shape, dtype=np.float32)
        at = np.repeat(np.arange(len(counts)), counts), places
        ids[at], distances[at] = lists.doc_rows, lists.values
        return cls.of_queries(lists.query_rows, n_queries, ids, distances, manifest)

    @property
    def has_distances(self) -> bool:
        """Whether the distances are known; those of negatives from elsewhere may not be."""
        return self.manifest.get("distance", "") is not None

    def overlap(self, other: "MinedNegatives") -> float:
        """The share of the negatives of these queries that the other has too, averaged over the
        queries that both have.
        """
        shares = []
        for own, others in zip(self.ids, other.ids, strict=True):
            own = own[own >= 0]
            others = others[others >= 0]
            if len(own) and len(others):
                shares.append(np.isin(own, others).mean())
        return float(np.mean(shares)) if shares else 0.0

    def save(self, folder: Path, collection: Collection) -> None:
        """Write ``ids.npy``, ``distances.npy`` and ``manifest.json``, whole or not at all, to a
        folder that must be new.
        """
        if folder.exists():
            raise InputError(
                f"{folder}: there are negatives already; write the new ones to another folder"
            )
        arrays = {"ids": self.ids, "distances": self.distances}
        NEGATIVES.write(folder, collection, arrays, self.manifest)

    @classmethod
    def open(cls, folder: Path, collection: Collection) -> "MinedNegatives":
        """Map a folder of negatives; an InputError if it is not one, is damaged, or was mined from
        another collection.
        """
        opened = NEGATIVES.open(folder, collection)
        negatives = cls(opened.arrays["ids"], opened.arrays["distances"], opened.manifest)
        return negatives.checked(str(folder), collection)

    def checked(self, where: str, collection: Collection) -> "MinedNegatives":
        """The same, if the arrays are negatives of the collection; otherwise an InputError about
        the place they come from.
        """
        ids = self.ids
        distances = self.distances
        expected = f"[Q={len(collection.queries)}, K]"
        if ids.shape != distances.shape or ids.ndim != 2 or len(ids) != len(collection.queries):
            raise InputError(
                f"{where}: ids and distances must be {expected}, got {ids.shape} and {distances.shape}"
            )
        if ids.dtype.kind not in "iu" or distances.dtype.kind != "f":
            raise InputError(
                f"{where}: ids must be whole numbers, distances floats, got {ids.dtype} and {distances.dtype}"
            )
        n_docs = len(collection.corpus)
        if ids.size and not (ids.min() >= -1 and ids.max() < n_docs):
            raise InputError(
                f"{where}: ids must be -1 or rows of {n_docs} documents, got {ids.min()} to {ids.max()}"
            )
        with np.errstate(over="ignore"):  # what float32 can't hold is infinite
            finite = np.isfinite(distances.astype(np.float32)) | (ids == -1)
        if self.has_distances and not finite.all():
            query, place = np.argwhere(~finite)[0]
            came = f"{distances[query, place]} at [{query}, {place}]"
            raise InputError(f"{where}: distances must be finite (float32), got {came}; mine again")
        return self

    def lists(self) -> QueryLists:
        """The same by query, the missing ones left out; values are distances."""
        queries = np.flatnonzero((self.ids >= 0).any(axis=1))
        return QueryLists.from_matrix(queries, self.ids[queries], self.distances[queries])
