"""Packed attention: each text attends to itself only, by every way of computing it."""

from dataclasses import replace

import pytest
import torch

from ltr.draws import draw_site
from ltr.models.encoder import attention
from ltr.models.encoder.attention import Layout
from tests.world.encoders import Calls, bert, reader, texts


def layout_of(lengths, causal=False):
    groups = tuple((lengths.count(n), n) for n in sorted(set(lengths)))
    return Layout(groups, torch.tensor([0, *lengths]).cumsum(0).int(), causal=causal)


def attend(q, k, v, lengths, **options):
    layout = layout_of(lengths, options.pop("causal", False))
    layout = replace(layout, offsets=layout.offsets.to(q.device))
    options = {"kernels": "auto"} | options
    layer = torch.nn.Module()
    layer.draw_site = draw_site(0)
    output, _ = attention._attention(layer, q, k, v, None, packed_layout=layout, **options)
    return output


@pytest.mark.parametrize("way", ["blocks", "flash", "padded", "padded and plain"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [None, 0.5])
def test_attention_is_block_diagonal_and_local(window, dtype, way, causal, softcap, monkeypatch):
    """Against a softmax over all tokens with everything else masked, in value and gradient, with a
    scale of its own. A decoder's tokens see nothing behind them; scaled products of 2 are capped
    hard by 0.5.
    """
    monkeypatch.setattr(attention, "takes_blocks", lambda query, longest: way == "blocks")
    kernels = "plain" if way == "padded and plain" else "auto"
    if way.startswith("padded"):  # a GPU's way where it has no kernel for ragged texts
        monkeypatch.setattr(attention, "_by_length", attention._padded)
    torch.manual_seed(0)
    lengths = [1, 2, 2, 9]
    q, k, v = (torch.randn(1, 2, 14, 8).to(dtype).requires_grad_() for _ in range(3))
    text = torch.arange(4).repeat_interleave(torch.tensor(lengths))
    position = torch.arange(14)
    allowed = text[:, None] == text
    if window:
        allowed &= (position[:, None] - position).abs() < window
    if causal:
        allowed &= position[:, None] >= position
    scores = q.double() @ k.double().transpose(2, 3) * 0.7
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(~allowed, float("-inf"))
    expected = (scores.softmax(dim=-1) @ v.double()).transpose(1, 2)
    options = {"sliding_window": window, "causal": causal, "softcap": softcap, "kernels": kernels}
    outputs = attend(q, k, v, lengths, scaling=0.7, **options).double()
    assert_same(outputs, expected, (q, k, v), 1e-5 if dtype == torch.float32 else 4e-2)


def assert_same(outputs, expected, qkv, tolerance):
    """In value, and in the gradients of a weighted sum."""
    close = {"atol": tolerance, "rtol": tolerance}
    torch.testing.assert_close(outputs, expected, **close)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    found = torch.autograd.grad((outputs * weights).sum(), qkv)
    right = torch.autograd.grad((expected * weights).sum(), qkv)
    torch.testing.assert_close(found, right, **close)


@pytest.mark.parametrize(
    ("able", "trains", "encodes"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, True, False),
        ({"amx_bf16": False, "avx512_bf16": True}, True, True),
        ({}, False, False),
    ],
)
def test_blocks_are_for_bfloat16_on_a_cpu_that_multiplies_it(able, trains, encodes, monkeypatch):
    """In training; without AMX in encoding, too."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    query = torch.zeros(1, 2, 8, dtype=torch.bfloat16, requires_grad=True)
    assert attention.takes_blocks(query, 512) == trains
    assert attention.takes_blocks(query.detach(), 512) == encodes
    assert not attention.takes_blocks(query.float(), 512)
    assert not attention.takes_blocks(query, 513)


@pytest.mark.parametrize("window", [None, 12])
def test_attention_dropout_keeps_the_mean(window):
    """The sum of the kept probabilities is 1 on average, with the variance of scaled coins."""
    q = torch.zeros(1, 4, 4000, 8)
    v = torch.ones(1, 4, 4000, 8)

    def sums_of_kept(p):
        torch.manual_seed(0)
        lengths = [20] * 100 + [40] * 50
        return attend(q, q, v, lengths, dropout=p, sliding_window=window)[..., 0]

    p = 0.25
    sums = sums_of_kept(p)
    assert sums.std() > 0.05
    assert abs(sums.mean() - 1) < 5 * (p / (1 - p) / 12 / sums.numel()) ** 0.5
    assert torch.equal(sums_of_kept(p), sums)
    torch.testing.assert_close(sums_of_kept(0.0), torch.ones_like(sums))


def test_attention_dropout_is_not_forgotten_in_bfloat16(monkeypatch):
    """Blocks have none. With p = 0.5 of three equal probabilities, the sums are not all 1."""
    monkeypatch.setattr(attention, "takes_blocks", lambda query, longest: True)
    torch.manual_seed(0)
    q = torch.zeros(1, 2, 30, 8, dtype=torch.bfloat16)
    v = torch.ones(1, 2, 30, 8, dtype=torch.bfloat16)
    assert attend(q, q, v, [3] * 10, dropout=0.5).float().std() > 0.3
    assert attend(q, q, v, [3] * 10).float().std() < 0.01


def test_all_layers_share_the_slots_of_a_chunk_by_their_heads():
    layout = Layout(((1, 0), (2, 3)), torch.tensor([0, 0, 3, 6]))
    assert layout.slots(2) is layout.slots(2) and len(layout.slots(2).slot_of_row) == 12
    assert len(layout.slots(3).slot_of_row) == 18 and layout.slots(3) is not layout.slots(2)


def of_heads(calls, *names):
    """How many calls of these operators read tokens or places by their heads, ``[…, h, d]``."""
    of = [(name, shape) for name, shape in calls.reads if name in names and len(shape) == 3]
    return sum(calls.reads[call] for call in of)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_padded_texts_are_moved_without_sorting(kernels, monkeypatch):
    """A step of two layers in float32. In the backward pass rows are gathered; with plain kernels
    they are added, as torch has it, but not by an index that it sorts. What says where they lie is
    made once.
    """
    monkeypatch.setattr(attention, "_by_length", attention._padded)
    encoder = reader(bert(), kernels=kernels)
    with Calls() as forward:
        output = encoder(texts([3, 5, 5]))
    with Calls() as backward:
        output.sum().backward()
    moves = 2 * 4  # query, key, value and output
    assert of_heads(forward, "index_select") == moves
    assert backward.calls["index_put"] + backward.calls["_index_put_impl_"] == 0
    selected = of_heads(backward, "index_select")
    added = of_heads(backward, "index_add", "index_add_")
    assert (selected, added) == ((moves, 0) if kernels == "auto" else (0, moves))


def test_padding_gives_no_gradient_even_if_it_is_not_0():
    """Of texts of 1 and 3 tokens. The first one's padding reads tokens of the second."""
    form = layout_of([1, 3]).padded(None)
    assert form.token.tolist() == [0, 1, 2, 1, 2, 3] and form.place.tolist() == [0, 3, 4, 5]
    x = torch.arange(4.0).view(4, 1, 1).requires_grad_()
    places = attention._Gathered.apply(x, form.token, form.place, None)
    (gradient,) = torch.autograd.grad(places, x, torch.arange(1.0, 7.0).view(6, 1, 1))
    assert gradient.flatten().tolist() == [1, 4, 5, 6]
    places = places.detach().requires_grad_()
    tokens = attention._Gathered.apply(places, form.place, form.token, form.is_padding)
    assert tokens.flatten().tolist() == [0, 1, 2, 3]
    (gradient,) = torch.autograd.grad(tokens, places, torch.arange(1.0, 5.0).view(4, 1, 1))
    assert gradient.flatten().tolist() == [1, 0, 0, 2, 3, 4]


