"""Two folders of negatives side by side, by hand."""

import numpy as np
import pytest

from ltr.mining.compare import SideBySide
from ltr.mining.negatives import MinedNegatives

# Query 0: first (1, 2, 3), second (2, 1, 4). Query 1: first (5,), second (6, 5). Query 2 only in the first, 3 only in the second.
FIRST = MinedNegatives(
    np.array([[1, 2, 3], [5, -1, -1], [7, 8, -1], [-1, -1, -1]]),
    np.array([[0.1, 0.2, 0.3], [0.9, 0, 0], [0.1, 0.2, 0], [0, 0, 0]], np.float32),
    {"distance": "euclidean", "mean_distance": {"relevant": 0.5}},
)
SECOND = MinedNegatives(
    np.array([[2, 1, 4], [6, 5, -1], [-1, -1, -1], [9, -1, -1]]),
    np.array([[0.1, 0.9, 1.0], [0.2, 0.4, 0], [0, 0, 0], [0.1, 0, 0]], np.float32),
    {"distance": "euclidean", "mean_distance": {"relevant": 0.8}},
)


def test_overlap_by_hand():
    """The first of query 0 are 1 and 2; of query 1 they are 5 and 6: nothing in common. In all: 2 of 3, and 1 of 1."""
    pairs = SideBySide.of(FIRST, SECOND)
    assert pairs.overlap(1) == (0.0, 0.0)
    assert pairs.overlap(2) == (pytest.approx((1 + 1) / 2), pytest.approx((1 + 1 / 2) / 2))
    assert pairs.overlap() == (pytest.approx((2 / 3 + 1) / 2), pytest.approx((2 / 4 + 1 / 2) / 2))
    assert SideBySide.of(SECOND, FIRST).overlap() == (pytest.approx((2 / 3 + 1 / 2) / 2), pytest.approx(1 / 2))
    assert SideBySide.of(FIRST, FIRST).overlap() == (1.0, 1.0)


def test_ranks_by_hand():
    """1 moves from 1 to 2, 2 from 2 to 1, 5 from 1 to 2."""
    pairs = SideBySide.of(FIRST, SECOND)
    places = {(q, d): tuple(r) for q, d, r in zip(*(x.tolist() for x in pairs[:3]), strict=True)}
    assert places == {
        (0, 1): (1, 2),
        (0, 2): (2, 1),
        (0, 3): (3, 0),
        (0, 4): (0, 3),
        (1, 5): (1, 2),
        (1, 6): (0, 1),
        (2, 7): (1, 0),
        (2, 8): (2, 0),
        (3, 9): (0, 1),
    }
    assert pairs.rank_shift() == 1.0 and SideBySide.of(FIRST, FIRST).rank_shift() == 0.0
    assert np.isnan(SideBySide.of(FIRST._replace(ids=FIRST.ids[::-1]), SECOND._replace(ids=SECOND.ids)).rank_shift())


def test_queries_that_changed_come_first():
    second = SECOND._replace(ids=np.array([[2, 1, 3], [6, 5, -1], [-1, -1, -1], [9, -1, -1]]))
    rows, jaccard = SideBySide.of(FIRST, second).changed()
    assert rows.tolist() == [1, 0] and jaccard.tolist() == [0.5, 1.0]


def test_suspects_are_nearer_than_relevant_documents_in_every_folder_that_knows():
    """(0, 1) is at 0.1 / 0.5 and 0.9 / 0.8, (0, 2) at 0.2 / 0.5 and 0.1 / 0.8, (1, 5) at 0.9 / 0.5 and 0.4 / 0.8."""
    pairs = SideBySide.of(FIRST, SECOND)
    assert [(q, d) for q, d, out in zip(pairs.query_rows, pairs.doc_rows, pairs.suspected, strict=True) if out] == [(0, 2)]
    assert pairs.nearness[pairs.suspected].tolist() == [pytest.approx(0.4)]
    unknown = SECOND._replace(manifest={"distance": None})
    pairs = SideBySide.of(FIRST, unknown)
    assert np.flatnonzero(pairs.suspected).tolist() == [0, 1] and np.isnan(pairs.distances[:, 1]).all()
    assert not SideBySide.of(unknown, unknown).suspected.any()
