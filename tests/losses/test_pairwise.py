import math

import pytest
import torch

from ltr.errors import InputError
from ltr.losses import (
    AdaptiveMarginRankingLoss,
    AdaptiveRankNetLoss,
    BatchAllTripletLoss,
    CoSENTLoss,
    MarginMSELoss,
    MarginRankingLoss,
    RankNetLoss,
    chain_probability,
)
from ltr.pairs import blocks
from ltr.pairs.choices import Hardest
from tests.losses.by_hand import value


def softplus(x):
    return math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_hinge_by_hand():
    """One list, s = (1, 3), y = (1, 0), margin 1: max(0, 1 - (1 - 3)) = 3; squared 9."""
    assert value(MarginRankingLoss(margin=1.0), [1, 3], [1, 0]) == 3.0
    assert value(MarginRankingLoss(squared=True), [1, 3], [1, 0]) == 9.0


def test_hinge_of_a_graded_list_by_hand():
    """s = (2, 1, 1.5), y = (2, 1, 0), margin 1; pairs 0>1: 1-1 = 0; 0>2: 1-0.5 = 0.5; 1>2: 1+0.5 =
    1.5; mean 2/3.

    Gradient: pair 0>2 is active: -1/3 on 0, +1/3 on 2; 1>2 too; 0>1 just meets its margin and is
    not.
    """
    scores = torch.tensor([[2.0, 1.0, 1.5]], requires_grad=True)
    loss = MarginRankingLoss()(scores, torch.tensor([[2.0, 1.0, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(2 / 3)
    assert scores.grad[0].tolist() == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


# s = (0, 1, 2, 0.5), y = (2, 1, 0, 0), margin 1. Gaps s_i - s_j of the pairs: 0>1: -1, 0>2: -2,
# 0>3: -0.5, 1>2: -1, 1>3: 0.5.
# Hinges: 2, 3, 1.5, 2, 0.5.
GRADED = [0, 1, 2, 0.5], [2, 1, 0, 0]
BY_PAIRS = {
    "all": (2 + 3 + 1.5 + 2 + 0.5) / 5,
    "hardest": 3.0,  # the least gap: 0>2
    # 0: none is below it, so the lowest, which is 3; 1: the highest below it is 3.
    "semi-hard": (1.5 + 0.5) / 2,
    "adjacent": (2 + 2 + 0.5) / 3,  # 0>1, 1>2, 1>3
    "mean": ((1 + (1 + 2 + 0.5) / 3 - 0) + (1 + (2 + 0.5) / 2 - 1)) / 2,
}


@pytest.mark.parametrize("pairs", BY_PAIRS)
def test_the_choice_of_pairs_by_hand(pairs):
    assert value(MarginRankingLoss(pairs=pairs), *GRADED) == pytest.approx(BY_PAIRS[pairs])


def test_ranknet_over_chosen_pairs_by_hand():
    """Gaps: -2 (hardest); -1, -1, 0.5 (adjacent); 0 - 3.5/3 and 1 - 1.25 (mean)."""
    expected = {
        "hardest": softplus(2),
        "adjacent": (2 * softplus(1) + softplus(-0.5)) / 3,
        "mean": (softplus(3.5 / 3) + softplus(0.25)) / 2,
    }
    for pairs, cost in expected.items():
        assert value(RankNetLoss(pairs=pairs), *GRADED) == pytest.approx(cost)


def test_the_mean_of_margins_per_pair_by_hand():
    """s = (0, 1, 0), y = (1, 0, 0), margins 1 and 3 for the pairs 0>1 and 0>2: 0.5 + 2 - 0 = 2.5."""
    margin = torch.full((1, 3, 3), 99.0)
    margin[0, 0, 1:] = torch.tensor([1.0, 3.0])
    loss = MarginRankingLoss(pairs="mean")
    assert value(loss, [0, 1, 0], [1, 0, 0], margin=margin) == 2.5


def test_a_margin_per_negative_and_one_per_pair():
    """Margins 2 and 4 for the negatives: (2 + 4) / 2 = 3. The positive's own is not used."""
    per_pair = torch.full((1, 3, 3), 99.0)
    # Row: the more relevant document, column: the less relevant one.
    per_pair[0, 0, 1:] = torch.tensor([2.0, 4.0])
    for margin, expected in (([[99, 2, 4]], 3.0), (per_pair, 3.0), ([[5]], 5.0)):
        assert value(MarginRankingLoss(), [1, 1, 1], [1, 0, 0], margin=margin) == expected
    with pytest.raises(ValueError, match="a margin for scores"):
        value(MarginRankingLoss(), [1, 1, 1], [1, 0, 0], margin=torch.ones(5))


@pytest.mark.parametrize(
    "loss", [MarginRankingLoss(), MarginRankingLoss(squared=True), AdaptiveRankNetLoss(k=0.5)]
)
@pytest.mark.parametrize("pairs", BY_PAIRS)
@pytest.mark.parametrize("shape", [(3, 1), (3, 6), (3, 6, 6)])
def test_the_gradient_reaches_a_learnt_margin(loss, pairs, shape):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    margin = torch.rand(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[2.0, 1.0, 0.0, 0.0, 1.0, 3.0]]).double().expand(3, 6)
    loss.pairs = pairs
    assert torch.autograd.gradcheck(lambda s, m: loss(s, labels, None, m), (scores, margin))


def test_adaptive_margin_by_hand():
    """max(0, 0.2 - 1 + 0.5 * 3) = 0.7; without a margin k times 1: max(0, -0.3) = 0."""
    loss = AdaptiveMarginRankingLoss(k=0.5)
    assert value(loss, [1, 0.2], [1, 0], margin=[[0, 3]]) == pytest.approx(0.7)
    assert value(loss, [1, 0.2], [1, 0]) == 0.0


def test_ranknet_by_hand():
    """sigma 2, gap 0.5: log(1 + exp(-1)); its gradient on the relevant score is -2 / (1 + e)."""
    scores = torch.tensor([[1.5, 1.0]], requires_grad=True)
    loss = RankNetLoss(sigma=2.0)(scores, torch.tensor([[1.0, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert scores.grad[0].tolist() == pytest.approx([-2 / (1 + math.e), 2 / (1 + math.e)])


def test_soft_targets_by_hand():
    """-P log p - (1 - P) log(1 - p) with p = sigmoid(0.5), P = sigmoid(2)."""
    p = sigmoid(0.5)
    target = sigmoid(2.0)
    expected = -target * math.log(p) - (1 - target) * math.log(1 - p)
    assert value(RankNetLoss(targets="soft"), [0.5, 0], [2, 0]) == pytest.approx(expected)


def test_soft_targets_of_a_teacher_leave_nothing_to_learn_to_a_student_with_its_gaps():
    teacher = torch.tensor([[3.0, 1.0, -2.0]], dtype=torch.float64)
    student = (teacher + 7).requires_grad_()
    RankNetLoss(sigma=0.7, targets="soft")(student, teacher).backward()
    assert student.grad.abs().max() < 1e-12


def test_adaptive_ranknet_by_hand():
    """Shift: log(1 + exp(-2 (0.5 - 1.5))); scale: log(1 + exp(-2 (1 + 1.5) 0.5))."""
    for mode, expected in (("shift", softplus(2.0)), ("scale", softplus(-2.5))):
        loss = AdaptiveRankNetLoss(sigma=2.0, k=0.5, mode=mode)
        assert value(loss, [0.5, 0], [1, 0], margin=[[9, 3]]) == pytest.approx(expected)
    with pytest.raises(ValueError, match="mode must be one of shift, scale, got 'stretch'"):
        AdaptiveRankNetLoss(mode="stretch")


def test_adaptive_ranknet_without_margin_is_ranknet():
    torch.manual_seed(0)
    lists = torch.randn(4, 6, dtype=torch.float64), torch.randint(0, 3, (4, 6)).double()
    for mode in ("shift", "scale"):
        loss = AdaptiveRankNetLoss(margin=0.0, mode=mode)
        torch.testing.assert_close(loss(*lists), RankNetLoss()(*lists))


def test_sigma_is_a_factor_on_the_scores():
    torch.manual_seed(0)
    scores = torch.randn(4, 6, dtype=torch.float64)
    labels = torch.randint(0, 3, (4, 6)).double()
    for pairs in ("all", "hardest", "mean"):
        loss = RankNetLoss(sigma=2.5, pairs=pairs)
        scaled = RankNetLoss(pairs=pairs)(2.5 * scores, labels)
        torch.testing.assert_close(loss(scores, labels), scaled)


def test_the_chain_of_probabilities():
    """Two coin throws stay one; what is certain stays certain."""
    torch.manual_seed(0)
    s_i, s_j, s_k = torch.randn(3, 1000, dtype=torch.float64) * 4
    p_ik = torch.sigmoid(s_i - s_k)
    p_kj = torch.sigmoid(s_k - s_j)
    torch.testing.assert_close(chain_probability(p_ik, p_kj), torch.sigmoid(s_i - s_j))
    half = torch.tensor(0.5)
    one = torch.tensor(1.0)
    assert chain_probability(half, half) == 0.5 and chain_probability(one, half) == 1.0
    torch.testing.assert_close(chain_probability(p_ik, 1 - p_ik), torch.full_like(p_ik, 0.5))


def test_an_unknown_choice_of_pairs_is_refused():
    message = "pairs must be one of all, hardest, semi-hard, adjacent, mean, got 'some'"
    with pytest.raises(ValueError, match=message):
        MarginRankingLoss(pairs="some")


@pytest.mark.parametrize(
    "loss", [MarginRankingLoss(), AdaptiveRankNetLoss(), AdaptiveRankNetLoss(mode="scale")]
)
@pytest.mark.parametrize("pairs", BY_PAIRS)
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
def test_a_margin_where_no_pair_stands_may_be_anything(loss, pairs, rubbish, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 3, (3, 8), generator=generator).double()
    mask = torch.rand(3, 8, generator=generator) < 0.7
    loss.pairs = pairs
    pair = (labels.unsqueeze(2) > labels.unsqueeze(1)) & mask.unsqueeze(2) & mask.unsqueeze(1)
    per_negative = torch.rand(3, 8, generator=generator).double()
    per_pair = torch.rand(3, 8, 8, generator=generator).double()
    for short in (1 << 15, 0):
        monkeypatch.setattr("ltr.pairs.SHORT", short)
        for clean, used in ((per_negative, pair.any(dim=1)), (per_pair, pair)):
            found = []
            for margin in (clean, torch.where(used, clean, rubbish)):
                cost = loss(scores, labels, mask, margin)
                found.append((cost, *torch.autograd.grad(cost, scores)))
            assert all(map(torch.equal, *found))


def test_ties_by_hand():
    """Labels 1, 0, 1 with scores 1.02, 0, -1.19: log(1 + e^-1.02) and log(1 + e^1.19) of the pairs
    with two labels, and of the tie, whose gap is 2.21, 2.21 / 2 + log(1 + e^-2.21).
    """
    tie, right, wrong = 1.20909, 0.307922, 1.455606
    summed = RankNetLoss(ties="half", pairs_reduction="sum")
    for loss, expected in (
        (summed, tie + right + wrong),
        (summed, 2.972619),
        (RankNetLoss(ties="half"), 2.972619 / 3),
        (RankNetLoss(), (right + wrong) / 2),
    ):
        assert value(loss, [1.02, 0, -1.19], [1, 0, 1]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_a_list_of_one_label_learns_to_tie(targets):
    """A gap of 2.261067 costs 1.229690, one of 0 log 2; the gradient is sigma (P - 1/2)."""
    scores = torch.tensor([[2.261067, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = RankNetLoss(ties="half", targets=targets)
    cost = loss(scores, torch.ones(1, 2))
    assert cost.item() == pytest.approx(1.22969, abs=1e-6)
    (gradient,) = torch.autograd.grad(cost, scores)
    pull = 1 / (1 + math.exp(-2.261067)) - 0.5
    assert gradient[0].tolist() == pytest.approx([pull, -pull])
    assert value(loss, [0, 0], [1, 1]) == pytest.approx(math.log(2))
    # Beside a list of two labels it counts as a row; alone a document has no pair.
    both = loss(torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    assert both.item() == pytest.approx(math.log(2))
    assert value(loss, [0, 0], [1, 1], mask=[True, False]) == 0


@pytest.mark.parametrize("mode", ["shift", "scale"])
def test_a_tie_has_no_margin(mode):
    """Whatever margin the batch has for its documents, NaN included."""
    plain = value(RankNetLoss(sigma=2.0, ties="half"), [0.3, 1.5], [1, 1])
    loss = AdaptiveRankNetLoss(sigma=2.0, k=3.0, mode=mode, ties="half", margin=5.0)
    for margin in (None, torch.full((1, 2), 7.0), torch.full((1, 2, 2), math.nan)):
        assert value(loss, [0.3, 1.5], [1, 1], margin=margin) == plain


def test_ties_need_all_pairs():
    for pairs in ("hardest", "semi-hard", "adjacent", "mean", Hardest()):
        for kind in (RankNetLoss, AdaptiveRankNetLoss):
            with pytest.raises(InputError, match="ties: half adds all pairs .* needs pairs: all"):
                kind(pairs=pairs, ties="half")
    with pytest.raises(InputError, match="ties must be one of ignore, half, got 'some'"):
        RankNetLoss(ties="some")
    changed = RankNetLoss(ties="half")
    changed.pairs = "hardest"
    with pytest.raises(InputError, match="needs pairs: all"):
        changed(torch.zeros(1, 2), torch.ones(1, 2))


def test_the_reduction_of_pairs_by_hand():
    """Hinges of margin 1: 0.5, 0 and 1.2."""
    lists = [0, -0.5, -3, 0.2], [1, 0, 0, 0]
    for reduction, expected in (("mean", 1.7 / 3), ("sum", 1.7), ("active", 1.7 / 2)):
        for kind in (MarginRankingLoss, AdaptiveMarginRankingLoss):
            loss = kind(pairs_reduction=reduction)
            assert value(loss, *lists) == pytest.approx(expected), kind
    with pytest.raises(InputError, match="pairs_reduction must be one of mean, sum, active, got"):
        MarginRankingLoss(pairs_reduction="max")


def test_active_is_of_the_list_and_of_the_batch_by_hand():
    """Hinges 0, 0 and 1.5, 0: of the lists 0 and 1.5, of the batch 1.5 of one active triplet."""
    scores = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.5, -2.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    loss = MarginRankingLoss(pairs_reduction="active", reduction="none")
    assert loss(scores, labels).tolist() == [0.0, 1.5]
    assert MarginRankingLoss(pairs_reduction="active")(scores, labels).item() == 0.75
    assert MarginRankingLoss()(scores, labels).item() == 0.375
    assert BatchAllTripletLoss()(scores, labels).item() == 1.5


REDUCED = [
    (MarginRankingLoss, {"margin": 0.4}),
    (MarginRankingLoss, {"margin": 0.4, "squared": True}),
    (AdaptiveMarginRankingLoss, {"k": 0.7}),
    (RankNetLoss, {"sigma": 1.3}),
    (RankNetLoss, {"sigma": 0.6, "targets": "soft"}),
    (AdaptiveRankNetLoss, {"sigma": 1.3, "k": 0.5}),
    (AdaptiveRankNetLoss, {"k": 0.5, "mode": "scale", "targets": "soft"}),
    (MarginMSELoss, {}),
]


def plain_cost(loss, s_i, s_j, y_i, y_j, m):
    """Of one pair, as its formula has it; a tie has y_i = y_j."""
    if isinstance(loss, MarginMSELoss):
        return ((s_i - s_j) - (y_i - y_j)) ** 2
    if isinstance(loss, MarginRankingLoss):
        return (getattr(loss, "k", 1.0) * m - (s_i - s_j)).clamp(min=0) ** (1 + loss.squared)
    x = s_i - s_j
    if isinstance(loss, AdaptiveRankNetLoss) and y_i != y_j:
        x = x - loss.k * m if loss.mode == "shift" else (1 + loss.k * m) * x
    p = 1 / (1 + torch.exp(-loss.sigma * x))
    target = 1.0 if y_i > y_j else 0.5
    if loss.targets == "soft":
        target = 1 / (1 + math.exp(-loss.sigma * (y_i - y_j)))
    return -target * torch.log(p) - (1 - target) * torch.log(1 - p)


def plain_value(loss, scores, labels, mask, margin):
    """Loops over the pairs of each list, then the mean over the lists with a pair."""
    values = []
    for b in range(len(scores)):
        docs = mask[b].nonzero().flatten().tolist()
        y = labels[b].tolist()
        pairs = [(i, j) for i in docs for j in docs if y[i] > y[j]]
        if getattr(loss, "ties", "ignore") == "half":
            pairs += [(i, j) for i in docs for j in docs if y[i] == y[j] and i < j]
        costs = []
        for i, j in pairs:
            m = getattr(loss, "margin", 0.0)
            if margin is not None:
                m = margin[b, i, j] if margin.ndim == 3 else margin[b, j]
            costs.append(plain_cost(loss, scores[b, i], scores[b, j], y[i], y[j], m))
        counted = [c for c in costs if c > 0] if loss.pairs_reduction == "active" else costs
        if costs:
            total = torch.stack(costs).sum()
            n_counted = max(1, len(counted))
            values.append(total if loss.pairs_reduction == "sum" else total / n_counted)
    return torch.stack(values).mean() if values else 0.0 * scores.sum()


def differences_from_plain_loops(seed, kind, options, monkeypatch):
    """The largest of value and gradient, of short lists and of long ones."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 3, (3, 6), generator=generator).double()
    labels[2] = 1.0
    mask = torch.rand(3, 6, generator=generator) < 0.8
    shape = [None, (3, 6), (3, 6, 6)][seed % 3]
    margin = None
    if shape is not None:
        margin = torch.rand(shape, generator=generator, dtype=torch.float64)
    choices = [{"pairs_reduction": name} for name in ("mean", "sum", "active")]
    if issubclass(kind, RankNetLoss):
        choices += [{"ties": "half"}, {"ties": "half", "pairs_reduction": "sum"}]
    largest = 0.0
    for choice in choices:
        loss = kind(**options, **choice)
        expected = plain_value(loss, scores, labels, mask, margin)
        (expected_gradient,) = torch.autograd.grad(expected, scores)
        for short, dense, block in ((1 << 15, 24, 1 << 16), (0, 0, 8)):
            monkeypatch.setattr("ltr.pairs.SHORT", short)
            monkeypatch.setattr("ltr.pairs.UPPERS_PER_LEVEL_TO_SORT", dense)
            monkeypatch.setitem(blocks.BLOCK, "cpu", block)
            cost = loss(scores, labels, mask, margin)
            (gradient,) = torch.autograd.grad(cost, scores)
            gap = (gradient - expected_gradient).abs().max()
            largest = max(largest, (cost - expected).abs().item(), gap.item())
    return largest


@pytest.mark.parametrize(("kind", "options"), REDUCED)
def test_reductions_and_ties_equal_plain_loops_in_every_form(kind, options, monkeypatch):
    for seed in range(3):
        assert differences_from_plain_loops(seed, kind, options, monkeypatch) < 1e-11


def test_cosent_by_hand():
    """y = (2.5, 1, 0), s = (0, log 2, log 3): the pairs cost 2, 3 and 3/2: log(1 + 6.5)."""
    lists = [0, math.log(2), math.log(3)], [2.5, 1, 0]
    assert value(CoSENTLoss(), *lists) == pytest.approx(math.log(7.5))
    # Half the temperature squares each: 4, 9 and 9/4.
    assert value(CoSENTLoss(temperature=0.5), *lists) == pytest.approx(math.log(16.25))


def test_cosent_equals_its_formula_over_all_pairs():
    """Of real labels, equal labels and padding among them."""
    generator = torch.Generator().manual_seed(0)
    scores = (3 * torch.randn(8, 30, generator=generator)).double().requires_grad_()
    labels = torch.randint(0, 11, (8, 30), generator=generator).double() / 2
    mask = torch.rand(8, 30, generator=generator) < 0.8
    values = CoSENTLoss(temperature=0.7, reduction="none")(scores, labels, mask)
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    gaps = (scores.unsqueeze(1) - scores.unsqueeze(2)) / 0.7  # s_j - s_i
    is_pair = labels.unsqueeze(2) > labels.unsqueeze(1)
    is_pair &= mask.unsqueeze(2) & mask.unsqueeze(1)
    expected = torch.log1p(torch.where(is_pair, gaps.exp(), 0.0).sum(dim=(1, 2)))
    (expected_gradient,) = torch.autograd.grad(expected.sum(), scores)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_cosent_of_far_scores_is_their_largest_gap():
    scores = torch.tensor([[-1e4, 0.0, 1e4]], requires_grad=True)
    loss = CoSENTLoss()(scores, torch.tensor([[4.75, 0.5, 0.0]]))
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss == 2e4 and gradient.tolist() == [[-1.0, 0.0, 1.0]]
