import pytest
import torch

from ltr.losses import (
    AdaptiveMarginRankingLoss,
    ListNetLoss,
    MarginRankingLoss,
    RankNetLoss,
    SoftmaxLoss,
    WeightedSum,
)
from tests.losses.by_hand import value


def test_a_weighted_sum_by_hand():
    """Hinges of margin 1 and of margin 2 at gap 0: 3 * 1 + 0.5 * 2."""
    hinges = [MarginRankingLoss(1.0), MarginRankingLoss(2.0)]
    assert value(WeightedSum(hinges, [3.0, 0.5]), [0, 0], [1, 0]) == 4.0
    assert value(WeightedSum(hinges), [0, 0], [1, 0]) == 3.0


def test_a_margin_goes_to_those_that_take_one():
    lists = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), None
    both = WeightedSum([RankNetLoss(), MarginRankingLoss()])
    assert both.takes_margin and not WeightedSum([RankNetLoss(), ListNetLoss()]).takes_margin
    margin = torch.full((1, 2), 7.0)
    torch.testing.assert_close(both(*lists, margin), RankNetLoss()(*lists) + 7.0)


def test_losses_and_weights_must_match():
    with pytest.raises(ValueError, match="one for each, got 1 and 2"):
        WeightedSum([RankNetLoss()], [1.0, 2.0])
    with pytest.raises(ValueError, match="must not be empty"):
        WeightedSum([])


def test_the_margin_asked_for_is_the_largest_of_the_losses_that_weigh():
    """A number, one per less relevant document, and one per pair with rows for the better one."""
    per_document = torch.tensor([[0.0, 0.3]])
    per_pair = torch.tensor([[[0.0, 0.1], [0.2, 0.6]]])
    losses = [RankNetLoss(), MarginRankingLoss(0.5), AdaptiveMarginRankingLoss(k=2.0)]
    both = WeightedSum(losses, [1.0, 0.0, 1.0])
    assert both.asked_margin(None) == 2.0
    torch.testing.assert_close(both.asked_margin(per_document), torch.tensor([[0.0, 0.6]]))
    two = WeightedSum([MarginRankingLoss(), AdaptiveMarginRankingLoss(k=2.0)])
    torch.testing.assert_close(two.asked_margin(per_pair), 2 * per_pair)
    assert WeightedSum([RankNetLoss(), SoftmaxLoss()]).asked_margin(None) is None
    of_no_weight = WeightedSum([MarginRankingLoss(0.5), MarginRankingLoss(9.0)], [1.0, 0.0])
    assert of_no_weight.asked_margin(None) == 0.5


def test_margins_per_document_and_per_pair_meet_in_a_sum():
    """A loss of one's own may ask for a margin per pair."""

    class PerPair(MarginRankingLoss):
        def asked_margin(self, margin):
            return torch.tensor([[[0.0, 0.1], [0.2, 0.6]]])

    found = WeightedSum([PerPair(), MarginRankingLoss()]).asked_margin(torch.tensor([[0.15, 0.3]]))
    torch.testing.assert_close(found, torch.tensor([[[0.15, 0.3], [0.2, 0.6]]]))
