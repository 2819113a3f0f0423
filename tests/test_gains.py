"""Gains of grades that are no float32: nDCG and the losses of it, against whole numbers."""

import math

import pytest
import torch

from ltr.gains import exp_gain
from ltr.losses import ApproxNDCGLoss, LambdaLoss, LambdaRankLoss, NeuralNDCGLoss
from ltr.metrics import RankingMetric


def whole_gains(grades):
    """(2^y - 1) / 2^top of each grade, in whole numbers up to the last division."""
    top = max(grades)
    return [((((1 << y) - 1) << 300) >> top) / (1 << 300) for y in grades]


def random_list(seed, largest):
    generator = torch.Generator().manual_seed(seed)
    n = 2 + seed % 6
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    grades = torch.randint(0, largest + 1, (n,), generator=generator)
    near = grades.max() - torch.randint(0, 4, (n,), generator=generator)
    grades = torch.where(torch.rand(n, generator=generator) < 0.4, near.clamp(min=0), grades)
    grades[torch.rand(n, generator=generator) < 0.2] = 0
    return scores, grades.tolist()


def test_gains_by_hand():
    """2^3 - 1 = 7 in units of 2^3, and 1 in units of 2^7; of 300 and 298 the second is a quarter."""
    assert exp_gain(torch.tensor([[3.0, 1.0, -2.0]])).tolist() == [[7 / 8, 1 / 8, 0.0]]
    assert exp_gain(torch.tensor([[1.0]]), 7).tolist() == [[1 / 128]]
    assert exp_gain(torch.tensor([[300.0, 298.0, 1e7 - 1]])).tolist() == [[0.0, 0.0, 1.0]]
    assert exp_gain(torch.tensor([[300.0, 298.0]])).tolist() == [[1.0, 0.25]]
    assert exp_gain(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


def test_a_grade_of_285_at_rank_5_by_hand():
    """Its gain is all there is: 1 / log2(6) of the best order."""
    metric = RankingMetric("nDCG_exp@10")
    labels = torch.tensor([[285.0, 0.0, 1.0, 2.0, 0.0]])
    value = metric.per_query(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5]]), labels)
    assert value.item() == pytest.approx(1 / math.log2(6))


@pytest.mark.parametrize("largest", [4, 300, 10**6])
def test_ndcg_equals_whole_numbers(largest):
    for seed in range(60):
        scores, grades = random_list(seed, largest)
        if not any(grades):
            continue
        gains = whole_gains(grades)
        order = scores.argsort(descending=True).tolist()
        labels = torch.tensor([grades])
        for k in (2, None):
            best = sum(g / math.log2(r + 2) for r, g in enumerate(sorted(gains)[::-1][:k]))
            dcg = sum(gains[i] / math.log2(r + 2) for r, i in enumerate(order[:k]))
            metric = RankingMetric("nDCG_exp" + (f"@{k}" if k else ""))
            value = metric.per_query(scores[None].float(), labels.float())
            assert value.item() == pytest.approx(dcg / best, abs=1e-6), (grades, k)


def by_rank(scores):
    """``[N]``: the rank of each document, from 1."""
    return scores.argsort(descending=True).argsort().double() + 1


def lambdarank(scores, grades, gains, ranks, discount):
    weight_ij = (gains[:, None] - gains).abs() * (discount[:, None] - discount).abs()
    cost_ij = torch.nn.functional.softplus(scores - scores[:, None])
    return (weight_ij * cost_ij)[grades[:, None] > grades].sum()


def lambda_loss(scores, grades, gains, ranks, discount):
    distance = (ranks[:, None] - ranks).abs().clamp(min=1)
    delta_ij = (1 / torch.log2(1 + distance) - 1 / torch.log2(2 + distance)).abs()
    rho_ij = (discount[:, None] - discount).abs()
    weight_ij = (rho_ij + 10 * delta_ij) * (gains[:, None] - gains).abs()
    cost_ij = torch.nn.functional.softplus(scores - scores[:, None]) / math.log(2)
    return (weight_ij * cost_ij)[grades[:, None] > grades].sum()


def approx_ndcg(scores, grades, gains, ranks, discount):
    rank_i = 0.5 + torch.sigmoid((scores - scores[:, None]) / 0.1).sum(dim=1)
    return 1 - (gains / torch.log2(1 + rank_i)).sum()


