"""The numbers of docs/seeds.md, each by the class that the page names beside it."""

import itertools
import re

import pytest
import torch

from ltr.batch import RankingBatch
from ltr.in_batch.longer_lists import all_against_all
from ltr.losses import BatchAllTripletLoss, MarginRankingLoss, MeanInequalityLoss, RankNetLoss
from ltr.losses.transform import transformed
from ltr.metrics import RankingMetric
from tests.mutations import ROOT

LABELS = [1, 1, 2, 2]
TEXTS = range(4)


def four_texts():
    """Two groups of two, each text ranked against all: labels and mask ``[4, 4]``."""
    ones = torch.ones(2, 2)
    lists = RankingBatch(ones, ones.bool(), torch.tensor([0, 1]), torch.tensor([[0, 1], [2, 3]]))
    return all_against_all(lists, None, torch.zeros(2, 2, 1))


def triplets():
    """Anchor, positive, negative: by three loops over the labels."""
    return [
        (a, p, n)
        for a, p, n in itertools.product(TEXTS, repeat=3)
        if a != p and LABELS[a] == LABELS[p] and LABELS[a] != LABELS[n]
    ]


def test_the_masks_of_four_texts():
    square = four_texts()
    for a, other in itertools.product(TEXTS, repeat=2):
        is_positive = a != other and LABELS[a] == LABELS[other]
        is_negative = LABELS[a] != LABELS[other]
        assert bool(square.mask[a, other]) == (is_positive or is_negative)
        assert bool(square.mask[a, other] and square.labels[a, other] > 0) == is_positive


def test_four_texts_of_two_labels_have_eight_triplets():
    """Equal scores and a margin of 1: each triplet costs 1, so the sum counts them."""
    square = four_texts()
    loss = MarginRankingLoss(1.0, pairs_reduction="sum", reduction="sum")
    groups, texts = 2, 2
    by_formula = groups * texts * (texts - 1) * (groups - 1) * texts
    assert len(triplets()) == by_formula == 8
    assert loss(torch.zeros(4, 4), square.labels, square.mask).item() == 8


def test_half_of_the_triplets_are_active():
    """Anchors 0 and 1 score their positive 3 above both negatives, anchors 2 and 3 1 below: 4 of 8
    triplets cost 0.5 + 1.
    """
    square = four_texts()
    scores = torch.tensor(
        [[0.0, 3.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    )
    active = BatchAllTripletLoss(0.5)(scores, square.labels, square.mask).item()
    of_all = BatchAllTripletLoss(0.5, average="all")(scores, square.labels, square.mask).item()
    assert active == 1.5
    assert of_all == 0.75


def test_the_sign_of_batch_all():
    """A right order costs nothing and a wrong one does: max(0, m - (s_ap - s_an)), not its mirror."""
    square = four_texts()
    right = torch.where(square.labels > 0, 1.0, 0.0)
    loss = BatchAllTripletLoss(0.3, average="all")
    assert loss(right, square.labels, square.mask).item() == 0
    assert loss(-right, square.labels, square.mask).item() == pytest.approx(1.3)
    by_loops = [max(0.0, 0.3 - float(-right[a, p] + right[a, n])) for a, p, n in triplets()]
    assert sum(by_loops) / 8 == pytest.approx(1.3)


def test_a_batch_of_two_masks_is_its_lists():
    """A mask of relevant documents (the labels) and one of padding, over lists of 3 and 2."""
    scores = torch.tensor([[2.0, 1.0, 0.5], [0.3, 0.7, 99.0]])
    labels = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    both = MeanInequalityLoss()(scores, labels, mask).item()
    first = MeanInequalityLoss()(scores[:1], labels[:1]).item()
    second = MeanInequalityLoss()(scores[1:, :2], labels[1:, :2]).item()
    assert both == pytest.approx((first + second) / 2)


def test_a_softmax_of_three_scores():
    scores = torch.tensor([[2.0, 1.0, 0.1]])
    values = transformed(scores, torch.ones_like(scores).bool(), "softmax")
    assert values[0].tolist() == pytest.approx([0.6590, 0.2424, 0.0986], abs=5e-5)


def test_the_cross_entropy_of_a_pair():
    gap = torch.tensor([-0.0168])
    value = RankNetLoss()(torch.tensor([[-0.0168, 0.0]]), torch.tensor([[1.0, 0.0]])).item()
    assert value == pytest.approx(0.7016, abs=5e-5)
    bce = torch.nn.functional.binary_cross_entropy(torch.sigmoid(gap), torch.ones(1))
    assert value == pytest.approx(bce.item(), abs=1e-6)


def test_swapped_pairs_are_those_of_two_loops():
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (1, 40)).float()
    scores = torch.randn(1, 40)
    swapped = 0
    for i, j in itertools.combinations(range(40), 2):
        gap = float(labels[0, i] - labels[0, j])
        if gap * float(scores[0, i] - scores[0, j]) < 0:
            swapped += 1
    assert RankingMetric("swapped_pairs").per_query(scores, labels).item() == swapped


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs/seeds.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), (file, test)
