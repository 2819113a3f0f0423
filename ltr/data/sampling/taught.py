"""Rows whose labels are the scores of a teacher."""

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
        """The scores that become labels, on the scale that was asked for; None where labels are
        grades.
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
        without = [
            (query, doc)
            for query, docs in drawn
            for doc in docs[~np.isin(docs, self.scores.of(query)[0])].tolist()
        ]
        if without:
            query, doc = without[0]
            first = f"first document {self.ids[1][doc]!r} of query {self.ids[0][query]!r}"
            hint = "score the documents that are trained on, or set labels.unscored to leave_out"
            raise InputError(
                f"{self.where}: {len(without)} pairs have no score, {first}; {hint}",
                option="labels.scores",
            )

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row."""
        one = self.rows.draw(epoch, row)
        docs, scores = self.scores.of(one.query_row)
        scored = np.isin(one.doc_rows, docs)
        if not scored.all():
            self.check([(one.query_row, one.doc_rows)])
            if not scored.any():
                # A list can't be empty, so the first document stays. A list of one document gives
                # no gradient, whatever its label.
                scored = np.arange(len(scored)) == 0
        kept = one.doc_rows[scored]
        distances = None if one.distances is None else one.distances[scored]
        return one._replace(
            doc_rows=kept, labels=grades_of(kept, docs, scores), distances=distances
        )
