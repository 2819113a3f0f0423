"""GELU that is computed again: the same gradients, and nothing kept."""

import gc
import weakref

import pytest
import torch
from torch import nn
from transformers.activations import GELUActivation, NewGELUActivation

from ltr.models.encoder.kernels.gelu import LightGelu, gelu_keeps_output, use_light_gelu
from ltr.models.encoder.kernels.linear import FastLinear, SharedCastLinear
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world.encoders import bert, reader, texts


def network(kind):
    torch.manual_seed(0)
    return nn.Sequential(kind(3, 8), GELUActivation(), kind(8, 3))


def remembered(module, inputs=False):
    """References to the memory of its outputs, or of its inputs, that do not keep it."""
    found = []

    def remember(_, args, output):
        kept = args[0] if inputs else output
        found.append(weakref.ref(kept.untyped_storage()))

    module.register_forward_hook(remember)
    return found


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [SharedCastLinear, FastLinear])
def test_the_output_is_not_kept_and_the_gradients_stay_the_same(kind, half):
    module = network(kind)
    x = torch.randn(2, 5, 3, requires_grad=True)
    found = []
    for light in (False, True):
        if light:
            use_light_gelu(module)
        outputs = remembered(module[1])
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            output = module(x)
        gc.collect()
        assert (outputs[0]() is None) == light
        gradients = torch.autograd.grad(output.float().square().sum(), (x, *module.parameters()))
        found.append([output.detach(), *gradients])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs) and ours.any()


def test_a_backward_pass_lets_the_input_go():
    module = network(SharedCastLinear)
    use_light_gelu(module)
    inputs = remembered(module[1], inputs=True)
    output = module(torch.randn(5, 3))
    assert inputs[0]() is not None
    output.sum().backward()
    gc.collect()
    assert inputs[0]() is None


def test_a_second_backward_pass_through_a_kept_graph():
    module = network(SharedCastLinear)
    x = torch.randn(5, 3, requires_grad=True)
    use_light_gelu(module)
    output = module(x).sum()
    first = torch.autograd.grad(output, x, retain_graph=True)
    assert torch.equal(*first, *torch.autograd.grad(output, x))


def test_another_use_of_the_output_keeps_it_and_is_right():
    """The linear layer behind it reads half of the numbers, and keeps them."""
    layer = SharedCastLinear(4, 3)
    x = torch.randn(5, 8, requires_grad=True)
    (found,) = torch.autograd.grad(layer(LightGelu()(x)[:, :4]).square().sum(), x)
    half = nn.functional.gelu(x)[:, :4]
    plain = nn.functional.linear(half, layer.weight, layer.bias)
    (expected,) = torch.autograd.grad(plain.square().sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("change", [lambda y: y.mul_(2), nn.Dropout(0.5, inplace=True)])
def test_an_output_that_is_changed_in_place_is_kept(change):
    torch.manual_seed(0)
    layer = SharedCastLinear(8, 3)
    y = LightGelu()(torch.randn(5, 8, requires_grad=True))
    change(y)
    layer(y).sum().backward()
    torch.testing.assert_close(layer.weight.grad, y.detach().sum(dim=0).expand(3, 8))


@pytest.mark.parametrize("of", ["weight", "input"])
def test_what_waits_and_is_changed_in_place_is_refused(of):
    gelu = LightGelu()
    layer = SharedCastLinear(8, 3)
    h = torch.randn(5, 8, requires_grad=True)
    output = layer(gelu(h)).sum()
    with torch.no_grad():
        (layer.weight if of == "weight" else h).mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        output.backward()


def test_plain_inside_the_block_and_without_gradients():
    gelu = LightGelu()
    x = torch.randn(5, 8, requires_grad=True)
    assert "gelu_origin" in gelu(x).__dict__
    with gelu_keeps_output():
        assert "gelu_origin" not in gelu(x).__dict__
    assert "gelu_origin" in gelu(x).__dict__
    with torch.no_grad():
        assert "gelu_origin" not in gelu(x).__dict__


def activations(encoder):
    return [layer.intermediate.intermediate_act_fn for layer in encoder.model.encoder.layer]


def test_what_is_recomputed_as_a_whole_keeps_no_input_either():
    """Three chunks, of which the last is kept: two layers."""
    encoder = reader(bert(), max_tokens=10, keep_tokens=0)
    inputs = [remembered(activation, inputs=True) for activation in activations(encoder)]
    output = encoder(texts([10] * 3))
    gc.collect()
    for of_layer in inputs:
        assert [one() is not None for one in of_layer] == [False, False, True]
    assert output.isfinite().all()


def test_an_encoder_takes_it_and_other_activations_stay():
    encoder = TextEncoder(bert(), 0)
    assert [type(activation) for activation in activations(encoder)] == [LightGelu] * 2
    other = nn.Sequential(NewGELUActivation())
    use_light_gelu(other)
    assert type(other[0]) is NewGELUActivation
    assert encoder(texts()).isfinite().all()
