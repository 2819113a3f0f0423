import math

import numpy as np
import pytest
import torch

from ltr.batch import ScoredLists
from ltr.margins import NormalSample
from tests.margins.lists import lists_of, negatives


def test_normal_sample_gives_the_easier_negative_the_larger_draw():
    """Distances 5, 2 and 9 have ranks 1, 0 and 2 among the first three draws of the row."""
    distances = torch.tensor([[0.0, 5.0, 2.0, 9.0, 7.0]])
    given = lists_of([[1.0, 0, 0, 0, 0]], [[True] * 4 + [False]], distances=distances)
    margin = NormalSample(mean=1.0, std=0.1, low=0.0, high=2.0, seed=7)(given)
    draws = sorted(np.random.default_rng([7, 0, 0]).normal(1.0, 0.1, (1, 5))[0, :3])
    assert margin[0, 1:4].tolist() == pytest.approx([draws[1], draws[0], draws[2]])


@pytest.mark.parametrize("by", ["distances", "scores"])
def test_normal_sample_orders_each_list(lists, by):
    given = lists if by == "distances" else lists._replace(distances=None)
    ease = given.distances if by == "distances" else -given.scores
    margin = NormalSample()(given)
    assert margin.shape == (40, 9) and not margin.requires_grad
    assert (margin >= 1e-4).all() and (margin <= 0.5).all()
    for row, real in enumerate(negatives(given)):
        in_order = margin[row, real][ease[row, real].argsort()]
        assert (in_order.diff() >= 0).all()


def test_normal_sample_heeds_neither_padding_nor_order(lists):
    expected = NormalSample()(lists)
    real = negatives(lists)
    noise = torch.where(lists.mask, lists.distances, 1e4 * torch.randn(40, 9))
    other = torch.where(lists.mask, lists.labels, 9.0)
    noisy = lists._replace(distances=noise, labels=other)
    assert torch.equal(NormalSample()(noisy)[real], expected[real])
    order = torch.randperm(9)
    moved = ScoredLists(*(x[:, order] if isinstance(x, torch.Tensor) else x for x in lists))
    assert torch.equal(NormalSample()(moved)[real[:, order]], expected[:, order][real[:, order]])


def test_normal_sample_has_its_distribution():
    """20,000 draws: the mean within 5 standard errors; rows, batches, seeds and ranks draw apart."""
    given = lists_of([[1.0] + [0.0] * 20] * 1000, distances=torch.rand(1000, 21))
    options = {"mean": 0.3, "std": 0.05, "low": 0.0, "high": 1.0}
    policy = NormalSample(**options)
    first = policy(given)[:, 1:]
    assert abs(first.mean() - 0.3) < 5 * 0.05 / math.sqrt(20_000)
    assert abs(first.std() - 0.05) < 0.002
    assert not torch.equal(first[0], first[1]) and not torch.equal(policy(given)[:, 1:], first)
    assert not torch.equal(NormalSample(**options, seed=1)(given)[:, 1:], first)


def test_normal_sample_leaves_the_global_random_state_alone(lists):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    NormalSample()(lists)
    after = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert after == (torch.rand(1), np.random.rand())  # noqa: NPY002


def test_normal_sample_goes_by_score_in_a_list_where_a_negative_has_no_distance(lists):
    """The other lists go by their distances as before."""
    by_distance = NormalSample()(lists)
    by_score = NormalSample()(lists._replace(distances=None))
    row, column = negatives(lists).nonzero()[0]
    assert not torch.equal(by_distance[row], by_score[row])
    lists.distances[row, column] = torch.nan
    by_distance[row] = by_score[row]
    assert torch.equal(NormalSample()(lists), by_distance)
