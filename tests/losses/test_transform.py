"""Scores as a loss sees them: their softmax over a list, or their sigmoid."""

import itertools
import math

import numpy as np
import pytest
import torch

from ltr.batch import ScoredLists
from ltr.callbacks.health import active_share
from ltr.errors import InputError
from ltr.losses import BatchAllTripletLoss, BCELoss, MarginRankingLoss
from ltr.losses.transform import transformed
from ltr.models import FeatureRanker
from ltr.module import LastStep, RankerModule

ALL = torch.ones(1, 2, dtype=torch.bool)


def test_values_by_hand():
    """Scores log 3 and 0: 3 / (3 + 1), and 3 / (1 + 3) beside 1 / 2; the padding has none."""
    scores = torch.tensor([[math.log(3.0), 0.0, 50.0]])
    mask = torch.tensor([[True, True, False]])
    for transform, expected in (("softmax", [0.75, 0.25, 0]), ("sigmoid", [0.75, 0.5, 0])):
        assert transformed(scores, mask, transform)[0].tolist() == pytest.approx(expected)
    assert transformed(scores, mask, "none") is scores
    with pytest.raises(InputError, match="transform must be one of none, softmax, sigmoid"):
        transformed(scores, mask, "tanh")


def by_loops(scores, mask, transform):
    """Value, and the Jacobian of each row by its formula: p_i (1[i = j] - p_j) of a softmax, and
    p_i (1 - p_i) on the diagonal of a sigmoid.
    """
    values = np.zeros(scores.shape)
    jacobians = np.zeros((*scores.shape, scores.shape[1]))
    for row in range(len(scores)):
        docs = np.flatnonzero(mask[row]).tolist()
        total = sum(math.exp(scores[row, doc]) for doc in docs)
        for i in docs:
            e = math.exp(scores[row, i])
            values[row, i] = e / total if transform == "softmax" else e / (e + 1)
        for i, j in itertools.product(docs, docs):
            if transform == "softmax":
                jacobians[row, i, j] = values[row, i] * ((i == j) - values[row, j])
            elif i == j:
                jacobians[row, i, i] = values[row, i] * (1 - values[row, i])
    return values, jacobians


@pytest.mark.parametrize("transform", ["softmax", "sigmoid"])
def test_values_and_gradients_are_those_of_the_formula(transform):
    """1,000 lists with padding, some without a document, anything at the padding."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 3, (1000, 6))
    mask = rng.random((1000, 6)) < 0.7
    mask[:5] = False
    expected, jacobians = by_loops(scores, mask, transform)
    noisy = torch.tensor(np.where(mask, scores, rng.choice([np.nan, np.inf, 1e4], scores.shape)))
    noisy.requires_grad_()
    values = transformed(noisy, torch.tensor(mask), transform)
    np.testing.assert_allclose(values.detach().numpy(), expected, rtol=1e-12, atol=1e-15)
    upstream = rng.normal(size=scores.shape)
    (gradient,) = torch.autograd.grad(values, noisy, torch.tensor(upstream))
    by_formula = np.einsum("bi,bij->bj", upstream, jacobians)
    np.testing.assert_allclose(gradient.numpy(), by_formula, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("transform", ["softmax", "sigmoid"])
def test_scores_of_any_size_and_precision(transform):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        scores = torch.tensor([[1e4, -1e4]], dtype=dtype, requires_grad=True)
        values = transformed(scores, ALL, transform)
        assert values.dtype == torch.float32
        assert values.tolist() == [[1.0, 0.0]]
        (gradient,) = torch.autograd.grad(values.sum(), scores)
        assert gradient.isfinite().all()


def test_a_nan_that_comes_in_goes_out():
    scores = torch.tensor([[torch.nan, 1.0]])
    assert transformed(scores, ALL, "softmax").isnan().all()
    assert transformed(scores, ALL, "sigmoid")[0, 0].isnan()


def scored(module, scores, labels, mask):
    """A training step over these lists: its loss, and what it kept."""

    class Given(torch.nn.Module):
        def forward(self, ranker, batch, margin):
            return ScoredLists(scores, labels, mask)

    module.in_batch = Given()
    module.log = lambda *args, **kwargs: None
    module.ranker.padding_share = lambda batch: None
    batch = type("Batch", (), {"labels": labels, "with_keys": lambda self, keys: self})()
    return module.training_step(batch, 0)


@pytest.mark.parametrize("transform", ["none", "softmax", "sigmoid"])
@pytest.mark.parametrize("loss", [BCELoss(), MarginRankingLoss(0.3), BatchAllTripletLoss(0.3)])
def test_a_training_step_gives_its_loss_the_transformed_scores(loss, transform):
    """Against plain torch over in-batch rows: the mask leaves out what a row must not see."""
    torch.manual_seed(0)
    scores = torch.randn(4, 8, requires_grad=True)
    labels = (torch.rand(4, 8) < 0.3).float()
    mask = torch.rand(4, 8) < 0.8
    module = RankerModule(FeatureRanker(2), loss, transform=transform)
    value = scored(module, scores, labels, mask)
    seen = scores
    if transform == "softmax":
        seen = scores.masked_fill(~mask, -torch.inf).softmax(dim=1)
    elif transform == "sigmoid":
        seen = torch.sigmoid(scores)
    expected = loss(seen, labels, mask)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, scores)[0] for x in (value, expected)))


def test_the_health_of_a_run_counts_pairs_as_its_loss_does():
    """Scores log 3 and 0 of a relevant and an irrelevant document: a gap of 1.1, or 1/2 after the
    softmax. So a margin of 0.6 is active after it, and not before.
    """
    labels = torch.tensor([[1.0, 0.0]])
    scores = torch.tensor([[math.log(3.0), 0.0]], requires_grad=True)
    for transform, active in (("none", 0.0), ("softmax", 1.0)):
        module = RankerModule(FeatureRanker(2), MarginRankingLoss(0.6), transform=transform)
        scored(module, scores, labels, ALL)
        assert isinstance(module.last_step, LastStep)
        assert float(active_share(module, module.last_step)) == active
