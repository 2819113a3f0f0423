"""The definition of the pairwise family, by hand."""

import torch

from ltr.pairs.dense import dense_sums
from ltr.pairs.sorted import hinge

# Labels 2 1 0 and padding: the pairs are (0, 1), (0, 2) and (1, 2), with gaps 1, −1 and −2.
SCORES = torch.tensor([[1.0, 0.0, 2.0, 7.0]])
LABELS = torch.tensor([[2.0, 1.0, 0.0, 9.0]])
MASK = torch.tensor([[True, True, True, False]])


def sums(margin, active=False, chosen=None):
    sum_b, count_b = dense_sums(SCORES, LABELS, MASK, margin, hinge, active, chosen)
    return sum_b.item(), int(count_b.item())


def test_sums_over_all_pairs_by_hand():
    """Hinges of margin 1: 0, 2 and 3."""
    assert sums(1.0) == (5.0, 3)
    assert sums(1.0, active=True) == (5.0, 2)


def test_margins_by_hand():
    """Per document 5 for j = 1 and 1 for j = 2: hinges 4, 2 and 3. Per pair 5 for (0, 1) only, NaN
    below the diagonal: hinges 4, 1 and 2.
    """
    nan = float("nan")
    assert sums(torch.tensor([[nan, 5.0, 1.0, nan]])) == (9.0, 3)
    per_pair = torch.full((1, 4, 4), nan)
    per_pair[0, 0, 1] = 5.0
    per_pair[0, 0, 2] = 0.0
    per_pair[0, 1, 2] = 0.0
    assert sums(per_pair) == (7.0, 3)


def test_chosen_pairs_by_hand():
    """(0, 2) alone; that (2, 0) is chosen too does not count, since it is no pair."""
    chosen = torch.zeros(1, 4, 4, dtype=torch.bool)
    chosen[0, 0, 2] = True
    chosen[0, 2, 0] = True
    assert sums(1.0, chosen=chosen) == (2.0, 1)