def neural_ndcg(scores, grades, gains, ranks, discount):
    n = len(scores)
    distance = (scores[:, None] - scores).abs().sum(dim=1)
    p = torch.stack([((n + 1 - 2 * r) * scores - distance).softmax(0) for r in range(1, n + 1)])
    for _ in range(10):
        p = p / p.sum(dim=1, keepdim=True)
        p = p / p.sum(dim=0, keepdim=True)
    return 1 - (p @ gains / torch.log2(2 + torch.arange(n).double())).sum()


PLAIN = {
    LambdaRankLoss: lambdarank,
    LambdaLoss: lambda_loss,
    ApproxNDCGLoss: approx_ndcg,
    NeuralNDCGLoss: neural_ndcg,
}


@pytest.mark.parametrize("largest", [4, 300, 10**6])
@pytest.mark.parametrize("loss", PLAIN)
def test_losses_of_ndcg_equal_whole_numbers(loss, largest):
    """Value and gradient, in float64 and in float32."""
    for seed in range(30):
        scores, grades = random_list(seed, largest)
        labels = torch.tensor(grades, dtype=torch.float64)
        if len(set(grades)) == 1:
            continue
        gains = torch.tensor(whole_gains(grades), dtype=torch.float64)
        positions = torch.arange(len(gains)).double()
        best = (gains.sort(descending=True).values / torch.log2(2.0 + positions)).sum()
        ranks = by_rank(scores)
        scores.requires_grad_()
        expected = PLAIN[loss](scores, labels, gains / best, ranks, 1 / torch.log2(1 + ranks))
        (expected_gradient,) = torch.autograd.grad(expected, scores)
        for dtype, precision in ((torch.float64, 1e-9), (torch.float32, 3e-5)):
            given = scores.detach().to(dtype).requires_grad_()
            value = loss()(given[None], labels[None].to(dtype))
            (gradient,) = torch.autograd.grad(value, given)
            close = {"rtol": precision, "atol": precision}
            torch.testing.assert_close(value.double(), expected, **close)
            torch.testing.assert_close(gradient.double(), expected_gradient, **close)


def err_of(grades, max_grade, k):
    """By the definition, the chances as whole numbers over 2^max_grade."""
    reaches = 1.0
    value = 0.0
    for rank, grade in enumerate(grades[:k], start=1):
        satisfied = ((1 << grade) - 1) / (1 << max_grade)
        value += reaches * satisfied / rank
        reaches *= 1 - satisfied
    return value


@pytest.mark.parametrize("max_grade", [4, 30, 300])
def test_err_and_its_swaps_equal_whole_numbers(max_grade):
    """From grade 25 on the chance to be satisfied is 1, rounded to float32."""
    for seed in range(20):
        scores, grades = random_list(seed, max_grade)
        order = scores.argsort(descending=True).tolist()
        ranked = [grades[i] for i in order]
        labels = torch.tensor([grades]).float()
        if not any(grades):
            continue
        metric = RankingMetric("ERR@4", max_grade=max_grade)
        value = metric.per_query(scores[None].float(), labels)
        assert value.item() == pytest.approx(err_of(ranked, max_grade, 4), abs=1e-6)
        expected = 0.0
        for i, better in enumerate(order):
            for j, worse in enumerate(order[i + 1 :], start=i + 1):
                swapped = list(ranked)
                swapped[i], swapped[j] = ranked[j], ranked[i]
                weight = abs(err_of(swapped, max_grade, 4) - err_of(ranked, max_grade, 4))
                gap = (scores[better] - scores[worse]).item()
                expected += weight * math.log1p(math.exp(gap if ranked[j] > ranked[i] else -gap))
        loss = LambdaRankLoss(metric="err", k=4, max_grade=max_grade)
        assert loss(scores[None].float(), labels).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss", PLAIN)
def test_lists_of_a_batch_have_gains_of_their_own(loss):
    """A list of small grades beside one of large grades learns as alone."""
    scores = torch.tensor([[0.3, -0.2, 0.1], [0.5, 0.4, -1.0]])
    labels = torch.tensor([[1.0, 2.0, 0.0], [900.0, 0.0, 901.0]])
    together = loss(reduction="none")(scores, labels)
    alone = torch.stack([loss()(scores[b : b + 1], labels[b : b + 1]) for b in range(2)])
    torch.testing.assert_close(together, alone)
    assert (alone > 0).all()
