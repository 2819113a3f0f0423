"""Negatives that are audited."""

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.mining.mined_negatives import MinedNegatives


@pytest.fixture(scope="module")
def collection(collection_folder):
    return open_collection(str(collection_folder))


def negatives_of(collection, ids: dict[int, list[int]]) -> MinedNegatives:
    """Of some queries, by row, at distances 0, 1, 2 …"""
    width = max(map(len, ids.values()))
    distances = np.arange(width, dtype=np.float32)
    rows = np.array([[*row, *[-1] * (width - len(row))] for row in ids.values()])
    distances = np.broadcast_to(distances, rows.shape)
    return MinedNegatives.from_matrix(np.array(list(ids)), rows, distances, {"key": "of the test"})
