"""Training on the scores of a teacher: they take the place of the labels that rows have."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import LabelledList, QueryLists, grades_of
from ltr.data.sampling.rows import Rows
from ltr.data.scores import TeacherScores
from ltr.errors import InputError, one_of

Unscored = Literal["refuse", "leave_out"]


@dataclass(frozen=True)
class Labels:
    """What the labels of training lists are.

    Args:
        scores: a folder with the scores of a teacher, written by ``ltr score``. The loss must take
            them, and documents of other lists can't be negatives. None: the labels are the grades.
        unscored: documents without a score: ``refuse`` them, or ``leave_out``, which shortens the
            list.
        deviation: bring the scores to this standard deviation within a list (the mean over the
            lists), for losses that compare them with the student's; None: as they are.

    Raises:
        InputError: for a value that is none of these.
    """

    scores: str | None = None
    unscored: Unscored = "refuse"
    deviation: float | None = None

    def __post_init__(self) -> None:
        if self.scores == "":
            raise InputError(
                "scores must be a folder that 'ltr score' has written, got ''",
                option="labels.scores",
            )
        one_of(get_args(Unscored), **{"labels.unscored": self.unscored})
        if self.deviation is not None and not 0 < self.deviation < math.inf:
            raise InputError(
                f"deviation must be finite and above 0, got {self.deviation}",
                option="labels.deviation",
            )

    def open(self, collection: Collection) -> QueryLists | None:
        """The scores that become labels, on the scale that ``deviation`` asks for; None where
        labels are grades.
        """
        if self.scores is None:
            return None
        teacher = TeacherScores.open(Path(self.scores), collection)
        if self.deviation is None or teacher.deviation == 0:
            return teacher.lists
        factor = self.deviation / teacher.deviation
        values = (teacher.lists.values * factor).astype(np.float32)
        return teacher.lists._replace(values=values)


@dataclass(eq=False)
class TaughtRows:
    """Rows of other rows' documents, with the scores of a teacher as labels."""

    rows: Rows  # draw the documents
    scores: QueryLists
    unscored: Unscored  # a document without a score is refused, or left out of its list
    ids: tuple[Sequence[str], Sequence[str]]  # of queries and of documents, for errors
    where: str  # the split, for errors

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, drawn: Iterable[tuple[int, np.ndarray]]) -> None:
        """Check that all documents have a score; with ``leave_out`` they need none.

        Args:
            drawn: queries with the documents that may be drawn, by row.

        Raises:
            InputError: if not; it counts the documents without a score and names the first.
        """
        if self.unscored == "leave_out":
            return
        unscored_pairs: list[tuple[int, int]] = []
        for query_row, doc_rows in drawn:
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
        """The list of a row, with scores as labels."""
        drawn = self.rows.draw(epoch, row)
        scored_rows, scores = self.scores.of(drawn.query_row)
        kept = np.isin(drawn.doc_rows, scored_rows)
        if not kept.all():
            self.check([(drawn.query_row, drawn.doc_rows)])
            if not kept.any():
                # A list can't be empty, so the first document stays. A list of one document gives
                # no gradient, whatever its label.
                kept[0] = True
        doc_rows = drawn.doc_rows[kept]
        labels = grades_of(doc_rows, scored_rows, scores)
        distances = drawn.distances
        if distances is not None:
            distances = distances[kept]
        return drawn._replace(doc_rows=doc_rows, labels=labels, distances=distances)
