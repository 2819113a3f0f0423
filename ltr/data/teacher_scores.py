"""Scores of a teacher on disk: a folder, whole or absent, bound to the collection whose lists were
scored; or a file of others, whose ids are looked up.
"""

from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from ltr.data.artefact import ArtefactKind
from ltr.data.collection import Collection
from ltr.data.judged_lists import cached_lists, read_scores
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError

VERSION = "scores-1"


class Counts(TypedDict):
    """How many queries have scores, and how many documents of all these."""

    queries: int
    documents: int


class ScoresManifest(TypedDict):
    """Of a folder of scores; mean and deviations are those of :func:`scale_of`."""

    version: str
    digest: str
    mean: float
    deviation: float
    deviation_in_lists: float
    counts: Counts
    key: NotRequired[str]


SCORES = ArtefactKind(
    name="scores",
    arrays=QueryLists._fields,
    manifest_type=ScoresManifest,
    must_be="a folder that ltr score or ltr labels import has written, or a file of scores",
    mend="score or import again",
)


class TeacherScores(NamedTuple):
    """Scores of documents by query.

    Attributes:
        lists: the documents of each query; the values are scores, higher is better.
        manifest: who made them, their scale, and how many there are.
    """

    lists: QueryLists
    manifest: dict[str, Any]

    @property
    def deviation_in_lists(self) -> float:
        """The standard deviation of the scores within a list, averaged over the lists."""
        return float(self.manifest["deviation_in_lists"])

    def save(self, folder: Path, collection: Collection, *, keep_existing: bool = True) -> None:
        """Write the arrays and ``manifest.json``, whole or not at all.

        Args:
            folder: where.
            collection: knows the ids.
            keep_existing: an existing folder is kept, and nothing is written; without it, that is an
                OSError.

        Raises:
            InputError: for a score that is NaN or infinite.
        """
        _check_finite(self.lists, collection, str(folder))
        counts = {"queries": len(self.lists.query_rows), "documents": len(self.lists.doc_rows)}
        manifest = {
            "version": VERSION,
            "counts": counts,
            **self.manifest,
            **scale_of(self.lists),
        }
        SCORES.write(
            folder, collection, self.lists._asdict(), manifest, keep_existing=keep_existing
        )

    @classmethod
    def open(
        cls, folder: Path, collection: Collection, option: str = "labels.scores"
    ) -> "TeacherScores":
        """Map a folder of scores, or those of a file.

        Args:
            folder: a folder that :meth:`save` has written, or a file of pairs, see
                :func:`ltr.data.judged_lists.read_scores`.
            collection: knows the ids.
            option: the one that names it, for errors.

        Raises:
            InputError: if the folder holds no scores, is damaged or of another version, has a
                score that is NaN or infinite, or belongs to another collection; with ``file:line``
                for a file that can't be read.
        """
        if folder.is_file():
            file_lists = cached_lists(
                [folder], collection.queries, collection.corpus, read_scores, "scores "
            )
            return cls(file_lists, dict(scale_of(file_lists)))
        opened = SCORES.open(folder, collection, option)
        # Plain arrays over the map: every slice of a memmap makes another memmap, for microseconds.
        lists = QueryLists(**{name: np.asarray(array) for name, array in opened.arrays.items()})
        n_queries = len(collection.queries)
        n_docs = len(collection.corpus)
        lists.check(n_queries, n_docs, folder, SCORES.mend, option)
        manifest = opened.manifest
        if manifest["version"] != VERSION:
            raise InputError(
                f"{folder}: scores must be of version {VERSION}, got {manifest['version']}; {SCORES.mend}",
                option=option,
            )
        _check_finite(lists, collection, str(folder), option)
        return cls(lists, manifest)


def _check_finite(
    lists: QueryLists, collection: Collection, where: str, option: str | None = None
) -> None:
    """Check that all scores are finite numbers: one that is not would make all weights NaN.

    Args:
        lists: the values are scores.
        collection: has the names of queries and documents, for errors.
        where: the scores are or will be, for errors.
        option: the one that names them, for errors.

    Raises:
        InputError: about the first that is not.
    """
    wrong = np.flatnonzero(~np.isfinite(lists.values))
    if not len(wrong):
        return
    place = int(wrong[0])
    query = collection.queries.ids[int(lists.query_of_doc[place])]
    doc = collection.corpus.ids[int(lists.doc_rows[place])]
    raise InputError(
        f"{where}: scores must be finite, got {lists.values[place]} for the query {query!r} and the document {doc!r}; {SCORES.mend}",
        option=option,
    )


def scale_of(lists: QueryLists) -> dict[str, float]:
    """``mean`` and ``deviation`` (the standard deviation) of all scores, and ``deviation_in_lists``,
    the standard deviation within a list, averaged over the lists that have documents.
    """
    values = lists.values.astype(np.float64)
    counts = np.diff(lists.offsets)
    starts = lists.offsets[:-1]
    # reduceat would give an empty list the first value of the next one.
    starts = starts[counts > 0]
    counts = counts[counts > 0]
    means = np.add.reduceat(values, starts) / counts
    squares = (values - np.repeat(means, counts)) ** 2
    variances = np.add.reduceat(squares, starts) / counts
    return {
        "mean": _rounded(values.mean()),
        "deviation": _rounded(values.std()),
        "deviation_in_lists": _rounded(np.sqrt(variances).mean()),
    }


def _rounded(value: float) -> float:
    """Six digits: the manifest is read by people, and nothing needs more."""
    return float(f"{value:.6g}")
