"""Attention within each text by explicit matmuls, a block at a time, in bfloat16 on a CPU.

A block is some (text, head) pairs whose scores fit the cache. Their probabilities are not kept: the
backward pass computes them again. Texts are padded, within blocks only, to a multiple of 16 tokens,
and blocks hold powers of two: so few sizes recur, for each of which oneDNN compiles and keeps
kernels.

Shapes: T tokens of C texts, h heads of d dimensions, S slots, which are places for a row of d
numbers.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MULTIPLE = 16  # of tokens
SCORES = 2**19  # numbers of a block for each thread: a megabyte in bfloat16


class Block(NamedTuple):
    """Equally long (text, head) pairs side by side.

    Attributes:
        slots: the block's slots.
        pairs, tokens: how many, and of how many tokens each, padding counted.
        padded: whether there is padding.
    """

    slots: slice
    pairs: int
    tokens: int
    padded: bool

    def of(self, x: Tensor) -> Tensor:
        """``[pairs, tokens, n]``, a view of ``[S, n]``."""
        return x[self.slots].view(self.pairs, self.tokens, x.shape[1])


class Slots(NamedTuple):
    """Where each token's heads lie: text by text, head by head.

    Padding follows the last token of each text and head.

    Attributes:
        rows: ``[S]`` int64, which of the rows ``[T * h]`` fills a slot; padding repeats its text's
            last token.
        of_rows: ``[T * h]`` int64, the slot of each row.
        real: ``[S]`` bool, False for padding.
        blocks: all slots, block by block.
    """

    rows: Tensor
    of_rows: Tensor
    real: Tensor
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], heads: int) -> "Slots":
        """Of texts that lie end to end, shortest first."""
        padded = [-(-length // MULTIPLE) * MULTIPLE for length in lengths]
        length_c = torch.tensor(lengths)
        slots_c = heads * torch.tensor(padded)
        first_token_c = length_c.cumsum(0) - length_c
        first_slot_c = slots_c.cumsum(0) - slots_c
        # From here on one number for each of the S slots.
        text = torch.arange(len(lengths)).repeat_interleave(slots_c)
        slot_in_text = torch.arange(len(text)) - first_slot_c[text]
        length = length_c[text]
        tokens = slots_c[text] // heads
        head = slot_in_text // tokens
        token = slot_in_text % tokens
        real = token < length
        rows = (first_token_c[text] + torch.minimum(token, length - 1)) * heads + head
        of_rows = torch.empty(sum(lengths) * heads, dtype=torch.int64)
        of_rows[rows[real]] = real.nonzero().squeeze(1)
        return cls(rows, of_rows, real, tuple(_cut_into_blocks(lengths, padded, heads)))


def _cut_into_blocks(lengths: Sequence[int], padded: Sequence[int], heads: int) -> Iterator[Block]:
    """Blocks of equally padded texts: of a power of two times ``heads`` pairs where these fit, of
    fewer at the end.
    """
    begin = 0
    most_scores = SCORES * torch.get_num_threads()
    for tokens, alike in groupby(zip(padded, lengths, strict=True), key=lambda pair: pair[0]):
        real_lengths = [length for _, length in alike]
        shortest = min(real_lengths)
        pairs_left = heads * len(real_lengths)
        fit = max(1, most_scores // tokens**2)
        while pairs_left:
            pairs = min(heads, fit, pairs_left)
            while 2 * pairs <= min(fit, pairs_left):
                pairs *= 2
            end = begin + pairs * tokens
            yield Block(slice(begin, end), pairs, tokens, shortest < tokens)
            begin = end
            pairs_left -= pairs


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Slots,
    scaling: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Softmax of the scaled products within each text, times the values. Takes and returns
    ``[T, h, d]``.

    With ``sliding_window`` a token attends to tokens nearer than this. Tokens behind the last text
    get zeros.
    """
    output: Tensor = _InBlocks.apply(query, key, value, slots, scaling, sliding_window)
    return output


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slots: Slots,
        scaling: float,
        sliding_window: int | None,
    ) -> Tensor:
        # The scaling goes into the query once: [S, d] has fewer numbers than all scores.
        q, k, v = (_to_slots(x, slots) for x in (query, key, value))
        q.mul_(scaling)
        ctx.save_for_backward(q, k, v)
        ctx.slots = slots
        ctx.scaling = scaling
        ctx.window = sliding_window
        ctx.shape = query.shape
        output = torch.empty_like(q)
        mask = _mask(slots, q)
        for block in slots.blocks:
            p = _probabilities(block, q, k, mask, sliding_window)
            torch.bmm(p, block.of(v), out=block.of(output))
        return _to_rows(output, slots, query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slots: Slots = ctx.slots
        q, k, v = ctx.saved_tensors
        mask = _mask(slots, q)
        of_output = _to_slots(gradient, slots).mul_(slots.real.unsqueeze(1))
        of_q, of_k, of_v = (torch.empty_like(x) for x in (q, k, v))
        for block in slots.blocks:
            p = _probabilities(block, q, k, mask, ctx.window)
            of_o = block.of(of_output)
            torch.bmm(p.transpose(1, 2), of_o, out=block.of(of_v))
            of_p = torch.bmm(of_o, block.of(v).transpose(1, 2))
            of_scores = torch.ops.aten._softmax_backward_data(of_p, p, -1, p.dtype)
            torch.bmm(of_scores, block.of(k), out=block.of(of_q))
            torch.bmm(of_scores.transpose(1, 2), block.of(q), out=block.of(of_k))
        of_q.mul_(ctx.scaling)
        gradients = (_to_rows(x, slots, ctx.shape) for x in (of_q, of_k, of_v))
        return *gradients, None, None, None


def _probabilities(
    block: Block, query: Tensor, key: Tensor, mask: Tensor, sliding_window: int | None
) -> Tensor:
    """``[pairs, tokens, tokens]``. Nothing attends to padding.

    Padding that has nothing within its window attends to all.
    """
    q = block.of(query)
    k = block.of(key).transpose(1, 2)
    if block.padded:
        scores = torch.baddbmm(block.of(mask).transpose(1, 2), q, k)
    else:
        scores = torch.bmm(q, k)
    if sliding_window is not None and sliding_window < block.tokens:
        token = torch.arange(block.tokens)
        outside = (token.unsqueeze(1) - token).abs() >= sliding_window
        # Not -inf: a row of padding would be NaN.
        scores.masked_fill_(outside, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)


def _mask(slots: Slots, like: Tensor) -> Tensor:
    """``[S, 1]``, what is added to the scores of a slot's token: -inf for padding."""
    return torch.zeros_like(like[:, :1]).masked_fill_(~slots.real.unsqueeze(1), float("-inf"))


def _to_slots(x: Tensor, slots: Slots) -> Tensor:
    """``[S, d]`` of ``[T, h, d]``."""
    return x.reshape(-1, x.shape[-1]).index_select(0, slots.rows)


def _to_rows(x: Tensor, slots: Slots, shape: torch.Size) -> Tensor:
    """``[T, h, d]`` of ``[S, d]``, zeros behind the last text."""
    rows = x.new_empty(shape).view(-1, shape[-1])
    torch.index_select(x, 0, slots.of_rows, out=rows[: len(slots.of_rows)])
    rows[len(slots.of_rows) :] = 0
    return rows.view(shape)
