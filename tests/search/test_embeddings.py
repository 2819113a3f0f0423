"""Embeddings are summed and checked in spans."""

import numpy as np
import pytest

from ltr.errors import InputError
from ltr.search import embeddings
from ltr.search.embeddings import checked_sum


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(embeddings, "DOCS_AT_ONCE", 2)


def test_the_sum_over_several_spans_is_in_double_precision():
    """float32 would lose the ones: 2^24 + 1 = 2^24."""
    docs = np.array([[2**24, 1], [1, 2], [1, 3]], np.float32)
    total = checked_sum(docs, "embeddings")
    assert total.tolist() == [2**24 + 2, 6] and total.dtype == np.float64


@pytest.mark.parametrize(("row_numbers", "named"), [(None, 2), (np.array([4, 6, 9]), 9)])
def test_the_first_bad_row_is_named_by_its_number(row_numbers, named):
    docs = np.array([[0, 0], [0, 0], [0, np.nan]], np.float32)
    with pytest.raises(InputError, match=f"x must be finite, got NaN or infinity in row {named};"):
        checked_sum(docs, "x", row_numbers)
