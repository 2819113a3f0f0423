"""The documents of a list that outrank another one, packed, by hand."""

import torch

from ltr.pairs.uppers import find_uppers, pack, sum_below

# Labels 0 0 1 2 1 and padding; and a row of one label, in which nothing outranks anything.
LABELS = torch.tensor([[0.0, 2.0, 1.0, 9.0, 1.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0, 3.0]])
MASK = torch.tensor([[True, True, True, False, True, True], [True] * 6])


def test_chosen_columns_are_packed_to_the_left():
    chosen = torch.tensor([[False, True, True], [False, False, False], [True, False, False]])
    columns, real = pack(chosen)
    assert columns.tolist() == [[1, 2], [0, 0], [0, 0]]
    assert real.tolist() == [[True, True], [False, False], [True, False]]


def test_uppers_by_hand():
    """Columns 2 and 4 of label 1, with two documents below each, then column 1 with four."""
    uppers = find_uppers(LABELS, MASK)
    assert uppers.columns[0].tolist() == [2, 4, 1]
    assert uppers.real.tolist() == [[True, True, True], [False, False, False]]
    assert uppers.first[0].tolist() == [0, 0, 2]
    assert uppers.levels == 2
    assert uppers.lowest[0].tolist() == [True, False, False, False, False, True]
    assert uppers.lowest_label.tolist() == [[0.0], [3.0]]
    assert uppers.n_below().tolist() == [[2, 2, 4], [0, 0, 0]]
    assert uppers.label_below()[0].tolist() == [0.0, 0.0, 1.0]
    assert uppers.label_below()[1].isnan().all()


def test_pairs_are_counted_by_hand():
    """2 + 2 + 4 in all. Adjacent: 2 + 2 of labels 1 and 0, and 2 of labels 2 and 1."""
    uppers = find_uppers(LABELS, MASK)
    assert uppers.n_pairs().tolist() == [8, 0]
    assert uppers.n_pairs(adjacent=True).tolist() == [6, 0]


def test_sums_below_by_hand():
    """Below label 1 are the columns 0 and 5: 1 + 32; below label 2 also 2 and 4: + 4 + 16."""
    x = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]]).expand(2, -1)
    assert sum_below(x, find_uppers(LABELS, MASK))[0].tolist() == [33.0, 33.0, 53.0]
