import pytest
import torch

from ltr.losses import (
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    BatchSemiHardTripletLoss,
    MarginRankingLoss,
)
from tests.losses.by_hand import value

# Two anchors with margin 1. The first: positives at -1 and -2, negatives at -1.5 and -9; hinges
# 0.5, 0, 1.5, 0. The second: one positive at -1, negatives at -5, -1.25, -0.5; hinges 0, 0.75, 1.5.
SCORES = torch.tensor([[-1.0, -2.0, -1.5, -9.0], [-1.0, -5.0, -1.25, -0.5]])
LABELS = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])


def test_batch_all_by_hand():
    """Active: 4.25 over 4 triplets; all: over 7; by row: (2 / 4 + 2.25 / 3) / 2."""
    assert BatchAllTripletLoss()(SCORES, LABELS).item() == 4.25 / 4
    assert BatchAllTripletLoss(average="all")(SCORES, LABELS).item() == pytest.approx(4.25 / 7)
    assert BatchAllTripletLoss(average="row")(SCORES, LABELS).item() == (0.5 + 0.75) / 2
    with pytest.raises(ValueError, match="average must be one of active, all, row, got 'some'"):
        BatchAllTripletLoss(average="some")


def test_batch_all_gradient_by_hand():
    """Active are in the first row p=0 n=2, p=1 n=2, in the second p=0 with n=2 and n=3."""
    scores = SCORES.clone().requires_grad_()
    BatchAllTripletLoss()(scores, LABELS).backward()
    assert (scores.grad * 4).tolist() == [[-1.0, -1.0, 2.0, 0.0], [-2.0, 0.0, 1.0, 1.0]]


def test_a_triplet_that_just_meets_its_margin_is_not_active():
    """Gaps 1 and 0.5 under margin 1: only the second counts, so the mean over the active is 0.5."""
    assert value(BatchAllTripletLoss(), [2, 1, 1.5], [1, 0, 0]) == 0.5


def test_shares_of_rows_sum_up_to_the_mean_of_the_batch():
    shares = BatchAllTripletLoss(reduction="none")(SCORES, LABELS)
    assert shares.tolist() == [2 / 4, 2.25 / 4]


def test_batch_hard_by_hand():
    """First: 1 - (-2 + 1.5) = 1.5; second: 1 - (-1 + 0.5) = 1.5. Soft: log(1 + e^0.5) for both."""
    assert BatchHardTripletLoss()(SCORES, LABELS).item() == 1.5
    soft = torch.nn.functional.softplus(torch.tensor(0.5)).item()
    assert BatchHardTripletLoss(soft=True)(SCORES, LABELS).item() == pytest.approx(soft)


def test_batch_semi_hard_by_hand():
    """First: p=-1, n=-1.5: 0.5; p=-2, n=-9: 0. Second: n=-1.25: 0.75. (0.25 + 0.75) / 2."""
    assert BatchSemiHardTripletLoss()(SCORES, LABELS).item() == 0.5
    # No negative is below the positive: the easiest, -0.5, is taken: 1 - (-1 + 0.5) = 1.5.
    assert value(BatchSemiHardTripletLoss(), [-1, -0.5, -0.25], [1, 0, 0]) == 1.5
    # A negative just as far as the positive is not semi-hard: -2 is taken, 1 - (-1 + 2) = 0.
    assert value(BatchSemiHardTripletLoss(), [-1, -1, -2], [1, 0, 0]) == 0.0


def test_batch_hard_is_at_least_batch_all_for_every_anchor():
    torch.manual_seed(0)
    scores = torch.randn(30, 30, dtype=torch.float64)
    labels = (torch.arange(30).unsqueeze(1) // 5 == torch.arange(30) // 5).double()
    mask = ~torch.eye(30, dtype=torch.bool)
    hard = BatchHardTripletLoss(reduction="none")(scores, labels, mask)
    row = MarginRankingLoss(reduction="none")(scores, labels, mask)
    assert (hard >= row).all() and (hard > row).any()
