"""What the labels of training lists are: the option ``labels`` of a data module."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.data.sampling.taught import Unscored
from ltr.data.teacher_scores import TeacherScores
from ltr.errors import InputError, local_path, one_of, positive


@dataclass(frozen=True)
class Labels:
    """The options that say what the labels of training lists are: grades, or a teacher's scores.

    Args:
        scores: a folder with the scores of a teacher, written by ``ltr score``, or a file of others
            with ``query-id<TAB>doc-id<TAB>score``, a TREC run, or rows with such columns (JSON
            lines, CSV, Parquet). The loss must take them, and documents of other lists can't be
            negatives. None: the labels are the grades.
        unscored: documents without a score: ``refuse`` them, or ``leave_out``, which shortens the
            list, and leaves out queries without any score.
        deviation: bring the scores to this standard deviation within a list (the mean over the
            lists), for losses that compare them with the student's; None: as they are.
        divide_by: the grades are divided by it where they are labels, as by 5 for ratings from 0 to
            5 of which a loss takes 1 for certain; what is measured keeps them. None: as they are.

    Raises:
        InputError: for a value that is none of these.

    Example:
        >>> of_a_teacher = Labels(scores="runs/scores/wikiqa", unscored="leave_out")
        >>> ratings = Labels(divide_by=5)  # 0 to 5, of which a loss takes 1 for certain
    """

    scores: str | None = None
    unscored: Unscored = "refuse"
    deviation: float | None = None
    divide_by: float | None = None

    def __post_init__(self) -> None:
        if self.scores == "":
            raise InputError(
                "scores must be a folder that 'ltr score' has written, or a file of scores, got ''",
                option="labels.scores",
            )
        if self.scores is not None:
            local_path("labels.scores", self.scores)
        one_of(get_args(Unscored), **{"labels.unscored": self.unscored})
        if self.deviation is not None and not 0 < self.deviation < math.inf:
            raise InputError(
                f"deviation must be finite and above 0, got {self.deviation}",
                option="labels.deviation",
            )
        if self.divide_by is not None:
            positive("labels.divide_by", self.divide_by)
            if self.scores is not None:
                raise InputError(
                    "divide_by is for grades, and labels.scores takes a teacher's scores for labels; leave one out",
                    option="labels.divide_by",
                )

    def of_grades(self, judged: QueryLists) -> QueryLists:
        """The grades of judgements as labels: on the scale that ``divide_by`` asks for."""
        if self.divide_by is None:
            return judged
        return judged._replace(values=(judged.values / self.divide_by).astype(np.float32))

    def open(self, collection: Collection) -> QueryLists | None:
        """The scores that become labels, on the scale that ``deviation`` asks for; None where
        labels are grades.
        """
        if self.scores is None:
            return None
        teacher = TeacherScores.open(Path(self.scores), collection)
        if self.deviation is None or teacher.deviation_in_lists == 0:
            return teacher.lists
        factor = self.deviation / teacher.deviation_in_lists
        values = (teacher.lists.values * factor).astype(np.float32)
        return teacher.lists._replace(values=values)
