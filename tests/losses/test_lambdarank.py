import itertools
import math

import pytest
import torch

from ltr.errors import InputError
from ltr.losses import LambdaLoss, LambdaRankLoss
from ltr.pairs import blocks
from tests.losses.by_hand import value
from tests.losses.swaps import METRICS, measured, random_list, swapped
from tests.pairs.test_pairs import chosen_pairs


@pytest.mark.parametrize("metric", METRICS)
def test_the_gradient_is_the_sum_of_lambdas(metric):
    """lambda_ij = |delta| / (1 + exp(sigma (s_i - s_j))), up for i and down for j."""
    sigma = 1.7
    k = 4
    for seed in range(6):
        scores, labels = random_list(seed)
        scores.requires_grad_()
        LambdaRankLoss(metric=metric, k=k, sigma=sigma)(scores, labels).backward()
        order = scores[0].argsort(descending=True).tolist()
        grades = labels[:, order]
        before = measured(metric, grades, k)
        expected = torch.zeros(9, dtype=torch.float64)
        for i in range(9):
            for j in range(9):
                if labels[0, i] > labels[0, j]:
                    swap = swapped(grades, order.index(i), order.index(j))
                    delta = (measured(metric, swap, k) - before).abs().item()
                    force = delta / (1 + math.exp(sigma * (scores[0, i] - scores[0, j]).item()))
                    expected[i] += force
                    expected[j] -= force
        torch.testing.assert_close(-scores.grad[0], expected, atol=1e-6, rtol=1e-6)


def test_lambdarank_by_hand():
    """s = (1, 0), y = (0, 1): the swap gains 1 - 1 / log2(3); times log(1 + e) for sigma 1, log(1 +
    e^2) / 2 for sigma 2.

    mrr: 1 - 1/2; err with grades up to 1: R = 1/2: 1/2 - 1/4; ap: 1 - 1/2; precision at 1: 1.
    """
    gain = 1 - 1 / math.log2(3)
    one = math.log1p(math.e)
    for loss, expected in (
        (LambdaRankLoss(), gain * one),
        (LambdaRankLoss(sigma=2.0), gain * math.log1p(math.e**2) / 2),
        (LambdaRankLoss("mrr"), one / 2),
        (LambdaRankLoss("err", max_grade=1.0), one / 4),
        (LambdaRankLoss("ap"), one / 2),
        (LambdaRankLoss("precision", k=1), one),
        (LambdaRankLoss(normalize=True), one),
    ):
        assert value(loss, [1, 0], [0, 1]) == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["mrr", "ap", "precision"])
def test_rows_in_which_a_binary_metric_cannot_change_do_not_dilute_the_mean(metric):
    """A second row of grades 1 and 2, both relevant, of which only nDCG and ERR could change."""
    scores = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    labels = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    loss = LambdaRankLoss(metric, k=1)
    assert loss(scores, labels).item() == loss(scores[:1], labels[:1]).item() > 0
    if metric == "precision":  # k documents in all: whatever their order, the precision is the same
        two = LambdaRankLoss(metric, k=2)
        some_scores = torch.randn(2, 3)
        same = torch.tensor([[0.0, 1.0, 0.0]]).expand(2, 3)
        mask = torch.tensor([[True, True, True], [True, True, False]])
        assert two(some_scores, same, mask) == two(some_scores[:1], same[:1])
    for graded in (LambdaRankLoss(), LambdaRankLoss("err")):
        assert graded(scores[1:], labels[1:]).item() > 0


