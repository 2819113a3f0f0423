"""What every loss shares: how one value per row becomes one number."""

import pytest
import torch

from ltr.losses import MarginRankingLoss


def test_reductions():
    """Rows cost 3, 0 (nothing to learn) and 1; their mean is over the two that count."""
    scores = torch.tensor([[1.0, 3.0], [1.0, 1.0], [1.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    assert MarginRankingLoss(reduction="none")(scores, labels).tolist() == [3.0, 0.0, 1.0]
    assert MarginRankingLoss(reduction="sum")(scores, labels).item() == 4.0
    assert MarginRankingLoss()(scores, labels).item() == 2.0
    with pytest.raises(ValueError, match="reduction must be"):
        MarginRankingLoss(reduction="max")(scores, labels)
