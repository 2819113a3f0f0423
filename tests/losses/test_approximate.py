import math

import pytest
import torch

from ltr.losses import ApproxMRRLoss, ApproxNDCGLoss, NeuralNDCGLoss
from ltr.metrics import RankingMetric
from tests.losses.by_hand import value


def test_approx_ndcg_by_hand():
    """The relevant one, of grade 2, has the soft rank 1 + 3/4: 1 - (3 / log2(2.75)) / 3."""
    found = value(ApproxNDCGLoss(temperature=1.0), [0, math.log(3)], [2, 0])
    assert found == pytest.approx(1 - 1 / math.log2(2.75))


def test_approx_mrr_by_hand():
    """The best relevant document has the soft rank 1 + 3/4; the other does not count."""
    found = value(ApproxMRRLoss(temperature=1.0), [0, math.log(3), -5], [1, 0, 1])
    assert found == pytest.approx(1 - 1 / 1.75)


def test_neural_ndcg_by_hand():
    """s = (log 3, 0), y = (1, 0): rows of P from the logits s - log 3 = (0, -log 3) and -s - log 3
    = (-2 log 3, -log 3): softmax (3/4, 1/4) and (1/4, 3/4), doubly stochastic already. 1 - (3/4 +
    1/4 / log2(3)).
    """
    found = value(NeuralNDCGLoss(), [math.log(3), 0], [1, 0])
    assert found == pytest.approx(1 - (0.75 + 0.25 / math.log2(3)))


@pytest.mark.parametrize(
    "loss, measure",
    [(ApproxNDCGLoss, "nDCG_exp"), (NeuralNDCGLoss, "nDCG_exp"), (ApproxMRRLoss, "RR")],
)
def test_a_low_temperature_gives_the_metric(loss, measure):
    torch.manual_seed(0)
    scores = torch.randn(20, 8, dtype=torch.float64)
    labels = torch.randint(0, 4, (20, 8)).double()
    mask = torch.arange(8) < torch.randint(3, 9, (20, 1))
    labels[:, 0], labels[:, 1] = 1.0, 0.0
    expected = RankingMetric(measure).per_query(scores, labels, mask).double()
    ours = 1 - loss(temperature=1e-4, reduction="none")(scores, labels, mask)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_neural_ndcg_equals_a_plain_loop():
    """NeuralSort as published, then ten rounds of Sinkhorn in plain numbers."""
    s = [0.3, 0.1, -0.4, 0.0]
    y = [0.0, 2.0, 1.0, 0.0]
    tau = 0.5
    p = []
    for r in range(1, 5):
        logits = [((5 - 2 * r) * a - sum(abs(a - b) for b in s)) / tau for a in s]
        p.append([math.exp(x) for x in logits])
    for _ in range(10):
        p = [[x / sum(row) for x in row] for row in p]
        columns = [sum(row[j] for row in p) for j in range(4)]
        p = [[x / column for x, column in zip(row, columns, strict=True)] for row in p]
    gains = [2**grade - 1 for grade in y]
    dcg = 0.0
    for r, row in enumerate(p, start=1):
        dcg += sum(x * g for x, g in zip(row, gains, strict=True)) / math.log2(1 + r)
    lists = torch.tensor([s], dtype=torch.float64), torch.tensor([y], dtype=torch.float64)
    expected = 1 - dcg / (3 + 1 / math.log2(3))
    found = NeuralNDCGLoss(temperature=tau)(*lists).item()
    assert found == pytest.approx(expected, rel=1e-9)


def test_every_rank_holds_one_document_after_the_soft_sort():
    """Rows of P sum to 1, so equal gains give the best value, whatever the scores."""
    torch.manual_seed(0)
    scores = torch.randn(1, 6, dtype=torch.float64)
    labels = torch.ones(1, 6, dtype=torch.float64)
    almost = labels.clone()
    almost[0, 0] = 1 + 1e-9  # all equal would be left out: nothing to learn
    assert NeuralNDCGLoss()(scores, almost).item() == pytest.approx(0.0, abs=1e-3)
