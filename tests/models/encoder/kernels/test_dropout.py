"""Fast dropout: its share of zeros, its mean, its draws, and its gradient."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ltr.models.encoder.kernels.dropout import (
    FastDropout,
    fast_dropout,
    use_fast_dropout,
    use_torch_dropout,
)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_and_mean_are_those_of_coins(p, dtype):
    """Five standard errors: of the share sqrt(q(1-q)/n), of the mean sqrt(q/(1-q)/n)."""
    torch.manual_seed(0)
    n = 1_000_000
    q = round(256 * p) / 256
    y = fast_dropout(torch.ones(n, dtype=dtype), p)
    assert y.dtype == dtype
    assert abs((y == 0).float().mean() - q) < 5 * (q * (1 - q) / n) ** 0.5
    torch.testing.assert_close(y.max(), torch.tensor(1 / (1 - q), dtype=dtype))
    if dtype == torch.float32:
        assert abs(y.double().mean() - 1) < 5 * (q / (1 - q) / n) ** 0.5


def test_bytes_of_a_draw_are_independent():
    """Neighbours in each of the eight places fall together as often as chance has it."""
    torch.manual_seed(0)
    dropped = (fast_dropout(torch.ones(200_000, 8), 0.25) == 0).float()
    together = (dropped.T @ dropped) / len(dropped)
    expected = torch.full((8, 8), 1 / 16).fill_diagonal_(1 / 4)
    assert (together - expected).abs().max() < 5 * (0.25 * 0.75 / len(dropped)) ** 0.5


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (8, 4), (0, 4)])
def test_the_gradient_is_the_mask_times_the_scale(shape):
    torch.manual_seed(0)
    x = torch.full(shape, 3.0, requires_grad=True)
    y = fast_dropout(x, 0.5)
    assert y.shape == shape
    weights = torch.rand(shape)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    torch.testing.assert_close(gradient, weights * 2 * (y != 0))
    torch.testing.assert_close(y, 6.0 * (y != 0))


def test_the_same_seed_drops_the_same_in_any_layout():
    x = torch.randn(12, 33)
    torch.manual_seed(1)
    expected = fast_dropout(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(fast_dropout(x.T.contiguous().T, 0.3), expected)
    assert not torch.equal(fast_dropout(x, 0.3), expected)


@pytest.mark.parametrize("p", [0.0, 0.001, 0.999, 1 - 1e-9, 1.0])
def test_what_a_byte_cannot_say_is_left_to_torch(p):
    x = torch.randn(1000)
    torch.manual_seed(0)
    expected = F.dropout(x, p)
    torch.manual_seed(0)
    assert torch.equal(fast_dropout(x, p), expected)


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_a_probability_lies_between_0_and_1(p):
    with pytest.raises(ValueError, match="between 0 and 1"):
        FastDropout(p)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fast_dropout(torch.ones(3), p)


def test_the_mask_waits_for_the_backward_pass_in_bytes():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        fast_dropout(torch.randn(1000, requires_grad=True), 0.1)
    assert [x.dtype for x in kept if x.numel() > 1] == [torch.uint8]


def test_eval_and_zero_change_nothing():
    x = torch.randn(10)
    assert FastDropout(0.5).eval()(x) is x and FastDropout(0.0)(x) is x


def test_every_dropout_inside_is_replaced_and_nothing_else():
    shared = nn.Dropout(0.2)
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.Dropout(0.1),
        nn.ModuleDict({"a": shared, "b": shared}),
        nn.Dropout1d(0.1),
    ).eval()
    model[1].train()
    before = model.state_dict()
    use_fast_dropout(model)
    assert [type(module).__name__ for module in model.modules()] == [
        "Sequential", "Linear", "FastDropout", "ModuleDict", "FastDropout", "Dropout1d",
    ]  # fmt: skip
    assert model[1].p == 0.1 and model[2]["b"].p == 0.2
    assert model[1].training and not model[2]["a"].training
    assert model.state_dict().keys() == before.keys()
    use_torch_dropout(model)
    assert not any(isinstance(module, FastDropout) for module in model.modules())
    assert type(model[1]) is nn.Dropout and model[1].p == 0.1