def test_all_layers_with_one_window_share_the_padded_form_of_a_chunk():
    layout = layout_of([2, 9])
    assert layout.padded(None) is layout.padded(None) and layout.padded(4) is layout.padded(4)
    assert layout.padded(4).mask.shape == (2, 1, 9, 9) and layout.padded(None).mask.shape[2] == 1
    assert layout_of([3, 3]).padded(None).mask is None


@pytest.mark.parametrize("takes_groups", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_heads_go_to_torch_s_varlen_attention_in_the_precision_of_autocast(
    dtype, takes_groups, monkeypatch
):
    """As they are where it takes groups. A decoder whose norms give float32 is read so, too."""
    seen = []

    def varlen(q, k, v, **options):
        seen.append(([x.shape[1] for x in (q, k, v)], {x.dtype for x in (q, k, v)}, options))
        return q

    monkeypatch.setattr(attention, "varlen_attn", varlen)
    monkeypatch.setattr(attention, "VARLEN_TAKES_GROUPS", takes_groups)
    half = (torch.float16, torch.bfloat16)
    monkeypatch.setattr(attention, "takes_varlen", lambda q: attention._precision(q) in half)
    q = torch.randn(1, 4, 5, 8).to(dtype)
    k, v = torch.randn(2, 1, 2, 5, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(q, k, v, [2, 3])
    ((heads, dtypes, options),) = seen
    assert heads == ([4, 2, 2] if takes_groups else [4, 4, 4]) and dtypes == {torch.bfloat16}
    assert options.get("enable_gqa", False) == takes_groups
    assert torch.equal(output, q.transpose(1, 2).bfloat16())


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_gpu_attends_as_the_cpu(window, dtype, causal, softcap, device):
    torch.manual_seed(0)
    lengths = [3, 30, 30, 70]
    qkv = [torch.randn(1, 2, 133, 32).requires_grad_() for _ in range(3)]
    options = {"sliding_window": window, "causal": causal, "softcap": softcap}
    expected = attend(*qkv, lengths, **options)
    there = attend(*(x.to(device, dtype) for x in qkv), lengths, **options).float().cpu()
    assert_same(there, expected, qkv, 1e-5 if dtype == torch.float32 else 3e-2)
