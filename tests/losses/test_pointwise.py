import math

import pytest
import torch
from torch.nn import functional as F

from ltr.losses import BCELoss, MSELoss
from tests.losses.by_hand import value


def test_bce_by_hand():
    """-log(3/4) and -log(1/4), mean; the first weighed by 4. 0.25 is a probability."""
    s = math.log(3)
    hit = -math.log(3 / 4)
    miss = -math.log(1 / 4)
    assert value(BCELoss(), [s, s], [2, 0]) == pytest.approx((hit + miss) / 2)
    assert value(BCELoss(pos_weight=4.0), [s, s], [2, 0]) == pytest.approx((4 * hit + miss) / 2)
    assert value(BCELoss(), [s], [0.25]) == pytest.approx(0.25 * hit + 0.75 * miss)


def test_mse_by_hand():
    """(1 - 2)^2 and (3 - 0)^2, mean 5."""
    assert value(MSELoss(), [1, 3], [2, 0]) == 5.0


def test_bce_is_that_of_torch_over_the_documents_of_each_list():
    torch.manual_seed(0)
    scores = torch.randn(3, 5, dtype=torch.float64)
    labels = torch.randint(0, 2, (3, 5)).double()
    mask = torch.arange(5) < torch.tensor([[5], [2], [3]])
    weight = torch.tensor(3.0, dtype=torch.float64)
    expected = [
        F.binary_cross_entropy_with_logits(s[m], y[m], pos_weight=weight)
        for s, y, m in zip(scores, labels, mask, strict=True)
    ]
    found = BCELoss(pos_weight=3.0)(scores, labels, mask)
    torch.testing.assert_close(found, torch.stack(expected).mean())


def test_without_a_relevant_document_there_is_still_something_to_learn():
    scores = torch.tensor([[0.0, 1.0]], requires_grad=True)
    BCELoss()(scores, torch.zeros(1, 2)).backward()
    assert (scores.grad > 0).all()
