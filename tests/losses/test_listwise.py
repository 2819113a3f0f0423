import math

import pytest
import torch
from torch.nn import functional as F

from ltr.losses import (
    ListNetLoss,
    MeanInequalityLoss,
    SoftmaxLoss,
)
from tests.losses.by_hand import value


@pytest.mark.parametrize("positives", ["out", "in"])
def test_a_margin_raises_the_scores_of_the_irrelevant_documents(positives):
    """Relevant at 1 and 0, irrelevant at 0.5 and -1."""
    lists = [1, 0, 0.5, -1], [1, 2, 0, 0]
    loss = SoftmaxLoss(temperature=0.5, positives=positives)
    e = math.exp

    def cost(s, other, m_2, m_3):
        """Of the relevant document with score s; the other relevant one is never raised."""
        below = e((0.5 + m_2) / 0.5) + e((-1 + m_3) / 0.5)
        if positives == "in":
            below += e(other / 0.5)
        return math.log1p(below / e(s / 0.5))

    per_pair = torch.full((1, 4, 4), math.nan)
    per_pair[0, 0, 2:], per_pair[0, 1, 2:] = torch.tensor([0.3, 0.6]), torch.tensor([0.1, 0.2])
    per_pair[0, 2:] = 0.0  # rows of irrelevant documents are no pairs
    for margin, m_first, m_second in (
        ([[9, math.nan, 0.3, 0.6]], (0.3, 0.6), (0.3, 0.6)),  # at relevant ones it is not used
        ([[0.3]], (0.3, 0.3), (0.3, 0.3)),
        (per_pair, (0.3, 0.6), (0.1, 0.2)),
    ):
        expected = (cost(1, 0, *m_first) + cost(0, 1, *m_second)) / 2
        assert value(loss, *lists, margin=margin) == pytest.approx(expected)
    assert value(loss, *lists, margin=[[0, 0, 0, 0]]) == value(loss, *lists)


def test_one_relevant_document_is_softmax_cross_entropy():
    """torch's cross_entropy is the oracle."""
    torch.manual_seed(0)
    scores = torch.randn(6, 5, dtype=torch.float64)
    labels = F.one_hot(torch.arange(6) % 5, 5).double()
    expected = F.cross_entropy(scores, torch.arange(6) % 5)
    for loss in (SoftmaxLoss(), SoftmaxLoss(positives="in"), MeanInequalityLoss()):
        torch.testing.assert_close(loss(scores, labels), expected)


def test_relevant_documents_do_not_compete_unless_asked_by_hand():
    """s = (0, log 2, 0), y = (1, 2, 0). Out: -log(1/2) and -log(2/3). In: -log(1/4) and -log(2/4)."""
    lists = [0, math.log(2), 0], [1, 2, 0]
    assert value(SoftmaxLoss(), *lists) == pytest.approx((math.log(2) + math.log(1.5)) / 2)
    expected = (math.log(4) + math.log(2)) / 2
    assert value(SoftmaxLoss(positives="in"), *lists) == pytest.approx(expected)
    with pytest.raises(ValueError, match="positives must be one of out, in"):
        value(SoftmaxLoss(positives="maybe"), *lists)


def test_a_lower_temperature_looks_at_the_hardest_negative():
    """Its gap is 1; the loss tends to 0 from above."""
    found = value(SoftmaxLoss(temperature=0.1), [2, 1, -5], [1, 0, 0])
    assert found == pytest.approx(math.log1p(math.exp(-10)), rel=1e-3)


def test_an_anchor_by_hand():
    """s = (log 2, 0, log 3), y = (1, 2, 0), y0 = 1/2. Out: -log(2/6) and -log(1/5), and half of log 4.
    In: -log(2/7) and -log(1/7), and half of log 7.
    """
    lists = [math.log(2), 0, math.log(3)], [1, 2, 0]
    out = (math.log(3) + math.log(5)) / 2 + math.log(4) / 2
    assert value(SoftmaxLoss(anchor=0.5), *lists) == pytest.approx(out)
    within = (math.log(7 / 2) + math.log(7)) / 2 + math.log(7) / 2
    loss = SoftmaxLoss(anchor=0.5, positives="in")
    assert value(loss, *lists) == pytest.approx(within)
    with pytest.raises(ValueError, match="anchor must be"):
        SoftmaxLoss(anchor=0.0)


def test_an_anchor_alone_teaches_where_all_documents_are_alike():
    """All relevant: -log(2/3) against it. All irrelevant: it against them, log(1 + 2 + 1)."""
    loss = SoftmaxLoss(anchor=1.0)
    assert value(loss, [math.log(2)], [1]) == pytest.approx(math.log(1.5))
    assert value(loss, [math.log(2), 0], [0, 0]) == pytest.approx(math.log(4))
    scores = torch.tensor([[5.0, -5.0]], requires_grad=True)
    loss(scores, torch.tensor([[0.0, 0.0]])).backward()
    assert (scores.grad > 0).all()  # both go down


