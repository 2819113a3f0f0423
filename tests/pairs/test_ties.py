"""Pairs of documents of one label."""

import torch

from ltr.pairs import blocks
from ltr.pairs.ties import tie_sums


def distance(s_i, s_j):
    return (s_i - s_j).abs()


def test_ties_by_hand(monkeypatch):
    """Labels 1, 0, 1, 1 and padding of label 1: the ties of the scores 1, 3 and 7 are 2, 6 and 4
    apart; of labels -1 and -1, 0.5; all labels differ. Also in blocks of one document, and row by
    row.
    """
    nan = torch.nan
    scores = torch.tensor([[1.0, 9.0, 3.0, 7.0, nan], [0.5, 1.0, nan, 4.0, nan], [1.0, 2, 3, 4, 5]])
    labels = torch.tensor([[1.0, 0, 1, 1, 1], [-1.0, -1, -1, 0, nan], [0.0, 1, 2, 3, 4]])
    mask = torch.tensor([[True] * 4 + [False], [True, True, False, True, False], [True] * 5])
    for block in (1 << 16, 15, 1):
        monkeypatch.setitem(blocks.BLOCK, "cpu", block)
        sum_b, n_b = tie_sums(scores, labels, mask, distance)
        assert sum_b.tolist() == [12.0, 0.5, 0.0]
        assert n_b.tolist() == [3, 1, 0]
    assert tie_sums(scores[2:], labels[2:], None, distance)[1].tolist() == [0]


def test_long_lists_take_the_memory_of_a_block(monkeypatch):
    """Value and gradient of blocks are those of all pairs at once."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 50, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 3, (2, 50), generator=generator).double()
    is_tie = (labels.unsqueeze(2) == labels.unsqueeze(1)).triu(1)
    every = distance(scores.unsqueeze(2), scores.unsqueeze(1)) * is_tie
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = torch.autograd.grad(every.sum(dim=(1, 2)) @ weights, scores)
    monkeypatch.setitem(blocks.BLOCK, "cpu", 300)
    sum_b, n_b = tie_sums(scores, labels, None, distance)
    torch.testing.assert_close(sum_b, every.sum(dim=(1, 2)))
    assert n_b.tolist() == is_tie.sum(dim=(1, 2)).tolist()
    ours = torch.autograd.grad(sum_b @ weights, scores)
    torch.testing.assert_close(ours, expected)
