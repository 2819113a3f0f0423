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
    relevant_from: float | None  # lower grades counted as 0; null where none did
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
    name="negatives",
    arrays=("ids", "distances"),
    manifest_type=NegativesManifest,
    # In errors about the option negatives, which also takes the names of other sources.
    must_be="'auto', 'candidates', 'bm25', 'random' or a folder with ids.npy, distances.npy and manifest.json",
    mend="mine again",
)


class MinedNegatives(NamedTuple):
    """The hardest documents of queries of a collection, and how they were mined.

    Attributes:
        lists: of the queries that have some, hardest first. The values are Euclidean distances to
            the query; where cosines are compared, of embeddings of length 1. NaN where nobody knows
            them: ``distance`` of the manifest is then null.
        manifest: how they were mined.
        width: K, the columns of the arrays on disk: at least the documents of the longest list.
    """

    lists: QueryLists
    manifest: dict
    width: int

    @classmethod
    def from_matrix(
        cls, query_rows: np.ndarray, doc_rows: np.ndarray, distances: np.ndarray, manifest: dict
    ) -> "MinedNegatives":
        """Make them of the negatives ``[M, K]`` of M queries; −1 where one has fewer or none."""
        has_some = (doc_rows >= 0).any(axis=1)
        lists = QueryLists.from_matrix(
            query_rows[has_some], doc_rows[has_some], distances[has_some]
        )
        return cls(lists, manifest, doc_rows.shape[1])

    @property
    def split(self) -> str:
        """The split whose queries they are of."""
        return self.manifest.get("split", "train")

    @property
    def relevant_from(self) -> float | None:
        """The grade below which documents counted as irrelevant; None where none did."""
        return self.manifest.get("relevant_from")

    def overlap(self, other: "MinedNegatives") -> float:
        """The share of the negatives of these queries that the other has too, averaged over the
        queries that both have.
        """
        shares = []
        for query_row in np.intersect1d(self.lists.query_rows, other.lists.query_rows).tolist():
            doc_rows, _ = self.lists.of(query_row)
            other_doc_rows, _ = other.lists.of(query_row)
            shares.append(np.isin(doc_rows, other_doc_rows).mean())
        return float(np.mean(shares)) if shares else 0.0

    def note_overlap(self, previous: "MinedNegatives | None") -> None:
        """Let the manifest say the overlap with the negatives of the refresh before. The first
        refresh has none.
        """
        if previous is not None:
            self.manifest["overlap"] = round(self.overlap(previous), 4)

    def save(self, folder: Path, collection: Collection) -> None:
        """Write ``ids.npy`` and ``distances.npy``, ``[Q, K]`` each, with −1 and 0 where a query has
        fewer negatives, and ``manifest.json``, whole or not at all, to a folder that must be new.
        """
        if folder.exists():
            raise InputError(
                f"{folder}: there are negatives already; write the new ones to another folder"
            )
        lists = self.lists
        shape = (len(collection.queries), self.width)
        ids = np.full(shape, -1, dtype=np.int64)
        distances = np.zeros(shape, dtype=np.float32)
        ids[lists.query_of_doc, lists.place_in_list] = lists.doc_rows
        distances[lists.query_of_doc, lists.place_in_list] = lists.values
        NEGATIVES.write(folder, collection, {"ids": ids, "distances": distances}, self.manifest)

    @classmethod
    def open(
        cls, folder: Path, collection: Collection, option: str | None = None
    ) -> "MinedNegatives":
        """Read a folder of negatives; an InputError, with the option that names it, if it is not one,
        is damaged, or was mined from another collection.
        """
        arrays, manifest = NEGATIVES.open(folder, collection, option)
        ids = arrays["ids"]
        # Only null says that nobody knows the distances: a manifest without the entry has them.
        known = manifest.get("distance", "") is not None
        lists = lists_of_arrays(str(folder), collection, ids, arrays["distances"], known=known)
        return cls(lists, manifest, ids.shape[1])


def lists_of_arrays(
    where: str, collection: Collection, ids: np.ndarray, distances: np.ndarray, *, known: bool
) -> QueryLists:
    """The negatives of all queries that have some, from arrays ``[Q, K]`` as a folder has them.

    Args:
        where: the arrays come from, for errors.
        collection: whose rows they hold.
        ids: rows of documents, −1 where a query has fewer.
        distances: to the queries.
        known: whether somebody knows these; otherwise they become NaN.

    Raises:
        InputError: about the place they come from, if they can't be negatives of the collection.
    """
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
    if known:
        _check_finite(where, ids, distances)
    else:
        distances = np.broadcast_to(np.float32(np.nan), ids.shape)
    has_some = (ids >= 0).any(axis=1)
    return QueryLists.from_matrix(np.flatnonzero(has_some), ids[has_some], distances[has_some])


def _check_finite(where: str, ids: np.ndarray, distances: np.ndarray) -> None:
    """Refuse distances of documents that float32 can't hold."""
    for span in spans(len(ids), QUERIES_AT_ONCE):
        with np.errstate(over="ignore"):  # what float32 can't hold is infinite
            is_finite = np.isfinite(distances[span].astype(np.float32))
        is_valid = is_finite | (ids[span] == -1)
        if not is_valid.all():
            place, column = np.argwhere(~is_valid)[0]
            row = span.start + place
            raise InputError(
                f"{where}: distances must be finite (float32), got {distances[row, column]} at [{row}, {column}]; mine again"
            )