def test_bad_options_are_refused():
    for make, message in (
        (lambda: LambdaRankLoss("map"), "must be one of ndcg, err, mrr, ap, precision, got 'map'"),
        (lambda: LambdaRankLoss("precision"), "needs k"),
        (lambda: LambdaRankLoss(k=0), "k must be at least 1"),
        (lambda: LambdaLoss("ndcg3"), "scheme must be"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    message = r"grades up to max_grade=4, got 5; raise it \(option max_grade\)"
    with pytest.raises(InputError, match=message):
        value(LambdaRankLoss(metric="err"), [0, 0], [5, 0])


def test_weights_follow_the_scores_of_every_call():
    """The weight of a pair is that of the present ranks: 1 and 3, or 1 and 2."""
    loss = LambdaRankLoss()
    d = [1 / math.log2(1 + r) for r in (1, 2, 3)]
    first = (d[0] - d[2]) * math.log1p(math.e**2) + (d[1] - d[2]) * math.log1p(math.e)
    second = (d[0] - d[1]) * math.log1p(math.e) + (d[1] - d[2]) * math.log1p(1 / math.e)
    assert value(loss, [2, 1, 0], [0, 0, 1]) == pytest.approx(first)
    assert value(loss, [2, 0, 1], [0, 0, 1]) == pytest.approx(second)


def test_ties_of_scores_keep_the_order_of_the_columns():
    """All scores equal: the relevant document, last of three, stands at rank 3."""
    expected = ((1 - 0.5) + (1 / math.log2(3) - 0.5)) * math.log(2)
    assert value(LambdaRankLoss(), [0, 0, 0], [0, 0, 1]) == pytest.approx(expected)


@pytest.mark.parametrize("scheme", ["ndcg1", "ndcg2", "ndcg2++"])
def test_lambda_loss_equals_a_plain_loop(scheme):
    """The weights as Wang et al. write them; ndcg1 over all ordered pairs."""
    mu = 3.0
    sigma = 1.3

    def d(r):
        return math.log2(1 + r)

    for seed in range(6):
        for k in (None, 3):
            scores, labels = random_list(seed)
            s = scores[0].tolist()
            y = labels[0].tolist()
            rank = {i: r for r, i in enumerate(sorted(range(9), key=lambda i: -s[i]), start=1)}
            in_order = enumerate(sorted(y, reverse=True)[:k], start=1)
            best = sum((2**g - 1) / d(r) for r, g in in_order)
            gain = [(2**g - 1) / best for g in y]
            total = 0.0
            for i, j in itertools.permutations(range(9), 2):
                if (scheme != "ndcg1" and y[i] <= y[j]) or (k and min(rank[i], rank[j]) > k):
                    continue
                apart = abs(rank[i] - rank[j])
                delta = abs(1 / d(apart) - 1 / d(apart + 1))
                rho = abs(1 / d(rank[i]) - 1 / d(rank[j]))
                weight = {
                    "ndcg1": gain[i] / d(rank[i]),
                    "ndcg2": delta * abs(gain[i] - gain[j]),
                    "ndcg2++": (rho + mu * delta) * abs(gain[i] - gain[j]),
                }[scheme]
                total += weight * math.log2(1 + math.exp(-sigma * (s[i] - s[j])))
            loss = LambdaLoss(scheme, mu, k, sigma)
            assert loss(scores, labels).item() == pytest.approx(total, rel=1e-9)


def test_lambdarank_is_lambda_loss_with_the_swap_as_its_weight():
    """ndcg2++ with mu 0 has |delta nDCG| as its weight, and log2 instead of log."""
    for seed in range(4):
        lists = random_list(seed)
        found = LambdaLoss(mu=0.0)(*lists) * math.log(2)
        torch.testing.assert_close(found, LambdaRankLoss()(*lists))


COSTS = {
    "logistic": lambda x, sigma: math.log1p(math.exp(-sigma * x)) / sigma,
    "hinge": lambda x, sigma: max(0.0, -x),
    "squared hinge": lambda x, sigma: max(0.0, -x) ** 2,
}


@pytest.mark.parametrize("margins", ["none", "own", "per row", "per negative", "per pair"])
@pytest.mark.parametrize("choice", ["all", "hardest", "semi-hard", "adjacent"])
@pytest.mark.parametrize("cost", COSTS)
def test_weights_costs_margins_and_pairs_compose(cost, choice, margins, monkeypatch):
    """Each metric's weight by swapping two ranks, times the cost of the gap less the margin."""
    shape = {"per row": (1, 1), "per negative": (1, 9), "per pair": (1, 9, 9)}.get(margins)
    own = 0.6 if margins == "own" else 0.0
    for seed, metric in enumerate(METRICS):
        for k in (None, 4):
            if metric == "precision" and k is None:
                continue
            scores, labels = random_list(seed)
            scores.requires_grad_()
            margin = None
            m_bij = torch.full((1, 9, 9), own, dtype=torch.float64)
            if shape is not None:
                generator = torch.Generator().manual_seed(seed)
                margin = torch.rand(shape, generator=generator).double()
                m_bij = (margin if margins == "per pair" else margin.unsqueeze(1)).expand(1, 9, 9)
            s = scores[0].tolist()
            y = labels[0].tolist()
            order = sorted(range(9), key=lambda d: -s[d])
            grades = labels[:, order]
            total = 0.0
            for i, (j,) in chosen_pairs(s, y, range(9), choice):
                swap = swapped(grades, order.index(i), order.index(j))
                weight = (measured(metric, swap, k) - measured(metric, grades, k)).abs().item()
                total += weight * COSTS[cost](s[i] - s[j] - m_bij[0, i, j].item(), 1.7)
            loss = LambdaRankLoss(metric, k, sigma=1.7, cost=cost, pairs=choice, margin=own)
            found = loss(scores, labels, None, margin)
            assert found.item() == pytest.approx(total, abs=1e-6), (metric, k)
            monkeypatch.setitem(blocks.BLOCK, "cpu", 16)
            longer = loss(scores, labels, None, margin)
            gradients = [torch.autograd.grad(x, scores)[0] for x in (found, longer)]
            monkeypatch.undo()
            torch.testing.assert_close(longer, found)
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("shape", [(3, 1), (3, 6), (3, 6, 6)])
@pytest.mark.parametrize("cost", ["logistic", "squared hinge"])
def test_the_gradient_reaches_a_learnt_margin(cost, shape):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    margin = torch.rand(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[2.0, 1.0, 0.0, 0.0, 1.0, 3.0]]).double().expand(3, 6)
    loss = LambdaRankLoss(cost=cost)
    assert torch.autograd.gradcheck(lambda s, m: loss(s, labels, None, m), (scores, margin))


def test_a_margin_of_lambdarank_where_no_pair_stands_may_be_anything():
    scores = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    labels = torch.tensor([[1.0, 0.0, 5.0]])
    mask = torch.tensor([[True, True, False]])
    clean = torch.tensor([[0.0, 0.3, 0.0]])
    for margin in (torch.tensor([[torch.nan, 0.3, torch.inf]]), torch.full((1, 3, 3), torch.nan)):
        if margin.ndim == 3:
            margin[0, 0, 1] = 0.3
        both = [LambdaRankLoss()(scores, labels, mask, m) for m in (margin, clean)]
        torch.testing.assert_close(*both)
        torch.testing.assert_close(*(torch.autograd.grad(x, scores)[0] for x in both))
