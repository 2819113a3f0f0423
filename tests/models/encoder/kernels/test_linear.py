"""Fast linear layers: shared casts, oneDNN, and weights laid out once."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import DistilBertConfig, DistilBertModel

from ltr.models.encoder.kernels import linear, use_plain
from ltr.models.encoder.kernels.linear import (
    FastLinear,
    SharedCastLinear,
    cast_once,
    use_fast_linear,
)
from ltr.models.encoder.loading.architecture import layers_of
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world.encoders import Calls, bert, gradients, modernbert, reader, texts

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch without oneDNN"
)
AMD = {"avx512_f": True, "cpu_name": "AMD EPYC 9755"}


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (1, 6, 5), (2, 3, 4, 5)])
def test_outputs_and_gradients_are_those_of_torch(shape, bias):
    torch.manual_seed(0)
    layer = FastLinear(5, 7, bias=bias)
    x = torch.randn(shape, requires_grad=True)
    gradient = torch.randn(*shape[:-1], 7)
    inputs = [x, *layer.parameters()]
    expected = F.linear(*inputs)
    torch.testing.assert_close(layer(x), expected)
    found = torch.autograd.grad(layer(x), inputs, gradient)
    torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, gradient))


@needs_onednn
def test_rows_that_are_not_contiguous_and_frozen_weights():
    torch.manual_seed(0)
    layer = FastLinear(5, 7).requires_grad_(False)
    x = torch.randn(5, 6)
    torch.testing.assert_close(layer(x.t()), F.linear(x.t(), layer.weight, layer.bias))
    torch.testing.assert_close(layer(x.t()[::2]), F.linear(x.t()[::2], layer.weight, layer.bias))
    x.requires_grad_()
    layer(x.t()).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(dim=0).unsqueeze(1).expand(5, 6))
    assert layer.weight.grad is None and layer(torch.zeros(0, 5)).shape == (0, 7)


def test_half_precision_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(linear, "_onednn_product", None)  # which would raise
    layer = FastLinear(5, 7)
    x = torch.randn(6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert layer.double()(x.double()).dtype == torch.float64


def casts(encoder) -> int:
    """How many chunks, [1, T, H], are cast in a read."""
    with torch.autocast("cpu", torch.bfloat16), Calls() as calls:
        encoder(texts())
    return sum(n for shape, n in calls.cast.items() if shape[:1] == (1,))


def shared(encoder):
    return [layer for layer in encoder.modules() if isinstance(layer, SharedCastLinear)]


@pytest.mark.parametrize("training", [True, False])
def test_query_key_and_value_share_a_cast(training, monkeypatch):
    """In each layer: the input of attention, and of the feed-forward network; else four."""
    encoder = TextEncoder(bert(), 0).train(training)
    n_layers = len(encoder.model.encoder.layer)
    with torch.set_grad_enabled(training):
        assert casts(encoder) == 2 * n_layers
        use_plain(encoder.model)
        assert casts(encoder) == 4 * n_layers


def test_a_shared_cast_gives_the_outputs_and_gradients_of_autocast():
    encoder = TextEncoder(bert(), 0).eval()
    found = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            output = encoder(texts())
        # Of matrices: the gradient of a key's bias is rounding alone.
        weights = gradients(encoder, output.square().sum()).values()
        found.append([output.detach(), *(weight for weight in weights if weight.ndim > 1)])
        use_plain(encoder.model)
    assert torch.equal(found[0][0], found[1][0]) and len(found[0]) == len(found[1]) > 10
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= 0.02 * theirs.norm() + 1e-6


@pytest.mark.parametrize("kind", [SharedCastLinear, FastLinear])
def test_a_cast_is_not_shared_where_it_would_be_wrong(kind):
    """Of an input that has changed, in another precision, behind a pass without gradients."""
    layer = kind(3, 3, bias=False)
    x = torch.randn(2, 3)
    torch.nn.init.eye_(layer.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), x.bfloat16())
        x.add_(1)
        assert torch.equal(layer(x), x.bfloat16())
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(layer(x), x.half())
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            layer(x)
        layer(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(2, 3)).dtype == torch.bfloat16


LAID_OUT = "_reorder_linear_weight"
multiplies_half = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN multiplies no bfloat16 on this CPU",
)


def distilbert():
    torch.manual_seed(0)
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 60}
    return DistilBertModel(DistilBertConfig(**sizes))


@multiplies_half
@pytest.mark.parametrize("build", [bert, modernbert, distilbert])
def test_an_encoding_casts_each_weight_once_and_stays_in_bfloat16(build):
    """Six chunks. Embeddings are near those of float32."""
    encoder = reader(build(), max_tokens=10).eval()
    dtypes = []
    layers = shared(encoder)
    for bias in (p for p in encoder.parameters() if p.ndim == 1):
        nn.init.normal_(bias, std=0.5)
    inside = layers_of(encoder.model).modules()
    norms = [module for module in inside if isinstance(module, nn.LayerNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda *args: dtypes.append(args[2].dtype))
    shapes = {tuple(layer.weight.shape) for layer in layers}
    with torch.no_grad():
        exact = encoder(texts())
        dtypes.clear()
        with torch.autocast("cpu", torch.bfloat16), Calls() as calls, cast_once(encoder.model):
            found = encoder(texts())
        assert set(dtypes) == {torch.bfloat16} and len(dtypes) == 6 * len(norms)
        assert sum(calls.cast[shape] for shape in shapes) == len(layers)
        assert calls.calls[LAID_OUT] == len(layers)
    assert found.dtype == torch.float32 and not torch.equal(found, exact)
    assert F.cosine_similarity(found, exact).min() > 0.999


@multiplies_half
def test_nothing_of_an_encoding_is_left_behind():
    """Not after an error either; weights that change are seen, whatever changes them."""
    encoder = TextEncoder(bert(), 0).eval()
    layers = shared(encoder)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        with cast_once(encoder.model):
            before = encoder(texts())
        for layer in layers:
            # As averaged weights are put in place: no version is counted.
            layer.weight.data.mul_(1.1)
        with cast_once(encoder.model):
            assert not torch.equal(encoder(texts()), before)
        with pytest.raises(ValueError, match="planted"), cast_once(encoder.model):
            raise ValueError("planted")
    assert all(layer.half_weights is None for layer in layers)
    output = encoder(texts())
    assert output.dtype == torch.float32 and output.requires_grad
    output.sum().backward()
    assert layers[0].weight.grad is not None


@multiplies_half
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_a_read_with_gradients_or_in_another_precision_is_left_to_autocast(dtype):
    encoder = TextEncoder(bert(), 0).eval()

    precision = torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)
    with (
        torch.set_grad_enabled(dtype == torch.bfloat16),
        Calls() as calls,
        precision,
        cast_once(encoder.model),
    ):
        encoder(texts())
    assert calls.calls and not calls.calls[LAID_OUT]


@multiplies_half
def test_another_thread_may_train_or_read_in_float32_beside_an_encoding():
    encoder = TextEncoder(bert(), 0).eval()
    expected = encoder(texts()).detach()
    found = []

    def train():
        found.append(encoder(texts()))
        with torch.autocast("cpu", torch.bfloat16):
            encoder(texts()).sum().backward()
        with torch.no_grad():
            found.append(encoder(texts()))

    thread = threading.Thread(target=train)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), cast_once(encoder.model):
        thread.start()
        thread.join()
    assert all(torch.equal(one, expected) for one in found) and len(found) == 2
    assert all(p.grad is not None for p in encoder.parameters())


@multiplies_half
def test_a_layer_that_takes_no_hidden_states_first_is_left_as_it_is():
    """As in MarkupLM, whose longest list of modules is one of embeddings."""
    layer = nn.Identity()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for ids in (torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.float64)):
            assert linear._cast_hidden_states(layer, (ids,)) is None
        assert linear._cast_hidden_states(layer, ()) is None
        assert linear._cast_hidden_states(layer, (torch.ones(2), 1))[0].dtype == torch.bfloat16


@needs_onednn
def test_a_second_derivative_is_refused():
    x = torch.randn(6, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(FastLinear(5, 1)(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("able", "kind"),
    [
        (AMD, FastLinear),
        (AMD | {"avx512_f": False}, SharedCastLinear),
        (AMD | {"cpu_name": "Intel(R) Xeon(R) Platinum 8481C"}, SharedCastLinear),
        ({}, SharedCastLinear),
    ],
)
@needs_onednn
def test_only_an_amd_cpu_with_avx512_takes_it(monkeypatch, able, kind):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    layer = nn.Sequential(nn.Linear(2, 3))
    use_fast_linear(layer)
    assert type(layer[0]) is kind


@needs_onednn
def test_an_encoder_keeps_its_weights_and_outputs(monkeypatch):
    """Layers of another kind stay as they are: they may compute something else."""

    def kinds(encoder):
        return [type(module) for module in encoder.modules() if isinstance(module, nn.Linear)]

    monkeypatch.setattr(linear, "mkl_is_slow", lambda: False)
    plain = TextEncoder(bert(), 0)
    monkeypatch.setattr(linear, "mkl_is_slow", lambda: True)
    fast = TextEncoder(copy.deepcopy(plain.model), 0)
    assert kinds(fast) == [FastLinear] * 6 * len(plain.model.encoder.layer)
    assert set(kinds(plain)) == {SharedCastLinear}
    for name, values in plain.state_dict().items():
        assert torch.equal(fast.state_dict()[name], values)
    torch.testing.assert_close(fast(texts()), plain(texts()))
    layer = fast.model.encoder.layer[0].output.dense
    copied = pickle.loads(pickle.dumps(layer))
    assert type(copied) is FastLinear and torch.equal(copied.weight, layer.weight)
    other = nn.Sequential(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2))
    use_fast_linear(other)
    assert type(other[0]) is nn.modules.linear.NonDynamicallyQuantizableLinear
