"""Scores of a teacher as labels: documents without one, and the scale of the others."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ltr.data.collate import padded_lists
from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.taught import TaughtRows, Unscored
from ltr.data.teacher_scores import TeacherScores
from ltr.datamodules import Labels
from ltr.losses import MarginMSELoss, MSELoss, WeightedSum
from tests.world.refusals import refused

SCORES = QueryLists.from_rows([0, 0], [9, 7], [2.5, -1.0])


class FixedRows:
    """A row for each query, all of the same documents, which have their places as distances."""

    def __init__(self, docs: list[int], queries: tuple[int, ...]) -> None:
        self.docs = np.array(docs)
        self.query_rows = np.array(queries)

    def __len__(self) -> int:
        return len(self.query_rows)

    def draw(self, epoch: int, row: int) -> LabelledList:
        places = np.arange(len(self.docs), dtype=np.float32)
        return LabelledList(int(self.query_rows[row]), self.docs, np.zeros_like(places), places)


def taught_rows(docs: list[int], unscored: Unscored, queries: tuple[int, ...] = (0,)) -> TaughtRows:
    rows = FixedRows(docs, queries)
    return TaughtRows(rows, SCORES, unscored, (["q"], list("0123456789")), "here")


def test_a_document_without_a_score_is_left_out_with_its_distance():
    """A list without any becomes the best document of the query."""
    drawn = taught_rows([7, 3, 9], "leave_out").draw(0, 0)
    assert drawn.doc_rows.tolist() == [7, 9] and drawn.labels.tolist() == [-1.0, 2.5]
    assert drawn.distances.tolist() == [0.0, 2.0]
    best = taught_rows([3, 4], "leave_out").draw(0, 0)
    assert best.doc_rows.tolist() == [9] and best.labels.tolist() == [2.5]
    assert best.distances is None


def test_queries_without_any_score_are_left_out(caplog):
    rows = taught_rows([7, 9], "leave_out", queries=(5, 0, 6, 0))
    assert rows.query_rows.tolist() == [0, 0] and len(rows) == 2
    assert [rows.draw(0, row).query_row for row in range(2)] == [0, 0]
    with caplog.at_level("INFO"):
        rows.log_left_out()
    assert "here: 2 of 4 rows are left out" in caplog.text
    with refused("here: no query has a document with a score"):
        taught_rows([7], "leave_out", queries=(5, 6))


LOSSES = {"alone": MSELoss(), "in a sum": WeightedSum([MarginMSELoss(), MSELoss()])}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("docs", [[3, 4], [7, 3], [9, 7]])
def test_training_moves_no_document_without_a_score(docs, loss):
    """MSELoss learns from a single document: a label that nobody gave would be learnt."""
    rows = taught_rows(docs, "leave_out", queries=(0, 5))
    scores = torch.full((6, 10), 4.0, requires_grad=True)  # of each query and document
    optimizer = torch.optim.SGD([scores], lr=0.1)
    for epoch in range(100):
        batch = padded_lists([rows.draw(epoch, row) for row in range(len(rows))])
        predicted = scores[batch.query_rows[:, None], batch.doc_rows]
        optimizer.zero_grad()
        LOSSES[loss](predicted, batch.labels, batch.mask).backward()
        optimizer.step()
    learnt = {9: 2.5, 7: -1.0}
    for doc in range(10):
        got = scores[0, doc].item()
        assert got == pytest.approx(4.0) or got == pytest.approx(learnt[doc], abs=1e-3)
    assert (scores[0] != 4.0).any() and (scores[1:] == 4.0).all()


def test_documents_without_a_score_are_refused_by_name_and_counted_before_training():
    with refused("here: 1 pairs have no score, first document '3' of query 'q'"):
        taught_rows([7, 3, 9], "refuse").draw(0, 0)
    rows = taught_rows([7], "refuse")
    rows.check([(0, np.array([7, 9]))])
    with refused("3 pairs have no score, first document '1' of query"):
        rows.check([(0, np.array([7, 1, 2])), (0, np.array([3]))])


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
    with refused(message):
        Labels(**options)
