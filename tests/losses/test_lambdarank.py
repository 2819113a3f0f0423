import math

import pytest
import torch

from ltr.errors import InputError
from ltr.losses import LambdaLoss, LambdaRankLoss
from ltr.pairs import blocks
from tests.losses.swaps import METRICS, measured, random_list, swapped


@pytest.mark.parametrize("metric", METRICS)
def test_the_gradient_is_the_sum_of_lambdas(metric):
    """lambda_ij = |delta| / (1 + exp(sigma (s_i - s_j))), up for i and down for j, pair by pair;
    ties of labels have none.
    """
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
                    delta = (
                        (
                            measured(metric, swapped(grades, order.index(i), order.index(j)), k)
                            - before
                        )
                        .abs()
                        .item()
                    )
                    force = delta / (1 + math.exp(sigma * (scores[0, i] - scores[0, j]).item()))
                    expected[i] += force
                    expected[j] -= force
        torch.testing.assert_close(-scores.grad[0], expected, atol=1e-6, rtol=1e-6)


def test_lambdarank_by_hand():
    """s = (1, 0), y = (0, 1): the swap gains 1 - 1 / log2(3); times log(1 + e) for sigma 1, log(1 +
    e^2) / 2 for sigma 2.

    mrr: 1 - 1/2; err with grades up to 1: R = 1/2: 1/2 - 1/4; ap: 1 - 1/2; precision at 1: 1.
    """
    lists = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    gain = 1 - 1 / math.log2(3)
    one = math.log1p(math.e)
    assert LambdaRankLoss()(*lists).item() == pytest.approx(gain * one)
    assert LambdaRankLoss(sigma=2.0)(*lists).item() == pytest.approx(
        gain * math.log1p(math.e**2) / 2
    )
    assert LambdaRankLoss("mrr")(*lists).item() == pytest.approx(one / 2)
    assert LambdaRankLoss("err", max_grade=1.0)(*lists).item() == pytest.approx(one / 4)
    assert LambdaRankLoss("ap")(*lists).item() == pytest.approx(one / 2)
    assert LambdaRankLoss("precision", k=1)(*lists).item() == pytest.approx(one)
    assert LambdaRankLoss(normalize=True)(*lists).item() == pytest.approx(one)


@pytest.mark.parametrize("metric", ["mrr", "ap", "precision"])
def test_rows_in_which_a_binary_metric_cannot_change_do_not_dilute_the_mean(metric):
    """A second row of grades 1 and 2, both relevant: no swap changes the metric, though it would
    change nDCG and ERR.
    """
    scores = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    labels = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    loss = LambdaRankLoss(metric, k=1)
    assert loss(scores, labels).item() == loss(scores[:1], labels[:1]).item() > 0
    if metric == "precision":  # k documents in all: whatever their order, the precision is the same
        longer = (
            LambdaRankLoss(metric, k=2),
            torch.randn(2, 3),
            torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]),
        )
        mask = torch.tensor([[True, True, True], [True, True, False]])
        assert longer[0](*longer[1:], mask) == longer[0](longer[1][:1], longer[2][:1])
    for graded in (LambdaRankLoss(), LambdaRankLoss("err")):
        assert graded(scores[1:], labels[1:]).item() > 0


def test_bad_options_are_refused():
    with pytest.raises(
        ValueError, match="metric must be one of ndcg, err, mrr, ap, precision, got 'map'"
    ):
        LambdaRankLoss("map")
    with pytest.raises(ValueError, match="needs k"):
        LambdaRankLoss("precision")
    with pytest.raises(ValueError, match="k must be at least 1"):
        LambdaRankLoss(k=0)
    with pytest.raises(
        InputError, match=r"grades up to max_grade=4, got 5; raise it \(option max_grade\)"
    ):
        LambdaRankLoss(metric="err")(torch.zeros(1, 2), torch.tensor([[5.0, 0.0]]))
    with pytest.raises(ValueError, match="scheme must be"):
        LambdaLoss("ndcg3")


def test_weights_follow_the_scores_of_every_call():
    """The same loss object on two orders: the weight of the pair is that of the present ranks, 1
    and 3 or 1 and 2.
    """
    loss = LambdaRankLoss()
    labels = torch.tensor([[0.0, 0.0, 1.0]])
    first = loss(torch.tensor([[2.0, 1.0, 0.0]]), labels).item()
    second = loss(torch.tensor([[2.0, 0.0, 1.0]]), labels).item()
    d = [1 / math.log2(1 + r) for r in (1, 2, 3)]
    assert first == pytest.approx(
        (d[0] - d[2]) * math.log1p(math.e**2) + (d[1] - d[2]) * math.log1p(math.e)
    )
    assert second == pytest.approx(
        (d[0] - d[1]) * math.log1p(math.e) + (d[1] - d[2]) * math.log1p(1 / math.e)
    )


