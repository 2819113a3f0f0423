"""Choices of pairs: by hand, equal to the names that stand for them, and one of the user's own."""

import pytest
import torch

from ltr.losses import LambdaRankLoss, MarginRankingLoss, RankNetLoss
from ltr.pairs import blocks
from ltr.pairs.choices import Adjacent, Hardest, PairChoice, SemiHard

NAMED = {"hardest": Hardest(), "semi-hard": SemiHard(), "adjacent": Adjacent()}


class WorstOfTheBest(PairChoice):
    """Each document of the highest label against the one with the highest score below it."""

    def choose(self, scores, labels, mask):
        highest = labels.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
        lower = mask & (labels < highest)
        hardest = scores.masked_fill(~lower, -torch.inf).argmax(dim=1)
        is_hardest = torch.nn.functional.one_hot(hardest, labels.shape[1]).bool()
        return (labels == highest).unsqueeze(2) & is_hardest.unsqueeze(1)


@pytest.mark.parametrize(("name", "pairs"), [
    ("hardest", [(3, 1)]),  # 0.1 - 0.9 is the least gap
    # Below 0.8 the highest is 2, below 0.6 it is 3; below label 1 there is only 1, which is above it.
    ("semi-hard", [(0, 2), (2, 3), (3, 1)]),
    ("adjacent", [(0, 2), (2, 3), (3, 1)]),
])  # fmt: skip
def test_a_choice_by_hand(name, pairs):
    """Labels 3, 0, 2, 1 with scores 0.8, 0.9, 0.6, 0.1."""
    scores = torch.tensor([[0.8, 0.9, 0.6, 0.1]])
    labels = torch.tensor([[3.0, 0.0, 2.0, 1.0]])
    chosen = NAMED[name].pairs(scores, labels, torch.ones(1, 4, dtype=torch.bool))
    assert [tuple(place) for place in chosen[0].nonzero().tolist()] == pairs


@pytest.mark.parametrize("name", list(NAMED))
@pytest.mark.parametrize("kind", [MarginRankingLoss, RankNetLoss, LambdaRankLoss])
def test_the_names_stand_for_the_classes(name, kind):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(6, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 4, (6, 9), generator=generator).double()
    mask = torch.rand(6, 9, generator=generator) < 0.8
    values = []
    gradients = []
    for pairs in (name, NAMED[name]):
        value = kind(pairs=pairs, reduction="none")(scores, labels, mask)
        values.append(value)
        gradients.append(torch.autograd.grad(value.sum(), scores)[0])
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)
    assert values[0].abs().sum() > 0


@pytest.mark.parametrize("kind", [MarginRankingLoss, LambdaRankLoss])
def test_long_lists_in_blocks_are_chosen_from_alike(kind, monkeypatch):
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (3, 40), generator=generator).double()
    values = []
    for block in (1 << 16, 50):
        monkeypatch.setitem(blocks.BLOCK, "cpu", block)
        values.append(kind(pairs=WorstOfTheBest(), reduction="none")(scores, labels))
    torch.testing.assert_close(*values)


class Everything(PairChoice):
    """True also where there is no pair."""

    def choose(self, scores, labels, mask):
        return torch.ones(*labels.shape, labels.shape[1], dtype=torch.bool)


def test_a_choice_that_takes_everything_takes_all_pairs():
    scores = torch.tensor([[1.0, 5.0, 3.0, 4.0]])
    labels = torch.tensor([[2.0, 1.0, 2.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    pairs = Everything().pairs(scores, labels, mask)
    assert pairs[0].nonzero().tolist() == [[0, 1], [2, 1]]
    for kind in (MarginRankingLoss, LambdaRankLoss):
        ours = kind(pairs=Everything())(scores, labels, mask)
        assert ours.item() == pytest.approx(kind()(scores, labels, mask).item())


def test_a_choice_of_your_own_by_hand():
    """Of labels 2, 1, 2, 0 and scores 1, 5, 3, 4 the lower document with the highest score is 1:
    hinges 1 - (1 - 5) and 1 - (3 - 5), whose mean is 4.
    """
    loss = MarginRankingLoss(margin=1.0, pairs=WorstOfTheBest())
    value = loss(torch.tensor([[1.0, 5.0, 3.0, 4.0]]), torch.tensor([[2.0, 1.0, 2.0, 0.0]]))
    assert value.item() == pytest.approx((5 + 3) / 2)
