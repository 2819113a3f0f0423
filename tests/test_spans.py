"""Rows cut into spans."""

import numpy as np
import pytest

from ltr.spans import RowSpans, spans


@pytest.mark.parametrize(("n", "size"), [(0, 3), (1, 3), (3, 3), (10, 3), (9, 1)])
def test_spans_are_the_rows_in_their_order_and_none_is_longer(n, size):
    cut = [list(range(n))[span] for span in spans(n, size)]
    assert [row for part in cut for row in part] == list(range(n))
    assert all(len(part) == size for part in cut[:-1])
    assert all(0 < len(part) <= size for part in cut)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_rows_as_spans_are_the_rows(share):
    """Their places are those in the array of the rows, and other rows have none."""
    rows = np.flatnonzero(np.random.default_rng(0).random(60) < share)
    kept = RowSpans.from_rows(rows)
    assert len(kept) == len(rows)
    places = np.arange(-1, len(rows))
    expected = np.append(rows, -1)[places]  # the place -1 has the row -1
    np.testing.assert_array_equal(kept[places], expected)
    np.testing.assert_array_equal(kept[places[:, None]], expected[:, None])
    place_of_row = {row: place for place, row in enumerate(rows.tolist())}
    found = kept.places(np.arange(-2, 70))
    assert found.tolist() == [place_of_row.get(row, -1) for row in range(-2, 70)]


@pytest.mark.parametrize("cut", [[(3, 5), (5, 7)], [(0, 1), (2, 4), (8, 12)]])
def test_spans_that_touch_stay_apart_and_have_the_same_rows(cut):
    rows = np.concatenate([np.arange(*bounds) for bounds in cut])
    kept = RowSpans(slice(*bounds) for bounds in cut)
    np.testing.assert_array_equal(kept[np.arange(len(rows))], rows)
    np.testing.assert_array_equal(kept.places(rows), np.arange(len(rows)))


@pytest.mark.parametrize("cut", [[(3, 5), (4, 7)], [(5, 6), (1, 2)], [(2, 2)]])
def test_spans_of_rows_ascend(cut):
    with pytest.raises(AssertionError, match="rows ascend"):
        RowSpans(slice(*bounds) for bounds in cut)
