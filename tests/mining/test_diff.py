"""Two folders of negatives side by side, by hand."""

import numpy as np
import pytest

from ltr.mining.diff import overlap_at, pairs_of_both
from ltr.mining.mined_negatives import MinedNegatives

# Query 0: first (1, 2, 3), second (2, 1, 4). Query 1: first (5,), second (6, 5). Query 2 only in
# the first, 3 only in the second.
FIRST = MinedNegatives.from_matrix(
    np.arange(4),
    np.array([[1, 2, 3], [5, -1, -1], [7, 8, -1], [-1, -1, -1]]),
    np.array([[0.1, 0.2, 0.3], [0.9, 0, 0], [0.1, 0.2, 0], [0, 0, 0]], np.float32),
    {"distance": "euclidean", "mean_distance": {"relevant": 0.5}},
)
SECOND = MinedNegatives.from_matrix(
    np.arange(4),
    np.array([[2, 1, 4], [6, 5, -1], [-1, -1, -1], [9, -1, -1]]),
    np.array([[0.1, 0.9, 1.0], [0.2, 0.4, 0], [0, 0, 0], [0.1, 0, 0]], np.float32),
    {"distance": "euclidean", "mean_distance": {"relevant": 0.8}},
)


def means(first, second, k=np.inf):
    return tuple(overlap_at(pairs_of_both(first, second), k).mean())


def test_overlap_by_hand():
    """Of query 0 the first two are 1 and 2; of query 1 the first are 5 and 6."""
    assert means(FIRST, SECOND, 1) == (0.0, 0.0)
    assert means(FIRST, SECOND, 2) == pytest.approx((1, (1 + 1 / 2) / 2))
    assert means(FIRST, SECOND) == pytest.approx(((2 / 3 + 1) / 2, (2 / 4 + 1 / 2) / 2))
    assert means(SECOND, FIRST) == pytest.approx(((2 / 3 + 1 / 2) / 2, 1 / 2))
    assert means(FIRST, FIRST) == (1.0, 1.0)
    assert overlap_at(pairs_of_both(FIRST, SECOND)).index.tolist() == [0, 1]


def test_ranks_by_hand():
    """1 moves from 1 to 2, 2 from 2 to 1, 5 from 1 to 2."""
    pairs = pairs_of_both(FIRST, SECOND).fillna(0)
    found = pairs[["query", "doc", "rank_1", "rank_2"]].sort_values(["query", "doc"])
    assert found.values.tolist() == [
        [0, 1, 1, 2],
        [0, 2, 2, 1],
        [0, 3, 3, 0],
        [0, 4, 0, 3],
        [1, 5, 1, 2],
        [1, 6, 0, 1],
        [2, 7, 1, 0],
        [2, 8, 2, 0],
        [3, 9, 0, 1],
    ]


def suspected(pairs):
    return [(one.query, one.doc) for one in pairs[pairs["suspected"]].itertuples()]


def test_suspects_are_nearer_than_relevant_documents_in_every_folder_that_knows():
    """(0, 1) is at 0.1 / 0.5 and 0.9 / 0.8, (0, 2) at 0.2 / 0.5 and 0.1 / 0.8, (1, 5) at 0.9 / 0.5
    and 0.4 / 0.8.
    """
    pairs = pairs_of_both(FIRST, SECOND)
    assert suspected(pairs) == [(0, 2)]
    assert pairs[pairs["suspected"]]["near"].tolist() == [pytest.approx(0.4)]
    unknown = SECOND._replace(lists=SECOND.lists.without_values())
    pairs = pairs_of_both(FIRST, unknown)
    assert suspected(pairs) == [(0, 1), (0, 2)] and pairs["distance_2"].isna().all()
    assert suspected(pairs_of_both(unknown, unknown)) == []
    manifest = {"distance": "euclidean", "mean_distance": {"relevant": 0.0}}
    nothing = SECOND._replace(manifest=manifest)
    assert pairs_of_both(nothing, nothing)["near"].isna().all(), "0 is no distance to compare with"
