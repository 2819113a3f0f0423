import pytest
import torch

from ltr.losses import MarginRankingLoss, RankNetLoss, SoftmaxLoss, WeightedSum


def test_a_weighted_sum_by_hand():
    """Hinges of margin 1 and of margin 2 at gap 0: 3 * 1 + 0.5 * 2."""
    lists = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    assert WeightedSum([MarginRankingLoss(1.0), MarginRankingLoss(2.0)], [3.0, 0.5])(*lists).item() == 4.0
    assert WeightedSum([MarginRankingLoss(1.0), MarginRankingLoss(2.0)])(*lists).item() == 3.0


def test_a_margin_goes_to_those_that_take_one():
    lists = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), None
    both = WeightedSum([RankNetLoss(), MarginRankingLoss()])
    assert both.takes_margin and not WeightedSum([RankNetLoss(), SoftmaxLoss()]).takes_margin
    margin = torch.full((1, 2), 7.0)
    torch.testing.assert_close(both(*lists, margin), RankNetLoss()(*lists) + 7.0)


def test_losses_and_weights_must_match():
    with pytest.raises(ValueError, match="one for each, got 1 and 2"):
        WeightedSum([RankNetLoss()], [1.0, 2.0])
    with pytest.raises(ValueError, match="must not be empty"):
        WeightedSum([])
