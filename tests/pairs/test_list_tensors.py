"""What the losses share over lists: shapes, padding, margins, which rows teach something."""

import math

import pytest
import torch

from ltr.pairs.list_tensors import (
    as_margin,
    clean_margin,
    masked_log_softmax,
    prepare_lists,
    prepare_types,
    relevant_and_not,
    two_labels,
)

NAN = float("nan")


def test_padding_is_filled_and_a_nan_label_makes_its_score_nan():
    scores = torch.tensor([[1.0, NAN, 3.0]])
    labels = torch.tensor([[1.0, 5.0, NAN]])
    mask = torch.tensor([[True, False, True]])
    filled, filled_labels, _ = prepare_lists(scores, labels, mask)
    assert filled[0, :2].tolist() == [1.0, 0.0] and filled[0, 2].isnan()
    assert filled_labels[0, :2].tolist() == [1.0, 0.0]
    assert prepare_lists(scores, labels, None)[2].tolist() == [[True, True, True]]


def test_rows_without_columns_are_rows_of_padding():
    scores, labels, mask = prepare_types(torch.zeros(2, 0), torch.zeros(2, 0), None)
    assert scores.shape == labels.shape == (2, 1)
    assert mask.tolist() == [[False], [False]]
    for shape in [(2, 1), (2, 0), (1, 0), (2, 0, 0)]:
        assert as_margin(torch.zeros(shape), scores).shape[:2] == (2, 1)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"got \(2, 3\), \(2, 4\) and None. One row is one query"):
        prepare_types(torch.zeros(2, 3), torch.zeros(2, 4), None)
    mask = torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"got \(2, 3\), \(2, 3\) and \(1, 3\)"):
        prepare_types(torch.zeros(2, 3), torch.zeros(2, 3), mask)
    with pytest.raises(ValueError, match="scores must be floating"):
        prepare_types(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), None)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), (2, 1)), ((1, 1), (2, 1)), ((2, 3), (2, 3)), ((1, 3, 3), (2, 3, 3))],
)
def test_margins_of_every_shape(shape, expected):
    assert as_margin(torch.zeros(shape), torch.zeros(2, 3)).shape == expected


@pytest.mark.parametrize("shape", [(3,), (2, 2), (3, 3), (2, 1, 3), (2, 3, 3, 3)])
def test_margins_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"a margin for scores \[B=2, N=3\] must be"):
        as_margin(torch.zeros(shape), torch.zeros(2, 3))


def test_a_margin_is_cleaned_where_it_belongs_to_no_pair():
    """The padding, and the document of the highest label, are never the less relevant one."""
    margin = torch.tensor([[NAN, 2.0, 3.0, NAN]])
    labels = torch.tensor([[2.0, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert clean_margin(margin, labels, mask).tolist() == [[0.0, 2.0, 3.0, 0.0]]


def test_rows_with_something_to_learn_by_hand():
    """Two labels, one label, one label and padding, a NaN, no document."""
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, NAN], [1.0, 0.0]])
    mask = torch.tensor([[True, True], [True, True], [True, False], [True, True], [False, False]])
    assert two_labels(labels, mask).tolist() == [True, False, False, True, False]
    assert two_labels(labels, None).tolist() == [True, False, True, True, True]
    relevant, irrelevant, has_both = relevant_and_not(labels, mask)
    assert relevant[0].tolist() == [True, False] and irrelevant[0].tolist() == [False, True]
    assert relevant[3, 1] and irrelevant[3, 1]
    assert has_both.tolist() == [True, False, False, True, False]


def test_the_softmax_leaves_the_padding_out():
    """Scores (log 1, log 3) and padding: probabilities 1/4, 3/4 and 0. All of padding: finite."""
    scores = torch.tensor([[0.0, math.log(3), 9.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    log_p = masked_log_softmax(scores, mask)
    torch.testing.assert_close(log_p[0].exp(), torch.tensor([0.25, 0.75, 0.0]))
    assert log_p.isfinite().all()
