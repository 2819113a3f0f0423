"""Weights that are cast together, as on a GPU: here on a CPU, where that is forced."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ltr.models.encoder.kernels import half_weights, use_own_forwards, use_plain
from ltr.models.encoder.kernels.linear import SharedCastLinear, cast_once
from ltr.models.encoder.loading.architecture import layers_of
from ltr.models.encoder.lora import Lora
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world.encoders import Calls, bert, gradients, modernbert, reader, texts

BUILDS = [bert, modernbert]
HALVES = [torch.bfloat16, torch.float16]


def together(monkeypatch, wanted=True):
    monkeypatch.setattr(half_weights, "launches_cost", lambda device: wanted)


def linears(encoder):
    layers = layers_of(encoder.model)
    return [module for module in layers.modules() if isinstance(module, SharedCastLinear)]


def outputs_and_gradients(encoder, dtype=torch.bfloat16):
    with torch.autocast("cpu", dtype):
        outputs = encoder(texts())
    return outputs.detach(), gradients(encoder, outputs.square().sum())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("build", BUILDS)
def test_outputs_and_gradients_are_those_of_autocast_to_the_bit(build, dtype, monkeypatch):
    encoder = reader(build())
    use_own_forwards(encoder.model)  # which rounds otherwise
    expected, right = outputs_and_gradients(encoder, dtype)
    together(monkeypatch)
    outputs, found = outputs_and_gradients(encoder, dtype)
    assert torch.equal(outputs, expected) and found.keys() == right.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient, right[name]), name


def test_each_layer_casts_in_one_call_and_its_gradients_in_another(monkeypatch):
    together(monkeypatch)
    encoder = reader(bert())
    shapes = {tuple(p.shape) for linear in linears(encoder) for p in linear.parameters()}
    with Calls() as forward, torch.autocast("cpu", torch.bfloat16):
        outputs = encoder(texts())
    with Calls() as backward:
        outputs.sum().backward()
    n_layers = len(layers_of(encoder.model))
    for calls in (forward, backward):
        assert calls.calls["_foreach_copy_"] == n_layers
        assert not any(calls.reads["_to_copy", shape] for shape in shapes)


def test_in_float32_and_under_compile_nothing_is_cast(monkeypatch):
    together(monkeypatch)
    encoder = reader(bert())
    with Calls() as calls:
        encoder(texts()).sum().backward()
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        with torch.autocast("cpu", torch.bfloat16):
            encoder(texts())
    assert not calls.calls["_foreach_copy_"]


@pytest.mark.parametrize("build", BUILDS)
def test_chunks_that_are_computed_again_give_the_same_gradients(build, monkeypatch):
    together(monkeypatch)
    encoder = reader(build(), max_tokens=20)
    _, expected = outputs_and_gradients(encoder)
    again = TextEncoder(encoder.model, 0, TextEncoder.Options(max_tokens=20, keep_tokens=0))
    _, found = outputs_and_gradients(again)
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


def products_of_backward(encoder):
    with torch.autocast("cpu", torch.bfloat16):
        loss = encoder(texts()).square().sum()
    with Calls() as calls:
        loss.backward()
    return calls.calls["mm"]


def test_frozen_weights_and_weights_that_are_not_read_get_no_gradient(monkeypatch):
    """Nor is one computed for them."""
    together(monkeypatch)
    encoder = reader(bert())
    layer = layers_of(encoder.model)[0]
    before = products_of_backward(encoder)
    encoder.zero_grad()
    layer.intermediate.requires_grad_(False)
    layer.linears += (SharedCastLinear(3, 3),)  # which nothing reads
    assert products_of_backward(encoder) == before - 1
    assert layer.intermediate.dense.weight.grad is None
    assert layer.linears[-1].weight.grad is None
    for part in (layer.attention, layer.output):
        assert all(p.grad.abs().sum() > 0 for p in part.parameters() if p.ndim > 1)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_adapters_learn_as_under_autocast(dtype, monkeypatch):
    """A base in bfloat16 needs no cast."""
    encoder = reader(bert(), lora=Lora(r=2), dtype=dtype)
    for name, weight in encoder.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.3)
    expected, right = outputs_and_gradients(encoder)
    together(monkeypatch)
    outputs, found = outputs_and_gradients(encoder)
    assert torch.equal(outputs, expected) and found.keys() == right.keys()
    assert found and all(torch.equal(found[name], right[name]) for name in found)


def test_layers_without_a_weight_in_float32_are_left_to_autocast(monkeypatch):
    encoder = reader(bert())
    encoder.model.bfloat16()
    expected, right = outputs_and_gradients(encoder)
    together(monkeypatch)
    outputs, found = outputs_and_gradients(encoder)
    assert torch.equal(outputs, expected) and found
    assert all(torch.equal(gradient, right[name]) for name, gradient in found.items())


def test_weights_that_change_are_seen_and_nothing_is_left_behind(monkeypatch):
    """Not after an error either."""
    together(monkeypatch)
    encoder = reader(bert())
    before, _ = outputs_and_gradients(encoder)
    for linear in linears(encoder):
        linear.weight.data.mul_(1.1)  # no version is counted
    after, _ = outputs_and_gradients(encoder)
    assert not torch.equal(after, before) and half_weights._running.get() is None
    handle = layers_of(encoder.model)[1].intermediate.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outputs_and_gradients(encoder)
    handle.remove()
    assert half_weights._running.get() is None
    assert torch.equal(outputs_and_gradients(encoder)[0], after)


def test_what_an_interrupt_leaves_is_not_read_afterwards(monkeypatch):
    """Torch calls no hook then. Weights change, and the encoder moves to a CPU."""
    together(monkeypatch)
    encoder = reader(bert())

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = layers_of(encoder.model)[0].intermediate.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        outputs_and_gradients(encoder)
    handle.remove()
    assert half_weights._running.get()
    for linear in linears(encoder):
        linear.weight.data.mul_(1.1)
    together(monkeypatch, wanted=False)
    first, second = (outputs_and_gradients(encoder)[0] for _ in range(2))
    assert torch.equal(first, second) and half_weights._running.get() is None


def test_another_thread_may_read_in_the_midst_of_a_layer(monkeypatch):
    """In another precision, without gradients, and with other weights."""
    together(monkeypatch)
    encoder = reader(bert())
    layer = layers_of(encoder.model)[0]
    expected, right = outputs_and_gradients(encoder)
    exact = encoder(texts()).detach()
    found = []

    def read():
        with torch.inference_mode():
            found.append(encoder(texts()))
            with torch.autocast("cpu", torch.bfloat16):
                found.append(encoder(texts()))

    def start(*_):
        handle.remove()
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

    handle = layer.attention.register_forward_hook(start)
    outputs, gradients_found = outputs_and_gradients(encoder)
    assert torch.equal(outputs, expected) and torch.equal(found[0], exact)
    assert torch.equal(found[1], expected)
    assert all(torch.equal(gradients_found[name], right[name]) for name in right)


def test_copies_cast_their_own_weights(monkeypatch):
    together(monkeypatch)
    encoder = reader(bert())
    expected, _ = outputs_and_gradients(encoder)
    for copied in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        layer = layers_of(copied.model)[0]
        assert layer.linears[0] is next(m for m in layer.modules() if m in set(layer.linears))
        for linear in linears(encoder):
            linear.weight.data.zero_()
        assert torch.equal(outputs_and_gradients(copied)[0], expected)
        encoder = copied


def test_a_second_derivative_is_refused(monkeypatch):
    together(monkeypatch)
    encoder = reader(bert())
    with torch.autocast("cpu", torch.bfloat16):
        loss = encoder(texts()).square().sum()
    weight = linears(encoder)[0].weight
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_plain_model_casts_by_itself_again(monkeypatch):
    together(monkeypatch)
    encoder = reader(bert())
    use_plain(encoder.model)
    with Calls() as calls:
        outputs_and_gradients(encoder)
    assert not calls.calls["_foreach_copy_"]


@pytest.mark.parametrize("build", BUILDS)
def test_an_encoding_casts_all_weights_in_one_call_and_stays_in_bfloat16(build, monkeypatch):
    """Six chunks. Norms too, of which each sees bfloat16 and gives it."""
    together(monkeypatch)
    encoder = reader(build(), max_tokens=10).eval()
    for bias in (p for p in encoder.parameters() if p.ndim == 1):
        nn.init.normal_(bias, std=0.5)
    norms = [m for m in layers_of(encoder.model).modules() if isinstance(m, nn.LayerNorm)]
    calls_of_norms = []

    def check(norm, args, output):
        parameters = [None if p is None else p.bfloat16() for p in (norm.weight, norm.bias)]
        with torch.autocast("cpu", enabled=False):
            expected = F.layer_norm(args[0], norm.normalized_shape, *parameters, norm.eps)
        assert args[0].dtype == torch.bfloat16 and torch.equal(output, expected)
        calls_of_norms.append(norm)

    with torch.no_grad():
        exact = encoder(texts())
        for norm in norms:
            norm.register_forward_hook(check)
        with torch.autocast("cpu", torch.bfloat16), Calls() as calls, cast_once(encoder.model):
            found = encoder(texts())
    assert len(calls_of_norms) == 6 * len(norms) and calls.calls["_foreach_copy_"] == 1
    assert found.dtype == torch.float32 and not torch.equal(found, exact)
    assert F.cosine_similarity(found, exact).min() > 0.999


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_a_read_with_gradients_or_in_another_precision_keeps_float32_norms(dtype, monkeypatch):
    together(monkeypatch)
    encoder = reader(bert()).eval()
    found = []
    precision = torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)
    with torch.set_grad_enabled(dtype == torch.bfloat16), precision:
        expected = encoder(texts())
        with cast_once(encoder.model):
            found.append(encoder(texts()))
    assert torch.equal(found[0], expected)
    assert all(m.half_weights is None for m in encoder.modules() if hasattr(m, "half_weights"))


def test_nothing_of_an_encoding_is_left_behind(monkeypatch):
    together(monkeypatch)
    encoder = reader(bert()).eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = encoder(texts())
        with cast_once(encoder.model):
            assert not torch.equal(encoder(texts()), expected)
            trained = torch.enable_grad()
            with torch.inference_mode(False), trained:  # as another part of a program may
                assert encoder(texts()).requires_grad
        assert torch.equal(encoder(texts()), expected)
    assert all(m.half_weights is None for m in encoder.modules() if hasattr(m, "half_weights"))
