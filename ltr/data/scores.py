"""Scores of a teacher on disk: a folder, whole or absent, bound to the collection whose lists were
scored.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ltr.data.artefact import ArtefactKind
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError

VERSION = "scores-1"
SCORES = ArtefactKind(
    "scores",
    QueryLists._fields,
    "a folder that ltr score has written",
    "score again",
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

    def save(self, folder: Path, collection: Collection) -> None:
        """Write the arrays and ``manifest.json``, whole or not at all; an existing folder is kept,
        and nothing is written.
        """
        counts = {"queries": len(self.lists.query_rows), "documents": len(self.lists.doc_rows)}
        manifest = {
            "version": VERSION,
            "counts": counts,
            **self.manifest,
            "digest": self.lists.digest(),
            **scale_of(self.lists),
        }
        SCORES.write(folder, collection, self.lists._asdict(), manifest)

    @classmethod
    def open(
        cls, folder: Path, collection: Collection, option: str = "labels.scores"
    ) -> "TeacherScores":
        """Map a folder of scores.

        Raises:
            InputError: if the folder holds no scores, is damaged or of another version, or belongs
                to another collection.
        """
        opened = SCORES.open(folder, collection, option)
        # Plain arrays over the map: every slice of a memmap makes another memmap, for microseconds.
        lists = QueryLists(**{name: np.asarray(array) for name, array in opened.arrays.items()})
        manifest = opened.manifest
        if manifest.get("version") != VERSION or manifest.get("digest") != lists.digest():
            raise InputError(
                f"{folder}: the scores are damaged, or of another version; score again",
                option=option,
            )
        return cls(lists, manifest)


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
