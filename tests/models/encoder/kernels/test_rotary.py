"""Rotary positions in few launches, as on a GPU: here on a CPU, where that is forced."""

import copy
import pickle

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXModel, Phi3Config, Phi3Model
from transformers.models.modernbert.modeling_modernbert import ModernBertAttention

from ltr.models.encoder.kernels import half_weights, rotary, use_own_forwards
from ltr.models.encoder.kernels.rotary import use_light_rotary
from tests.world.decoders import decoder
from tests.world.encoders import (
    Calls,
    assert_same_to_rounding,
    bert,
    gradients,
    modernbert,
    reader,
    texts,
    with_large_weights,
)

BUILDS = {
    "modernbert": lambda: with_large_weights(modernbert()),
    "qwen3": lambda: decoder("qwen3"),
    "gemma3": lambda: decoder("gemma3"),
}


def costly(monkeypatch, wanted=True):
    monkeypatch.setattr(half_weights, "launches_cost", lambda device: wanted)


def attentions(model):
    return [m for m in model.modules() if "forward" in vars(m) and m.forward.func is rotary.attend]


def test_value_and_gradient_by_hand():
    """x = (1, 2), cos = (3, 5), sin = (7, 11): y = (1·3 - 2·7, 2·5 + 1·11). Of a gradient (1, 10)
    x has (1·3 + 10·11, 10·5 - 1·7).
    """
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = rotary._Rotated.apply(x, torch.tensor([3.0, 5.0]), torch.tensor([7.0, 11.0]))
    assert y.tolist() == [-11.0, 21.0]
    (gradient,) = torch.autograd.grad(y, x, torch.tensor([1.0, 10.0]))
    assert gradient.tolist() == [113.0, 43.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BUILDS)
def test_an_encoder_computes_the_same_with_fewer_launches(name, dtype, monkeypatch):
    model = BUILDS[name]()
    encoder = reader(model, 3, pooling="last" if name != "modernbert" else "mean")
    assert len(attentions(model)) == len(model.layers)
    of = texts(ids=(4, 60))
    found = []
    for costs in (False, True):
        costly(monkeypatch, costs)
        with Calls() as calls, torch.autocast("cpu", torch.bfloat16, dtype == torch.bfloat16):
            output = encoder(of)
        assert calls.calls["addcmul_"] == (4 * len(model.layers) if costs else 0)
        assert bool(calls.calls["neg"]) != costs
        weights = torch.linspace(-1, 1, output.numel()).view_as(output)
        found.append((output.detach(), gradients(encoder, (output * weights).sum())))
    assert_same_to_rounding(*found, dtype)


PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize("kinds", [(GPTNeoXConfig, GPTNeoXModel), (Phi3Config, Phi3Model)])
def test_a_part_of_a_head_is_rotated_as_transformers_does(kinds, monkeypatch):
    config, kind = kinds
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 60, "pad_token_id": 3}
    encoder = reader(
        with_large_weights(kind(config(**sizes, rope_parameters=PARTIAL))), 3, pooling="last"
    )
    assert len(attentions(encoder.model)) == 2
    expected = encoder(texts(ids=(4, 60)))
    costly(monkeypatch)
    torch.testing.assert_close(encoder(texts(ids=(4, 60))), expected, atol=1e-5, rtol=1e-5)


def test_another_rotation_and_none_are_left_as_they_are(monkeypatch):
    theirs = ModernBertAttention.forward.__globals__["apply_rotary_pos_emb"]

    def interleaved(q, k, cos, sin, unsqueeze_dim=1):
        return theirs(q.flip(-1), k, cos, sin, unsqueeze_dim)

    def without_unsqueezing(q, k, freqs):
        return q, k

    for other in (interleaved, without_unsqueezing):
        assert not rotary._computes_the_same(other)
    assert rotary._computes_the_same(theirs)
    model = bert()
    use_light_rotary(model)
    assert not attentions(model)


def test_what_is_compiled_and_other_precisions_rotate_as_transformers_does(monkeypatch):
    costly(monkeypatch)
    encoder = reader(modernbert())
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with Calls() as calls:
        encoder(texts())
    assert not calls.calls["addcmul_"]
    q = torch.ones(1, 1, 2, 4)
    cos = torch.ones(1, 2, 4, dtype=torch.bfloat16)
    assert rotary.rotated(q, q, cos, cos, otherwise=lambda *_, **__: "theirs") == "theirs"


def test_copies_attend_with_their_own_weights_and_what_is_undone_is_gone(monkeypatch):
    costly(monkeypatch)
    encoder = reader(modernbert()).eval()
    expected = encoder(texts())
    copies = [copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))]
    for weight in encoder.parameters():
        weight.data.zero_()
    assert all(torch.equal(copied(texts()), expected) for copied in copies)
    use_own_forwards(copies[0].model)
    assert not attentions(copies[0].model)
    torch.testing.assert_close(copies[0](texts()), expected, atol=1e-5, rtol=1e-5)
