"""RMSNorm by torch's own kernel, as on a GPU: here on a CPU, where that is forced."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from ltr.models.encoder.kernels import half_weights, use_own_forwards
from ltr.models.encoder.kernels.rms_norm import use_fused_rms_norm
from tests.world.decoders import decoder
from tests.world.encoders import assert_same_to_rounding, gradients, reader, texts


@pytest.fixture
def by_torch(monkeypatch):
    """What torch's kernel was called with."""
    seen = []

    def counted(x, *others):
        seen.append(x)
        return torch.rms_norm(x, *others)

    monkeypatch.setattr(half_weights, "launches_cost", lambda device: True)
    monkeypatch.setattr(F, "rms_norm", counted)
    return seen


def norm_of(weight, kind=Qwen3RMSNorm, eps=0.0):
    norm = kind(len(weight), eps=eps)
    norm.weight.data = torch.tensor(weight)
    return norm


def test_value_by_hand(by_torch):
    """x = (3, 4): the mean square is 12.5; w = (1, 2)."""
    norm = norm_of([1.0, 2.0])
    use_fused_rms_norm(norm)
    expected = torch.tensor([3.0, 8.0]) / 12.5**0.5
    by_torch.clear()
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), expected)
    assert len(by_torch) == 1
    norm.weight.data.mul_(3)
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), 3 * expected)


class Square(Qwen3RMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * self.weight


class OtherArguments(Qwen3RMSNorm):
    def forward(self, hidden_states, residual):
        return super().forward(hidden_states + residual)


class Gated(Qwen3RMSNorm):
    """As Bamba's."""

    def forward(self, hidden_states, gate=None):
        hidden_states = hidden_states if gate is None else hidden_states * F.silu(gate)
        return super().forward(hidden_states)


@pytest.mark.parametrize("kind", [Gemma3RMSNorm, Square, OtherArguments, Gated, nn.LayerNorm])
def test_what_computes_something_else_stays_as_it_is(kind):
    """Even where its weights hide it, as ones do."""
    norm = kind(4)
    if kind is Gemma3RMSNorm:
        norm.variance_epsilon = norm.eps
    use_fused_rms_norm(norm)
    assert "forward" not in vars(norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_computes_the_same(dtype, by_torch, monkeypatch):
    """In float32 to rounding. Under autocast what is near in value; norms are float32 there."""
    encoder = reader(decoder("qwen3"), 3, pooling="last")
    of = texts(ids=(4, 400))
    found = []
    for costs in (False, True):
        monkeypatch.setattr(half_weights, "launches_cost", lambda device, costs=costs: costs)
        by_torch.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = encoder(of)
        assert bool(by_torch) == costs
        weights = torch.linspace(-1, 1, output.numel()).view_as(output)
        found.append((output.detach(), gradients(encoder, (output * weights).sum())))
    assert_same_to_rounding(*found, dtype)


def test_one_kernel_takes_one_type_so_others_are_left_to_transformers(by_torch):
    norm = norm_of([1.0, 2.0])
    use_fused_rms_norm(norm)
    by_torch.clear()
    assert norm(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert not by_torch


def test_copies_have_their_own_weights_and_what_is_undone_is_gone(by_torch):
    norm = norm_of([1.0, 2.0])
    use_fused_rms_norm(norm)
    x = torch.tensor([3.0, 4.0])
    expected = norm(x)
    copies = [copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))]
    norm.weight.data.zero_()
    assert all(torch.equal(copied(x), expected) for copied in copies)
    use_own_forwards(norm)
    by_torch.clear()
    assert torch.equal(norm(x), torch.zeros(2)) and "forward" not in vars(norm) and not by_torch
