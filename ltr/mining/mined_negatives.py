"""Mined negatives on disk: a folder per refresh, whole or absent, bound to the collection that it
was mined from.
"""

from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from ltr.data.artefact import ArtefactKind
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.spans import spans

QUERIES_AT_ONCE = 16384  # whose distances are checked


class NegativesManifest(TypedDict, total=False):
    """Of a folder of negatives; those from elsewhere have few of its entries."""

    key: str | None
    split: str  # of the queries that ltr mine has mined for; those of train where none is said
    distance: str | None
    mined_queries: int
    counts: dict[str, int]
    recipe: dict[str, Any]
    seconds: dict[str, float]
    mean_distance: dict[str, float | None]
    epoch: int
    step: int
    staleness: int
    overlap: float
    recall: float


NEGATIVES = ArtefactKind(
    kind="negatives",
    arrays=("ids", "distances"),
    entries=NegativesManifest,
    # In errors about the option negatives, which also takes the names of other sources.
    must_be="'candidates', 'bm25', 'random' or a folder with ids.npy, distances.npy and manifest.json",
    again="mine again",
)


class MinedNegatives(NamedTuple):
    """For every query of a collection its hardest documents.

    Attributes:
        doc_rows: ``[Q, K]`` int64, rows of documents, hardest first; −1 where a query has fewer or
            none. On disk they are called ``ids``.
        distances: ``[Q, K]`` float32, Euclidean distance of each to its query; where cosines are
            compared, of embeddings of length 1. NaN where nobody knows them: ``distance`` of the
            manifest is then null.
        manifest: how they were mined.
    """

    doc_rows: np.ndarray
    distances: np.ndarray
    manifest: dict

    @classmethod
    def of_queries(
        cls,
        query_rows: np.ndarray,
        n_queries: int,
        doc_rows: np.ndarray,
        distances: np.ndarray,
        manifest: dict,
    ) -> "MinedNegatives":
        """Make them of the negatives ``[M, K]`` of M of the Q queries; the others have none."""
        shape = (n_queries, doc_rows.shape[1])
        all_doc_rows = np.full(shape, -1, dtype=np.int64)
        all_doc_rows[query_rows] = doc_rows
        all_distances = np.zeros(shape, dtype=np.float32)
        all_distances[query_rows] = distances
        return cls(all_doc_rows, all_distances, manifest)

    @classmethod
    def of_lists(cls, lists: QueryLists, n_queries: int, manifest: dict) -> "MinedNegatives":
        """Make them of lists of some of the Q queries, hardest first, whose values are distances."""
        counts = np.diff(lists.offsets)
        places = np.repeat(np.arange(len(counts)), counts)
        columns = np.arange(len(lists.doc_rows)) - np.repeat(lists.offsets[:-1], counts)
        doc_rows = np.full((len(counts), counts.max()), -1, dtype=np.int64)
        doc_rows[places, columns] = lists.doc_rows
        distances = np.zeros(doc_rows.shape, dtype=np.float32)
        distances[places, columns] = lists.values
        return cls.of_queries(lists.query_rows, n_queries, doc_rows, distances, manifest)

    @property
    def split(self) -> str:
        """The split whose queries they are of."""
        return self.manifest.get("split", "train")

    def overlap(self, other: "MinedNegatives") -> float:
        """The share of the negatives of these queries that the other has too, averaged over the
        queries that both have.
        """
        shares = []
        for doc_rows, other_doc_rows in zip(self.doc_rows, other.doc_rows, strict=True):
            negatives = doc_rows[doc_rows >= 0]
            other_negatives = other_doc_rows[other_doc_rows >= 0]
            if len(negatives) and len(other_negatives):
                shares.append(np.isin(negatives, other_negatives).mean())
        return float(np.mean(shares)) if shares else 0.0

    def save(self, folder: Path, collection: Collection) -> None:
        """Write ``ids.npy``, ``distances.npy`` and ``manifest.json``, whole or not at all, to a
        folder that must be new.
        """
        if folder.exists():
            raise InputError(
                f"{folder}: there are negatives already; write the new ones to another folder"
            )
        arrays = {"ids": self.doc_rows, "distances": self.distances}
        NEGATIVES.write(folder, collection, arrays, self.manifest)

    @classmethod
    def open(
        cls, folder: Path, collection: Collection, option: str | None = None
    ) -> "MinedNegatives":
        """Map a folder of negatives; an InputError, with the option that names it, if it is not one,
        is damaged, or was mined from another collection.
        """
        opened = NEGATIVES.open(folder, collection, option)
        negatives = cls(opened.arrays["ids"], opened.arrays["distances"], opened.manifest)
        return negatives.checked(str(folder), collection)

    def checked(self, where: str, collection: Collection) -> "MinedNegatives":
        """These negatives, if the arrays can be negatives of the collection.

        Raises:
            InputError: about the place they come from, if they can't.
        """
        ids = self.doc_rows  # as the file and the errors call them
        distances = self.distances
        n_queries = len(collection.queries)
        if ids.shape != distances.shape or ids.ndim != 2 or len(ids) != n_queries:
            raise InputError(
                f"{where}: ids and distances must be [Q={n_queries}, K], got {ids.shape} and {distances.shape}"
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
        # Of another kind of whole numbers, uint64 for example, rows could not be an index.
        doc_rows = ids.astype(np.int64, copy=False)
        # Only null says that nobody knows the distances: a manifest without the entry has them.
        if self.manifest.get("distance", "") is None:
            return self._replace(
                doc_rows=doc_rows, distances=np.full(ids.shape, np.nan, np.float32)
            )
        for span in spans(n_queries, QUERIES_AT_ONCE):
            with np.errstate(over="ignore"):  # what float32 can't hold is infinite
                is_finite = np.isfinite(distances[span].astype(np.float32))
            is_valid = is_finite | (ids[span] == -1)
            if not is_valid.all():
                place, column = np.argwhere(~is_valid)[0]
                row = span.start + place
                raise InputError(
                    f"{where}: distances must be finite (float32), got {distances[row, column]} at [{row}, {column}]; mine again"
                )
        return self._replace(doc_rows=doc_rows)

    def lists(self) -> QueryLists:
        """The same by query, without the queries that have none; values are distances."""
        query_rows = np.flatnonzero((self.doc_rows >= 0).any(axis=1))
        return QueryLists.from_matrix(
            query_rows, self.doc_rows[query_rows], self.distances[query_rows]
        )