@pytest.mark.parametrize("positives", ["out", "in"])
def test_an_anchor_is_a_document_with_score_0_that_is_listed(positives):
    """One relevant document each: the sum of two cross entropies of torch."""
    torch.manual_seed(0)
    scores = torch.randn(6, 5, dtype=torch.float64)
    labels = F.one_hot(torch.arange(6) % 5, 5).double()
    zeros = torch.zeros(6, 1, dtype=torch.float64)
    listed = torch.cat([scores, zeros], dim=1) / 0.5
    relevant = F.cross_entropy(listed, torch.arange(6) % 5)
    if positives == "out":
        listed = listed.masked_fill(F.pad(labels, (0, 1)) > 0, -torch.inf)
    anchor = F.cross_entropy(listed, torch.full((6,), 5))
    loss = SoftmaxLoss(temperature=0.5, positives=positives, anchor=0.3)
    torch.testing.assert_close(loss(scores, labels), relevant + 0.3 * anchor)


def test_listnet_by_hand():
    """P = (3/4, 1/4), Q = 1/2: -log(1/2), and with kl less the entropy of P."""
    labels = [math.log(3), 0]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert value(ListNetLoss(), [0, 0], labels) == pytest.approx(math.log(2))
    assert value(ListNetLoss("kl"), [0, 0], labels) == pytest.approx(math.log(2) - entropy)
    twice = [2 * math.log(3), 0]
    assert value(ListNetLoss(temperature=2.0), twice, labels) == pytest.approx(entropy)
    assert value(ListNetLoss("kl"), labels, labels) == pytest.approx(0.0, abs=1e-7)
    with pytest.raises(ValueError, match="kind must be one of ce, kl"):
        value(ListNetLoss(kind="js"), [0, 0], labels)


def test_mean_inequality_by_its_value_check():
    """scores (3, 4.3, 5.3, .5, .25, .25, 1), the first three relevant: 1.2261."""
    lists = [3, 4.3, 5.3, 0.5, 0.25, 0.25, 1], [1, 1, 1, 0, 0, 0, 0]
    assert value(MeanInequalityLoss(), *lists) == pytest.approx(1.2261, abs=5e-5)


def test_mean_inequality_is_zero_just_where_the_relevant_share_all_the_mass_evenly():
    """Uneven: -2 log 2 - log p1 - log p2 with p = (e, 1) / (1 + e)."""
    scores = torch.tensor([[60.0, 60.0, -60.0], [61.0, 60.0, -60.0]], dtype=torch.float64)
    labels = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64).expand(2, 3)
    loss = MeanInequalityLoss(reduction="none")
    even, uneven = loss(scores, labels).tolist()
    assert even == pytest.approx(0, abs=1e-12)
    assert uneven == pytest.approx(-2 * math.log(2) - 1 + 2 * math.log(1 + math.e))
    many = 3 * torch.randn(200, 6, dtype=torch.float64)
    assert loss(many, torch.randint(0, 2, (200, 6)).double()).min() >= 0


@pytest.mark.parametrize("level", [1e4, -1e4])
@pytest.mark.parametrize("positives", ["out", "in"])
def test_large_scores_lose_no_digits_of_their_gaps(positives, level):
    """Around ±1e4 in float32, gaps of 1/128 are exact; the loss of the gaps alone is the oracle.
    Padding, whose scores count as 0, is far from them and changes nothing.
    """
    gaps = torch.arange(24).view(1, 24) / 128
    labels = (torch.arange(24) % 5 == 0).float().view(1, 24)
    loss = SoftmaxLoss(positives=positives)
    expected = loss(gaps.double(), labels.double())
    one_more = (0, 1)
    padded = F.pad(level + gaps, one_more), F.pad(labels, one_more), F.pad(labels >= 0, one_more)
    for lists in [(level + gaps, labels), padded]:
        torch.testing.assert_close(loss(*lists).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("positives", ["out", "in"])
def test_a_margin_where_there_is_no_pair_reaches_no_gradient(positives):
    """The second list has nothing to learn, so none of its margins is one of a pair."""
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    no_pair = torch.full((2, 3, 3), math.nan)
    per_pair = no_pair.clone()
    per_pair[0, 0, 1:] = 0.5
    per_doc = torch.tensor([[math.nan, 0.5, 0.5], [math.nan, math.nan, math.nan]])
    loss = SoftmaxLoss(positives=positives)
    gradients = []
    for margin in (per_pair, per_doc, torch.full((2, 1), 0.5)):
        scores = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
        loss(scores, labels, None, margin).backward()
        gradients.append(scores.grad)
    assert gradients[0].isfinite().all()
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])
