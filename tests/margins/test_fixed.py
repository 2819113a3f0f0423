from ltr.margins import Constant, LabelGap
from tests.margins.lists import lists_of


def test_constant():
    assert Constant(0.25)(lists_of([[1.0, 0.0]])).tolist() == [[0.25, 0.25]]


def test_label_gap_by_hand():
    """y = (2, 0, 1) and half a unit of score per grade; rows are the more relevant documents."""
    margin = LabelGap(0.5)(lists_of([[2.0, 0.0, 1.0]]))
    assert margin.tolist() == [[[0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]]]