def test_ties_of_scores_keep_the_order_of_the_columns():
    """All scores equal: the relevant document, last of three, stands at rank 3."""
    value = LambdaRankLoss()(torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 1.0]])).item()
    assert value == pytest.approx(((1 - 0.5) + (1 / math.log2(3) - 0.5)) * math.log(2))


@pytest.mark.parametrize("scheme", ["ndcg1", "ndcg2", "ndcg2++"])
def test_lambda_loss_equals_a_plain_loop(scheme):
    """The weights as Wang et al. write them; ndcg1 over all ordered pairs, the others over those
    with y_i > y_j.
    """
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
            best = sum(
                (2**g - 1) / d(r) for r, g in enumerate(sorted(y, reverse=True)[:k], start=1)
            )
            gain = [(2**g - 1) / best for g in y]
            total = 0.0
            for i in range(9):
                for j in range(9):
                    if (
                        i == j
                        or (scheme != "ndcg1" and y[i] <= y[j])
                        or (k and min(rank[i], rank[j]) > k)
                    ):
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
            assert LambdaLoss(scheme, mu, k, sigma)(scores, labels).item() == pytest.approx(
                total, rel=1e-9
            )


def test_lambdarank_is_lambda_loss_with_the_swap_as_its_weight():
    """ndcg2++ with mu 0 has |delta nDCG| as its weight: log2 instead of log is the factor between
    them.
    """
    for seed in range(4):
        lists = random_list(seed)
        torch.testing.assert_close(
            LambdaLoss(mu=0.0)(*lists) * math.log(2), LambdaRankLoss()(*lists)
        )


COSTS = {
    "logistic": lambda x, sigma: math.log1p(math.exp(-sigma * x)) / sigma,
    "hinge": lambda x, sigma: max(0.0, -x),
    "squared hinge": lambda x, sigma: max(0.0, -x) ** 2,
}


def pairs_of(s, y, choice):
    every = [(i, j) for i in range(9) for j in range(9) if y[i] > y[j]]
    below = {i: [j for k, j in every if k == i] for i, _ in every}
    if choice == "hardest":
        return [min(every, key=lambda p: s[p[0]] - s[p[1]])]
    if choice == "adjacent":
        return [(i, j) for i, j in every if y[j] == max(y[k] for k in below[i])]
    if choice == "semi-hard":
        worse = {i: [j for j in js if s[j] < s[i]] for i, js in below.items()}
        return [
            (i, max(w, key=lambda j: s[j]) if (w := worse[i]) else min(js, key=lambda j: s[j]))
            for i, js in below.items()
        ]
    return every


@pytest.mark.parametrize("margins", ["none", "own", "per row", "per negative", "per pair"])
@pytest.mark.parametrize("choice", ["all", "hardest", "semi-hard", "adjacent"])
@pytest.mark.parametrize("cost", COSTS)
def test_weights_costs_margins_and_pairs_compose(cost, choice, margins, monkeypatch):
    """Brute force: each metric's weight by swapping two ranks, times the cost of the gap less the
    margin, over chosen pairs.
    """
    shapes = {
        "none": None,
        "own": None,
        "per row": (1, 1),
        "per negative": (1, 9),
        "per pair": (1, 9, 9),
    }
    for seed, metric in enumerate(METRICS):
        for k in (None, 4):
            if metric == "precision" and k is None:
                continue
            scores, labels = random_list(seed)
            scores.requires_grad_()
            shape = shapes[margins]
            margin = (
                None
                if shape is None
                else torch.rand(shape, generator=torch.Generator().manual_seed(seed)).double()
            )
            s = scores[0].tolist()
            y = labels[0].tolist()
            order = sorted(range(9), key=lambda d: -s[d])
            grades = labels[:, order]
            total = 0.0
            for i, j in pairs_of(s, y, choice):
                swap = swapped(grades, order.index(i), order.index(j))
                weight = (measured(metric, swap, k) - measured(metric, grades, k)).abs().item()
                m = {"none": 0.0, "own": 0.6}.get(margins)
                if m is None:
                    m = (
                        margin[0, i, j] if margins == "per pair" else margin[0].expand(9)[j]
                    ).item()
                total += weight * COSTS[cost](s[i] - s[j] - m, 1.7)
            loss = LambdaRankLoss(
                metric,
                k,
                sigma=1.7,
                cost=cost,
                pairs=choice,
                margin=0.6 if margins == "own" else 0.0,
            )
            value = loss(scores, labels, None, margin)
            assert value.item() == pytest.approx(total, abs=1e-6), (metric, k)
            monkeypatch.setitem(blocks.BLOCK, "cpu", 16)
            longer = loss(scores, labels, None, margin)
            gradients = [torch.autograd.grad(x, scores)[0] for x in (value, longer)]
            monkeypatch.undo()
            torch.testing.assert_close(longer, value)
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
        value, expected = (LambdaRankLoss()(scores, labels, mask, m) for m in (margin, clean))
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(*(torch.autograd.grad(x, scores)[0] for x in (value, expected)))
