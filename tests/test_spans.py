"""Rows cut into spans."""

import pytest

from ltr.spans import spans


@pytest.mark.parametrize(("n", "size"), [(0, 3), (1, 3), (3, 3), (10, 3), (9, 1)])
def test_spans_are_the_rows_in_their_order_and_none_is_longer(n, size):
    cut = [list(range(n))[span] for span in spans(n, size)]
    assert [row for part in cut for row in part] == list(range(n))
    assert all(len(part) == size for part in cut[:-1])
    assert all(0 < len(part) <= size for part in cut)
