import math

import pytest
import torch
from torch.nn import functional as F

from ltr.losses import SoftmaxLoss, softmax_loss


def test_one_relevant_document_is_softmax_cross_entropy():
    torch.manual_seed(0)
    scores = torch.randn(6, 5, dtype=torch.float64)
    labels = F.one_hot(torch.arange(6) % 5, 5).double()
    torch.testing.assert_close(softmax_loss(scores, labels), F.cross_entropy(scores, torch.arange(6) % 5))
    torch.testing.assert_close(softmax_loss(scores, labels, temperature=0.2), F.cross_entropy(scores / 0.2, torch.arange(6) % 5))


def test_relevant_documents_do_not_compete_by_hand():
    """s = (0, log 2, 0), y = (1, 2, 0): -log(1/2) and -log(2/3), mean (log 2 + log 1.5) / 2."""
    loss = SoftmaxLoss()(torch.tensor([[0.0, math.log(2), 0.0]]), torch.tensor([[1.0, 2.0, 0.0]]))
    assert loss.item() == pytest.approx((math.log(2) + math.log(1.5)) / 2)


def test_a_lower_temperature_looks_at_the_hardest_negative():
    """At temperature -> 0 only the best negative counts: gap 1 to it, so the loss tends to 0 from above."""
    scores, labels = torch.tensor([[2.0, 1.0, -5.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert softmax_loss(scores, labels, temperature=0.1).item() == pytest.approx(math.log1p(math.exp(-10)), rel=1e-3)
