import math

import pytest
import torch
from torch import nn

from ltr.losses import AdaptiveMarginRankingLoss, MarginRankingLoss, RankNetLoss, margin_ranking_loss, ranknet_loss


def test_hinge_by_hand():
    """One list, s = (1, 3), y = (1, 0), margin 1: max(0, 1 - (1 - 3)) = 3."""
    assert margin_ranking_loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]]), margin=1.0).item() == 3.0


def test_hinge_of_a_graded_list_by_hand():
    """s = (2, 1, 1.5), y = (2, 1, 0), margin 1; pairs 0>1: 1-1 = 0; 0>2: 1-0.5 = 0.5; 1>2: 1+0.5 = 1.5; mean 2/3."""
    loss = margin_ranking_loss(torch.tensor([[2.0, 1.0, 1.5]]), torch.tensor([[2.0, 1.0, 0.0]]))
    assert loss.item() == pytest.approx(2 / 3)


def test_triplet_loss_is_margin_ranking_over_negated_distances():
    torch.manual_seed(0)
    a, p, n = torch.randn(3, 4, 8)
    scores = -torch.stack([(a - p).norm(dim=1), (a - n).norm(dim=1)], dim=1)
    labels = torch.tensor([[1.0, 0.0]]).expand(4, 2)
    ours = margin_ranking_loss(scores, labels, margin=0.5)
    torch.testing.assert_close(ours, nn.TripletMarginLoss(margin=0.5, eps=0)(a, p, n))


def test_a_margin_per_negative_and_one_per_pair():
    """s = (1, 1, 1), y = (1, 0, 0), margins 2 and 4 for the negatives: (2 + 4) / 2 = 3. The positive's own margin is not used."""
    scores, labels = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 0.0]])
    per_negative = torch.tensor([[99.0, 2.0, 4.0]])
    assert MarginRankingLoss()(scores, labels, margin=per_negative).item() == 3.0
    per_pair = torch.full((1, 3, 3), 99.0)
    per_pair[0, 0, 1:] = torch.tensor([2.0, 4.0])  # row: the more relevant document, column: the less relevant one
    assert MarginRankingLoss()(scores, labels, margin=per_pair).item() == 3.0
    with pytest.raises(ValueError, match="a margin for scores"):
        MarginRankingLoss()(scores, labels, margin=torch.ones(5))


def test_adaptive_margin_by_hand():
    """max(0, s- - s+ + k m) = max(0, 0.2 - 1 + 0.5 * 3) = 0.7; without a margin in the batch, k times 1: max(0, -0.3) = 0."""
    scores, labels = torch.tensor([[1.0, 0.2]]), torch.tensor([[1.0, 0.0]])
    loss = AdaptiveMarginRankingLoss(k=0.5)
    assert loss(scores, labels, margin=torch.tensor([[0.0, 3.0]])).item() == pytest.approx(0.7)
    assert loss(scores, labels).item() == 0.0


def test_ranknet_by_hand():
    """sigma 2, gap 0.5: log(1 + exp(-1)); its gradient on the relevant score is -2 / (1 + e)."""
    scores = torch.tensor([[1.5, 1.0]], requires_grad=True)
    loss = ranknet_loss(scores, torch.tensor([[1.0, 0.0]]), sigma=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert scores.grad[0].tolist() == pytest.approx([-2 / (1 + math.e), 2 / (1 + math.e)])


def test_ranknet_is_binary_cross_entropy_on_the_gap():
    torch.manual_seed(0)
    gaps = torch.randn(9, dtype=torch.float64)
    ours = RankNetLoss()(torch.stack([gaps, torch.zeros(9)], dim=1), torch.tensor([[1.0, 0.0]]).expand(9, 2))
    torch.testing.assert_close(ours, nn.BCEWithLogitsLoss()(gaps, torch.ones(9, dtype=torch.float64)))


def test_ranknet_falls_when_sigma_rises_over_a_right_order():
    scores, labels = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    assert ranknet_loss(scores, labels, sigma=2.0) < ranknet_loss(scores, labels, sigma=1.0)
    assert ranknet_loss(scores.flip(1), labels, sigma=2.0) > ranknet_loss(scores.flip(1), labels, sigma=1.0)


def test_reductions():
    """Rows cost 3, 0 (nothing to learn) and 1: none, their sum 4, their mean over the two that count 2."""
    scores = torch.tensor([[1.0, 3.0], [1.0, 1.0], [1.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    assert margin_ranking_loss(scores, labels, reduction="none").tolist() == [3.0, 0.0, 1.0]
    assert margin_ranking_loss(scores, labels, reduction="sum").item() == 4.0
    assert margin_ranking_loss(scores, labels).item() == 2.0
    with pytest.raises(ValueError, match="reduction must be"):
        margin_ranking_loss(scores, labels, reduction="max")
