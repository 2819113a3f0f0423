"""Scores of a teacher on disk: a folder, whole or absent, bound to the collection whose lists were scored."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import folder_once
from ltr.data.query_lists import LabelledList, QueryLists, grades_of
from ltr.data.rows import Rows
from ltr.errors import InputError

VERSION = "scores-1"
PREFIX = "scores:"  # in the option labels
Unscored = Literal["refuse", "leave_out"]


class TeacherScores(NamedTuple):
    """Scores of documents by query.

    Attributes:
        lists: the documents of each query; the values are scores, higher is better.
        manifest: who made them, their scale, and how many there are.
    """

    lists: QueryLists
    manifest: dict[str, Any]

    @property
    def deviation(self) -> float:
        """The standard deviation of the scores within a list, the mean over the lists."""
        return float(self.manifest["deviation_in_lists"])

    def save(self, folder: Path, collection: Collection) -> None:
        """Write the arrays and ``manifest.json``, whole or not at all; nothing if the folder is there."""
        about = {"version": VERSION, "corpus": collection.corpus.key, "queries": collection.queries.key}
        counts = {"queries": len(self.lists.query_rows), "documents": len(self.lists.doc_rows)}
        manifest = about | {"counts": counts} | self.manifest | {"digest": self.lists.digest()} | scale_of(self.lists)

        def build(temporary: Path) -> None:
            self.lists.save(temporary)
            (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

        folder_once(folder, build)

    @classmethod
    def open(cls, folder: Path, collection: Collection, option: str = "labels") -> "TeacherScores":
        """Map a folder of scores; an InputError if it is none, damaged, of an older version, or of another collection."""
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            lists = QueryLists.load(folder)
            digest = lists.digest()
        except (OSError, ValueError, EOFError) as error:
            text = f"{folder} must be a folder of scores, as ltr score writes it ({error})"
            raise InputError(text, option=option) from None
        if not isinstance(manifest, dict) or manifest.get("version") != VERSION or manifest.get("digest") != digest:
            raise InputError(f"{folder}: the scores are damaged, or of another version; score again", option=option)
        if (manifest.get("corpus"), manifest.get("queries")) != (collection.corpus.key, collection.queries.key):
            text = f"{folder}: these are scores for another collection than {collection.source}; score again"
            raise InputError(text, option=option)
        return cls(lists, manifest)


def scale_of(lists: QueryLists) -> dict[str, float]:
    """Mean and standard deviation of all scores, and that within a list, the mean over the lists."""
    values, counts = lists.values.astype(np.float64), np.diff(lists.offsets)
    means = np.add.reduceat(values, lists.offsets[:-1]) / counts
    squares = np.add.reduceat((values - np.repeat(means, counts)) ** 2, lists.offsets[:-1]) / counts
    within = float(np.sqrt(squares).mean())
    found = {"mean": float(values.mean()), "deviation": float(values.std()), "deviation_in_lists": within}
    return {name: float(f"{value:.6g}") for name, value in found.items()}


@dataclass(frozen=True)
class Teaching:
    """What the labels of training lists are: the options ``labels``, ``unscored`` and ``label_deviation`` of a data module.

    Raises:
        InputError: for a value that is none of theirs.
    """

    labels: str = "grades"
    unscored: Unscored = "refuse"
    deviation: float | None = None

    def __post_init__(self) -> None:
        if self.labels != "grades" and (not self.labels.startswith(PREFIX) or self.labels == PREFIX):
            raise InputError(f"labels must be grades or scores:FOLDER, got {self.labels!r}", option="labels")
        if self.unscored not in get_args(Unscored):
            raise InputError(f"unscored must be refuse or leave_out, got {self.unscored!r}", option="unscored")
        if self.deviation is not None and not 0 < self.deviation < math.inf:
            raise InputError(f"label_deviation must be finite and above 0, got {self.deviation}", option="label_deviation")

    def scores(self, collection: Collection) -> QueryLists | None:
        """The scores that become labels, on the scale that was asked for; None where labels are grades."""
        if self.labels == "grades":
            return None
        found = TeacherScores.open(Path(self.labels.removeprefix(PREFIX)), collection)
        factor = 1.0 if self.deviation is None else self.deviation / found.deviation if found.deviation else 1.0
        return found.lists._replace(values=(found.lists.values * factor).astype(np.float32))


@dataclass(eq=False)
class TaughtRows:
    """Rows whose labels are the scores of a teacher."""

    rows: Rows  # draw the documents
    scores: QueryLists
    unscored: Unscored  # a document without a score is refused, or left out of its list
    ids: tuple[Sequence[str], Sequence[str]]  # of queries and of documents, for errors
    where: str

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, drawn: Iterable[tuple[int, np.ndarray]]) -> None:
        """Check that all documents that may be drawn have a score, where one without is refused.

        Args:
            drawn: queries with their documents, by row.

        Raises:
            InputError: if not; it counts them and names the first.
        """
        if self.unscored == "leave_out":
            return
        without = [(query, doc) for query, docs in drawn for doc in docs[~np.isin(docs, self.scores.of(query)[0])].tolist()]
        if without:
            first = f"first document {self.ids[1][without[0][1]]!r} of query {self.ids[0][without[0][0]]!r}"
            hint = "score the documents that are trained on, or set unscored to leave_out"
            raise InputError(f"{self.where}: {len(without)} pairs have no score, {first}; {hint}", option="labels")

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row."""
        one = self.rows.draw(epoch, row)
        docs, scores = self.scores.of(one.query_row)
        scored = np.isin(one.doc_rows, docs)
        if not scored.all():
            self.check([(one.query_row, one.doc_rows)])
            if not scored.any():
                scored = np.arange(len(scored)) == 0  # a list has a document; alone it teaches nothing
        kept = one.doc_rows[scored]
        distances = None if one.distances is None else one.distances[scored]
        return one._replace(doc_rows=kept, labels=grades_of(kept, docs, scores), distances=distances)
