"""The likelihood of an order, and its gradient, against the plain sum."""

import pytest
import torch

from ltr.losses.plackett_luce import PlackettLuce, sort_by_label


def test_the_order_of_the_labels_by_hand():
    """Columns 1 and 4 have nothing below, column 3 has two, column 0 three."""
    labels = torch.tensor([[2.0, 0.0, 7.0, 1.0, 0.0]])
    _, order = sort_by_label(torch.zeros(1, 5), labels, labels < 7)
    assert order.columns.tolist() == [[1, 4, 3, 0, 2]]
    assert order.n_below.tolist() == [[0, 0, 2, 3, 5]]
    assert order.has_lower.tolist() == [[False, False, True, True, False]]
    _, whole = sort_by_label(torch.zeros(1, 5), labels, None)
    assert whole.n_below.tolist() == [[0, 0, 2, 3, 4]]


@pytest.mark.parametrize("spread", [1.0, 400.0])  # by exponentials, by their logarithms
def test_value_and_gradient_equal_those_of_the_plain_sum(spread):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 7, generator=generator, dtype=torch.float64) * spread
    labels = torch.randint(0, 4, (3, 7), generator=generator).double()
    scores.requires_grad_()
    _, order = sort_by_label(scores, labels, None)
    weight = torch.rand(3, 7, generator=generator, dtype=torch.float64) * order.has_lower
    ours = PlackettLuce.apply(scores, order.columns, order.n_below, weight)
    rows = []
    for row in range(3):
        value = scores.new_zeros(())
        for place, i in enumerate(order.columns[row].tolist()):
            below = scores[row][labels[row] < labels[row, i]]
            if len(below):
                log_sum = below.logsumexp(dim=0)
                log_probability = -torch.logaddexp(log_sum - scores[row, i], scores.new_zeros(()))
                value = value - weight[row, place] * log_probability
        rows.append(value)
    expected = torch.stack(rows)
    torch.testing.assert_close(ours, expected)
    factors = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    (our_gradient,) = torch.autograd.grad(ours, scores, factors)
    (gradient,) = torch.autograd.grad(expected, scores, factors)
    torch.testing.assert_close(our_gradient, gradient)
