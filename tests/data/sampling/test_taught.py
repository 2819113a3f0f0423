"""Scores of a teacher as labels: documents without one, and the scale of the others."""

from pathlib import Path

import numpy as np
import pytest

from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.taught import Labels, TaughtRows, Unscored
from ltr.data.scores import TeacherScores
from ltr.errors import InputError

SCORES = QueryLists.from_rows([0, 0], [9, 7], [2.5, -1.0])


class FixedRows:
    """One row, whose documents have their places as distances."""

    def __init__(self, docs: list[int]) -> None:
        places = np.arange(len(docs), dtype=np.float32)
        self.list = LabelledList(0, np.array(docs), np.zeros(len(docs), np.float32), places)

    def __len__(self) -> int:
        return 1

    def draw(self, epoch: int, row: int) -> LabelledList:
        return self.list


def taught_rows(docs: list[int], unscored: Unscored) -> TaughtRows:
    return TaughtRows(FixedRows(docs), SCORES, unscored, (["q"], list("0123456789")), "here")


def test_a_document_without_a_score_is_left_out_with_its_distance():
    drawn = taught_rows([7, 3, 9], "leave_out").draw(0, 0)
    assert drawn.doc_rows.tolist() == [7, 9]
    assert drawn.labels.tolist() == [-1.0, 2.5]
    assert drawn.distances.tolist() == [0.0, 2.0]


def test_a_list_without_any_score_keeps_its_first_document():
    drawn = taught_rows([3, 4], "leave_out").draw(0, 0)
    assert drawn.doc_rows.tolist() == [3], "a list alone teaches nothing"


def test_a_document_without_a_score_is_refused_by_name():
    with pytest.raises(
        InputError, match="here: 1 pairs have no score, first document '3' of query 'q'"
    ):
        taught_rows([7, 3, 9], "refuse").draw(0, 0)


def test_all_documents_without_a_score_are_counted_before_training():
    rows = taught_rows([7], "refuse")
    rows.check([(0, np.array([7, 9]))])
    with pytest.raises(InputError, match="3 pairs have no score, first document '1' of query"):
        rows.check([(0, np.array([7, 1, 2])), (0, np.array([3]))])
    taught_rows([7], "leave_out").check([(0, np.array([1]))])


@pytest.fixture
def collection(collection_folder: Path) -> Collection:
    return open_collection(str(collection_folder))


@pytest.mark.parametrize(
    ("values", "deviation", "labels"),
    [
        # Deviations within the lists 1 and 3, so 2 on average: twice that is 4.
        ([1, 3, 0, 6], 4.0, [2, 6, 0, 12]),
        ([1, 3, 0, 6], None, [1, 3, 0, 6]),
        # Equal scores have no deviation that could be brought to another.
        ([1, 1, 2, 2], 4.0, [1, 1, 2, 2]),
    ],
)
def test_scores_are_brought_to_a_deviation(tmp_path, collection, values, deviation, labels):
    lists = QueryLists.from_rows([0, 0, 1, 1], [0, 1, 0, 1], values)
    TeacherScores(lists, {}).save(tmp_path / "scores", collection)
    scores = Labels(scores=str(tmp_path / "scores"), deviation=deviation).open(collection)
    assert scores.values.tolist() == labels


def test_grades_are_the_labels_unless_scores_are_given(collection):
    assert Labels().open(collection) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": ""}, "scores must be a folder that 'ltr score' has written"),
        ({"unscored": "ignore"}, "labels.unscored"),
        ({"deviation": 0.0}, "deviation must be finite and above 0"),
        ({"deviation": float("inf")}, "deviation must be finite and above 0"),
    ],
)
def test_values_that_no_label_can_have(options, message):
    with pytest.raises(InputError, match=message):
        Labels(**options)
