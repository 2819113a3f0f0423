import itertools
import math

import pytest
import torch

from ltr.losses import MarginRankingLoss
from ltr.margins import Learnable
from tests.margins.lists import lists_of, one_list
from tests.pairs.test_blocks import Tensors


def plain_distances(h: torch.Tensor) -> torch.Tensor:
    return (h.unsqueeze(2) - h.unsqueeze(1)).norm(dim=3)


def test_learnable_by_hand():
    """Distances 5, 1 and √18; k = 0.1 within [0.2, 0.45]; the gradient is k times the unit."""
    h = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]], requires_grad=True)
    margin = Learnable(k=0.1, floor=0.2, cap=0.45)(one_list(h))
    middle = 0.1 * math.sqrt(18)
    expected = torch.tensor([[[0.2, 0.45, 0.2], [0.45, 0.2, middle], [0.2, middle, 0.2]]])
    torch.testing.assert_close(margin, expected)
    margin[0, 1, 2].backward()
    unit = torch.tensor([3.0, 3.0]) / math.sqrt(18)
    torch.testing.assert_close(h.grad[0], 0.1 * torch.stack([torch.zeros(2), unit, -unit]))


def test_learnable_has_the_gradient_of_the_plain_form():
    torch.manual_seed(0)
    h = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    policy = Learnable(k=0.3, floor=1e-3, cap=50.0).double()
    weight = torch.randn(2, 4, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h: policy(one_list(h)) * weight, (h,))
    off = ~torch.eye(4).bool()  # the plain form has no gradient at 0
    ours = torch.autograd.grad((policy(one_list(h)) * weight)[:, off].sum(), (h, policy.theta))
    k = 0.3 * 2 ** policy.theta.tanh()
    distinct = 0.0
    for i, j in itertools.permutations(range(4), 2):
        distinct += ((h[:, i] - h[:, j]).norm(dim=1) * weight[:, i, j]).sum()
    plain = torch.autograd.grad(k * distinct, (h, policy.theta))
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("floor", [1e-30, 0.1])
def test_learnable_is_quiet_where_there_is_no_distance(floor):
    """Equal documents, i = j, and padding (NaN even); large means lose no digits."""
    h = torch.randn(1, 1, 8).repeat(1, 4, 1) + 1e3
    h[0, 3] = torch.nan
    h.requires_grad_()
    labels = torch.zeros(1, 4)
    policy = Learnable(floor=floor, cap=1e9)
    margin = policy(lists_of(labels, torch.tensor([[True, True, True, False]]), embeddings=h))
    assert torch.isfinite(margin).all() and (margin[0, :3, :3] == floor).all()
    margin[0, :3, :3].sum().backward()
    assert (h.grad == 0).all() and policy.theta.grad == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_learnable_counts_in_float32(dtype):
    h = torch.randn(2, 5, 16).to(dtype)
    margin = Learnable(k=0.1)(one_list(h))
    assert margin.dtype == torch.float32
    torch.testing.assert_close(margin, (0.1 * plain_distances(h.float())).clamp(0.1, 1.0))


def test_learnable_needs_no_tensor_of_all_differences():
    """B = 2, N = 8, H = 64: nothing larger than B·N·H, forwards and backwards."""
    h = torch.randn(2, 8, 64, requires_grad=True)
    with Tensors() as seen:
        Learnable()(one_list(h)).sum().backward()
    assert seen.largest == 2 * 8 * 64


@pytest.mark.parametrize("learnt", ["k", "h", "both"])
def test_a_learnt_margin_shrinks_to_its_bounds_and_no_further(learnt):
    """The scores stay, so k falls to k₀/2, or every margin to the floor."""
    torch.manual_seed(0)
    policy = Learnable(k=0.2, floor=0.05, cap=10.0)
    h = torch.nn.Parameter(torch.randn(3, 5, 4))
    labels = torch.tensor([[2.0, 1.0, 0.0, 0.0, 0.0]]).expand(3, 5)
    pair_bij = labels.unsqueeze(2) > labels.unsqueeze(1)
    trained = {"k": [policy.theta], "h": [h], "both": [policy.theta, h]}[learnt]
    optimizer = torch.optim.Adam(trained, lr=0.05)
    start = policy(one_list(h))[pair_bij]
    for _ in range(400):
        margin = policy(one_list(h))
        assert margin.min() >= 0.05 and policy.k >= 0.1
        optimizer.zero_grad()
        MarginRankingLoss()(torch.zeros(3, 5), labels, margin=margin).backward()
        optimizer.step()
    end = policy(one_list(h))[pair_bij]
    if learnt == "k":
        assert policy.k < 0.101
        torch.testing.assert_close(end, (start / 2).clamp(min=0.05), rtol=0.01, atol=0)
    else:
        assert start.mean() > 0.4 and (end < 0.06).all()


def test_the_floor_cuts_the_gradient_and_so_does_the_cap():
    h = torch.tensor([[[0.0], [1.0], [2.0], [9.0]]], requires_grad=True)
    policy = Learnable(k=1.0, floor=1.5, cap=8.5)
    margin = policy(one_list(h))
    for j, cut in ((1, True), (2, False), (3, True)):
        gradients = torch.autograd.grad(margin[0, 0, j], (h, policy.theta), retain_graph=True)
        assert all((g == 0).all() == cut for g in gradients)
