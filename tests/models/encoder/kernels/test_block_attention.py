"""Attention in blocks. That it equals a softmax over all tokens is shown by test_attention.py."""

import pytest
import torch

from ltr.models.encoder.kernels import block_attention
from ltr.models.encoder.kernels.block_attention import Slots, attend_in_blocks

HEADS = 3
WIDTH = 4


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def drawn(n_tokens, dtype=torch.float32, heads=HEADS, width=WIDTH):
    torch.manual_seed(0)
    return [torch.randn(n_tokens, heads, width).to(dtype).requires_grad_() for _ in range(3)]


def test_slots_of_a_padded_and_a_full_text_by_hand(monkeypatch):
    """Two heads: a text of 3 tokens has rows 0 to 5, one of 4 rows 6 to 13, token by token."""
    monkeypatch.setattr(block_attention, "MULTIPLE", 4)
    slots = Slots.from_lengths([3, 4], heads=2)
    assert slots.row_of_slot.tolist() == [0, 2, 4, 4, 1, 3, 5, 5, 6, 8, 10, 12, 7, 9, 11, 13]
    assert slots.real.tolist() == [True, True, True, False] * 2 + [True] * 8
    assert slots.slot_of_row.tolist() == [0, 4, 1, 5, 2, 6, 8, 12, 9, 13, 10, 14, 11, 15]
    assert slots.blocks == ((slice(0, 16), 4, 4, True),)


def shapes(slots):
    return [(block.pairs, block.tokens, block.padded) for block in slots.blocks]


def test_blocks_have_the_same_few_sizes(monkeypatch):
    # Four texts of 17 to 32 tokens.
    monkeypatch.setattr(block_attention, "SCORES_OF_THREAD", 12 * 32 * 32)
    slots = Slots.from_lengths([1, 16] + [32] * 7 + [33], HEADS)
    assert shapes(slots) == [
        (6, 16, True),
        (12, 32, False),
        (6, 32, False),
        (3, 32, False),
        (3, 48, True),
    ]
    assert slots.blocks[1].span == slice(6 * 16, 6 * 16 + 12 * 32)


def test_a_text_whose_scores_do_not_fit_is_read_by_some_heads_at_a_time(monkeypatch):
    monkeypatch.setattr(block_attention, "SCORES_OF_THREAD", 2 * 16 * 16)
    assert shapes(Slots.from_lengths([16, 16], HEADS)) == [(2, 16, False)] * 3
    assert shapes(Slots.from_lengths([64], HEADS)) == [(1, 64, False)] * 3


@pytest.mark.parametrize("scores", [1, 5 * 16 * 16, 2**19])
@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_texts_that_attend_together_attend_as_alone(scores, window, causal, monkeypatch):
    """Whatever the size of a block. Tokens behind the last text get zeros, and no gradient."""
    monkeypatch.setattr(block_attention, "SCORES_OF_THREAD", scores)
    lengths = [1, 2, 15, 16, 17, 17, 30, 40]
    q, k, v = drawn(sum(lengths) + 5)
    output = attend_in_blocks(q, k, v, Slots.from_lengths(lengths, HEADS), 0.6, window, causal)
    weights = torch.randn(output.shape)
    found = torch.autograd.grad((output * weights).sum(), (q, k, v))
    for part in torch.arange(sum(lengths)).split(lengths):
        alone = [x.detach()[part].double().requires_grad_() for x in (q, k, v)]
        scored = torch.einsum("qhd,khd->hqk", alone[0], alone[1]) * 0.6
        if window:
            scored = scored.masked_fill((part[:, None] - part).abs() >= window, float("-inf"))
        if causal:
            scored = scored.masked_fill(part[:, None] < part, float("-inf"))
        expected = torch.einsum("hqk,khd->qhd", scored.softmax(dim=-1), alone[2])
        torch.testing.assert_close(output[part].double(), expected, atol=1e-5, rtol=1e-5)
        gradients = torch.autograd.grad((expected * weights[part]).sum(), alone)
        ours = tuple(gradient[part].double() for gradient in found)
        torch.testing.assert_close(ours, gradients, atol=1e-5, rtol=1e-5)
    assert output.isfinite().all() and not output[-5:].any()
    assert not any(gradient[-5:].any() for gradient in found)


def test_large_scores_in_bfloat16_leave_padding_out():
    """Scores of 2^16, of which bfloat16 knows every 512th: to lower one by less does nothing."""
    q, k, v = (torch.ones(17, 1, 1, dtype=torch.bfloat16) for _ in range(3))
    k[:] = 2**16
    v[:, 0, 0] = torch.arange(17)
    output = attend_in_blocks(q, k, v, Slots.from_lengths([17], 1), 1.0)
    torch.testing.assert_close(
        output.float(), torch.full((17, 1, 1), 8.0), atol=0.05, rtol=0
    )  # the mean of 0 to 16


def test_more_threads_take_larger_blocks(monkeypatch):
    monkeypatch.setattr(block_attention, "SCORES_OF_THREAD", 3 * 16 * 16)
    assert shapes(Slots.from_lengths([16] * 4, HEADS)) == [(3, 16, False)] * 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert shapes(Slots.from_lengths([16] * 4, HEADS)) == [(6, 16, False)] * 2


def test_probabilities_are_not_kept():
    """What waits for the backward pass: query, key and value."""
    kept: list[torch.Tensor] = []

    def keep(x):
        kept.append(x)
        return x

    q, k, v = drawn(96, torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend_in_blocks(q, k, v, Slots.from_lengths([48, 48], HEADS), 1.0)
    assert sum(x.numel() for x in kept) == 3 * 96 * HEADS * WIDTH
