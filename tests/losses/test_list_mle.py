import math

import pytest
import torch

from ltr.losses import ListMLELoss, PositionAwareListMLELoss
from tests.losses.by_hand import value


def test_list_mle_by_hand():
    """-log(2 / 6) - log(1 / 4); position-aware with the weights (2^2 - 1, 2^1 - 1) / 3."""
    lists = [math.log(2), 0, math.log(3)], [2, 1, 0]
    assert value(ListMLELoss(), *lists) == pytest.approx(math.log(3) + math.log(4))
    expected = math.log(3) + math.log(4) / 3
    assert value(PositionAwareListMLELoss(), *lists) == pytest.approx(expected)


def test_ties_of_labels_do_not_compete_in_list_mle_by_hand():
    """y = (1, 1, 0), s = (log 2, 0, log 3): each against the last: -log(2 / 5) - log(1 / 4).

    The weights of positions 1 and 2, which are 1 and 1/3, are shared: 2/3 each.
    """
    lists = [math.log(2), 0, math.log(3)], [1, 1, 0]
    expected = math.log(2.5) + math.log(4)
    assert value(ListMLELoss(), *lists) == pytest.approx(expected)
    assert value(PositionAwareListMLELoss(), *lists) == pytest.approx(2 / 3 * expected)


def test_list_mle_equals_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    for n in (2, 5, 9, 60, 300):
        scores = torch.randn(1, n, generator=generator).double()
        labels = torch.randperm(n, generator=generator).double().unsqueeze(0)
        s = scores[0, labels[0].argsort(descending=True)].tolist()
        terms = [-s[r] + math.log(sum(math.exp(x) for x in s[r:])) for r in range(n)]
        # Python's integers do not overflow.
        alpha = [(2 ** (n - r) - 1) / (2 ** (n - 1) - 1) for r in range(1, n + 1)]
        weighted = sum(a * t for a, t in zip(alpha, terms, strict=True))
        for loss, expected in (
            (ListMLELoss(), sum(terms)),
            (PositionAwareListMLELoss(), weighted),
        ):
            assert loss(scores, labels).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", [ListMLELoss, PositionAwareListMLELoss])
def test_scores_near_and_far_take_forms_of_one_value_and_gradient(loss, monkeypatch):
    """Running sums in float64, or of logarithms, which are exact far apart, too."""
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randn(20, 12, generator=generator).double() * 5).requires_grad_()
    labels = torch.randint(0, 4, (20, 12), generator=generator).double()
    mask = torch.rand(20, 12, generator=generator) < 0.8
    found = []
    for far in (1e9, 0.0):
        monkeypatch.setattr("ltr.losses.plackett_luce.FAR", far)
        values = loss(reduction="none")(scores, labels, mask)
        found.append((values, *torch.autograd.grad(values.sum(), scores)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_list_mle_of_scores_that_lie_far_apart():
    """2e4 for the first, against the last; 1e4 for the second."""
    scores = torch.tensor([[-1e4, 0.0, 1e4]], requires_grad=True)
    cost = ListMLELoss()(scores, torch.tensor([[2.0, 1.0, 0.0]]))
    cost.backward()
    assert cost.item() == 3e4 and scores.grad.tolist() == [[-1.0, -1.0, 2.0]]


def test_list_mle_far_from_zero():
    """Around 800, whose exponentials overflow, and around -800: only gaps count."""
    scores = torch.tensor([[2.0, 0.0, 1.0]]).double()
    labels = torch.tensor([[2.0, 1.0, 0.0]]).double()
    expected = ListMLELoss()(scores, labels)
    for far in (800.0, -800.0):
        torch.testing.assert_close(ListMLELoss()(scores + far, labels), expected)


@pytest.mark.parametrize("loss", [ListMLELoss, PositionAwareListMLELoss])
def test_labels_may_be_scores_of_a_teacher_of_any_sign(loss):
    assert loss.takes_teacher_scores
    scores = [0.3, -0.2, 0.9]
    assert value(loss(), scores, [-0.5, -1.2, 3.4]) == value(loss(), scores, [1, 0, 2])
