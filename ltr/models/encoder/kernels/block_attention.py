"""Attention within each text by explicit matmuls, a block at a time, in bfloat16 on a CPU.

A block is some (text, head) pairs whose scores fit the cache. Their probabilities are not kept: the
backward pass computes them again.

oneDNN compiles and keeps a kernel for each size of a matrix, so few sizes should recur. For this
texts are padded to a multiple of 16 tokens, within blocks only, and the number of pairs in a block
is ``heads`` times a power of two where that fits.

Queries, keys and values come as rows ``[T * h, d]``: token by token, and for each its heads. A
block needs them head by head, padded: as slots ``[S, d]``. Two texts of 3 and 16 tokens with 2
heads have 38 rows and 64 slots: 16 for the first text and head, of which 13 are padding, 16 for its
second head, and then 16 and 16 for the second text.

Shapes: T tokens of C texts, h heads of d dimensions, S slots.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MULTIPLE = 16  # of tokens
SCORES_OF_THREAD = 2**19  # of a block, for each thread: a megabyte in bfloat16


class Block(NamedTuple):
    """Equally long (text, head) pairs side by side.

    Attributes:
        span: the block's slots, as a slice of all.
        pairs: how many (text, head) pairs.
        tokens: of each pair, padding counted.
        padded: whether there is padding.
    """

    span: slice
    pairs: int
    tokens: int
    padded: bool

    def view(self, x: Tensor) -> Tensor:
        """This block's part of ``x``, ``[pairs, tokens, n]``: a view of ``[S, n]``."""
        return x[self.span].view(self.pairs, self.tokens, x.shape[1])


class Slots(NamedTuple):
    """From rows to slots and back; see the head of this file.

    Attributes:
        row_of_slot: ``[S]`` int64, the row that each slot gets; padding gets that of its text's
            last token.
        slot_of_row: ``[T * h]`` int64, the slot of each row.
        real: ``[S]`` bool, False for padding.
        blocks: all slots, block by block.
    """

    row_of_slot: Tensor
    slot_of_row: Tensor
    real: Tensor
    blocks: tuple[Block, ...]

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], heads: int) -> "Slots":
        """The slots of texts of these lengths, which lie end to end, shortest first."""
        padded_lengths = []
        for n_tokens in lengths:
            n_multiples = (n_tokens + MULTIPLE - 1) // MULTIPLE  # rounded up
            padded_lengths.append(n_multiples * MULTIPLE)
        # One number for each of the C texts.
        length_c = torch.tensor(lengths)
        n_slots_c = heads * torch.tensor(padded_lengths)
        first_token_c = length_c.cumsum(0) - length_c
        first_slot_c = n_slots_c.cumsum(0) - n_slots_c
        # From here on one number for each of the S slots: its text, and the head and the token
        # within that text, where padding counts on behind the last token.
        text = torch.arange(len(lengths)).repeat_interleave(n_slots_c)
        slot_in_text = torch.arange(len(text)) - first_slot_c[text]
        length = length_c[text]
        padded_length = n_slots_c[text] // heads
        head = slot_in_text // padded_length
        token = slot_in_text % padded_length
        real = token < length
        # Rows lie token by token, and for each token head by head.
        row_of_slot = (first_token_c[text] + torch.minimum(token, length - 1)) * heads + head
        # The inverse, padding left out.
        slot_of_row = torch.empty(sum(lengths) * heads, dtype=torch.int64)
        slot_of_row[row_of_slot[real]] = real.nonzero().squeeze(1)
        blocks = tuple(_cut_into_blocks(lengths, padded_lengths, heads))
        return cls(row_of_slot, slot_of_row, real, blocks)


def _cut_into_blocks(
    lengths: Sequence[int], padded_lengths: Sequence[int], heads: int
) -> Iterator[Block]:
    """Blocks of ``heads`` times a power of two equally padded pairs; of fewer at the end."""
    first_slot = 0
    first_text = 0
    most_scores = SCORES_OF_THREAD * torch.get_num_threads()
    for tokens, same in groupby(padded_lengths):
        n_texts = len(list(same))
        shortest = min(lengths[first_text : first_text + n_texts])
        first_text += n_texts
        pairs_left = heads * n_texts
        most_pairs = max(1, most_scores // tokens**2)
        while pairs_left:
            # As many pairs as heads, then doubled for as long as they fit.
            pairs = min(heads, most_pairs, pairs_left)
            while 2 * pairs <= min(most_pairs, pairs_left):
                pairs *= 2
            end = first_slot + pairs * tokens
            yield Block(slice(first_slot, end), pairs, tokens, padded=shortest < tokens)
            first_slot = end
            pairs_left -= pairs


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Slots,
    scaling: float,
    sliding_window: int | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention within each text: the softmax of the scaled products, times the values.

    Args:
        query, key, value: ``[T, h, d]``.
        slots: where the texts and heads lie.
        scaling: of the products.
        sliding_window: a token attends to tokens nearer than this; None: to all.
        causal: whether a token attends only to itself and to those before it.

    Returns:
        ``[T, h, d]``, zeros for tokens behind the last text.
    """
    output: Tensor = _InBlocks.apply(query, key, value, slots, scaling, sliding_window, causal)
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
        causal: bool,
    ) -> Tensor:
        # The scaling goes into the query once: [S, d] has fewer numbers than all scores.
        q, k, v = (_to_slots(x, slots) for x in (query, key, value))
        q.mul_(scaling)
        ctx.save_for_backward(q, k, v)
        ctx.slots = slots
        ctx.scaling = scaling
        ctx.window = sliding_window
        ctx.causal = causal
        ctx.shape = query.shape
        output = torch.empty_like(q)
        mask = _padding_mask(slots, q)
        for block in slots.blocks:
            p = _probabilities(block, q, k, mask, sliding_window, causal)
            torch.bmm(p, block.view(v), out=block.view(output))
        return _to_rows(output, slots, query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slots: Slots = ctx.slots
        q, k, v = ctx.saved_tensors
        mask = _padding_mask(slots, q)
        # Padding repeats the row of the last token, whose gradient must count once.
        grad_output = _to_slots(gradient, slots).mul_(slots.real.unsqueeze(1))
        grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
        for block in slots.blocks:
            p = _probabilities(block, q, k, mask, ctx.window, ctx.causal)
            grad_block = block.view(grad_output)
            torch.bmm(p.transpose(1, 2), grad_block, out=block.view(grad_v))
            grad_p = torch.bmm(grad_block, block.view(v).transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_p, p, -1, p.dtype)
            torch.bmm(grad_scores, block.view(k), out=block.view(grad_q))
            torch.bmm(grad_scores.transpose(1, 2), block.view(q), out=block.view(grad_k))
        grad_q.mul_(ctx.scaling)
        gradients = (_to_rows(x, slots, ctx.shape) for x in (grad_q, grad_k, grad_v))
        return *gradients, None, None, None, None


def _probabilities(
    block: Block,
    query: Tensor,
    key: Tensor,
    mask: Tensor,
    sliding_window: int | None,
    causal: bool,
) -> Tensor:
    """The attention weights of a block, ``[pairs, tokens, tokens]``.

    A key that is padding gets the weight 0. There is one exception, a query that is padding itself,
    with no token within its window: nothing reads its output.
    """
    q = block.view(query)
    k = block.view(key).transpose(1, 2)
    if block.padded:
        mask_of_keys = block.view(mask).transpose(1, 2)  # [pairs, 1, tokens]
        scores = torch.baddbmm(mask_of_keys, q, k)  # mask + q @ k
    else:
        scores = torch.bmm(q, k)
    cuts = sliding_window is not None and sliding_window < block.tokens
    if cuts or causal:
        token = torch.arange(block.tokens)
        distance = token.unsqueeze(1) - token  # of a key from its query; below 0: behind it
        outside = distance.abs() >= (sliding_window or block.tokens)
        if causal:
            outside |= distance < 0
        # Not -inf: a row of padding would be NaN.
        scores.masked_fill_(outside, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)


def _padding_mask(slots: Slots, like: Tensor) -> Tensor:
    """``[S, 1]``, what is added to the scores of each key: -inf for padding, else 0."""
    return torch.zeros_like(like[:, :1]).masked_fill_(~slots.real.unsqueeze(1), float("-inf"))


def _to_slots(x: Tensor, slots: Slots) -> Tensor:
    """From ``[T, h, d]`` to ``[S, d]``."""
    return x.reshape(-1, x.shape[-1]).index_select(0, slots.row_of_slot)


def _to_rows(x: Tensor, slots: Slots, shape: torch.Size) -> Tensor:
    """From ``[S, d]`` to ``shape``, ``[T, h, d]``, with zeros behind the last text."""
    rows = x.new_empty(shape).view(-1, shape[-1])
    torch.index_select(x, 0, slots.slot_of_row, out=rows[: len(slots.slot_of_row)])
    rows[len(slots.slot_of_row) :] = 0
    return rows.view(shape)
