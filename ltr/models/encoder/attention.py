"""Attention within each of several texts that lie end to end, as an implementation that transformers finds by its name.

Shapes: T tokens of the C texts of a chunk, h heads of d dimensions, L tokens of a text, or of the longest.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ltr.models.encoder.blocks import Slots, attend_in_blocks
from ltr.models.encoder.dropout import fast_dropout
from ltr.models.encoder.first_tokens import attended
from ltr.models.encoder.pooling import Pooling

NAME = "ltr_packed"
# The longest text that attends by explicit matmuls, in blocks, on a CPU that multiplies bfloat16. The backward pass of torch's
# flash kernel is slow there, and without AMX its forward pass, too: benchmarks/attention.py. Longer texts attend faster as well,
# but flash keeps scores in float32: at 1,024 tokens its error is half as large.
LONGEST_IN_BLOCKS = 512


@dataclass(frozen=True, eq=False)
class Layout:
    """Which tokens of a chunk are one text. An object, not a tuple, so that models pass it on to their attention untouched.

    Attributes:
        groups: texts of equal length lie side by side: (number of texts, length), shortest first.
        offsets: ``[C + 1]`` int32, where each text begins, and where the last one ends.
        padding: tokens behind the last text, which nothing attends to; on a CPU alone.
        first_alone: whether no token is read of the last layer but the first of each text.
        head: what a head behind the encoder reads of each text; None: there is no head.
    """

    groups: tuple[tuple[int, int], ...]
    offsets: Tensor
    padding: int = 0
    first_alone: bool = False
    head: Pooling | None = None
    _slots: dict[int, Slots] = field(default_factory=dict, init=False, repr=False)

    def slots(self, heads: int) -> Slots:
        """Where the heads of each token lie for :func:`ltr.models.encoder.blocks.attend_in_blocks`. All layers share it."""
        if heads not in self._slots:
            self._slots[heads] = Slots.of([length for n_texts, length in self.groups for _ in range(n_texts) if length], heads)
        return self._slots[heads]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed_layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: takes ``[B, h, T, d]``, returns ``[B, T, h, d]``.

    With ``packed_layout`` it is attention over a chunk (B = 1), without it torch's over padded texts. ``sliding_window``: a token
    attends to tokens nearer than this. ``others`` are for other implementations.
    """
    first = None if packed_layout is None or not packed_layout.first_alone else packed_layout.offsets[:-1].long()
    attended(first, query.shape[2])
    if packed_layout is not None:
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        return _block_diagonal(q, k, v, packed_layout, scaling, dropout, sliding_window).unsqueeze(0), None
    if attention_mask is None:
        attention_mask = _window(query.shape[2], sliding_window, query.device)
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)


@torch.compiler.disable  # or every new layout would be compiled
def _block_diagonal(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None, p: float, sliding_window: int | None
) -> Tensor:
    """Takes and returns ``[T, h, d]``; each text attends to itself only."""
    if not p and takes_varlen(query):
        longest = layout.groups[-1][1]
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
        ends = layout.offsets, layout.offsets, longest, longest
        output = varlen_attn(query, key, value, *ends, scale=scaling, window_size=window)
        assert isinstance(output, Tensor), "auxiliary outputs come only when asked for"
        return output
    if not p and takes_blocks(query, layout.groups[-1][1]):
        return attend_in_blocks(query, key, value, layout.slots(query.shape[1]), _scale(query, scaling), sliding_window)
    # Many small kernels cost a GPU more than some padding does; for a CPU it is the other way round.
    attend = _padded if query.is_cuda else _by_length
    return attend(query, key, value, layout, scaling, p, sliding_window)


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None, p: float, sliding_window: int | None
) -> Tensor:
    """Texts of equal length together. Padding gets zeros."""
    outputs = []
    sizes = [*(n_texts * length for n_texts, length in layout.groups), layout.padding]
    for group, *qkv in zip(layout.groups, *(x.split(sizes) for x in (query, key, value)), strict=False):
        q, k, v = (x.unflatten(0, group).transpose(1, 2) for x in qkv)
        outputs.append(_attend(q, k, v, scaling, p, sliding_window).transpose(1, 2).flatten(0, 1))
    return torch.cat([*outputs, value.new_zeros(layout.padding, *value.shape[1:])])


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, p: float, sliding_window: int | None) -> Tensor:
    """Takes and returns ``[C, h, L, d]``."""
    mask = _window(query.shape[2], sliding_window, query.device)
    if not p:  # with dropout, torch has no flash kernel on a CPU
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = (query * _scale(query, scaling)) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return fast_dropout(scores.softmax(dim=-1), p) @ value


def _padded(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None, p: float, sliding_window: int | None
) -> Tensor:
    """All texts at once, padded to the longest."""
    offsets, longest = layout.offsets.long(), layout.groups[-1][1]
    lengths = offsets.diff()
    column = torch.arange(longest, device=query.device)
    token = (offsets[:-1].unsqueeze(1) + column).clamp(max=len(query) - 1)
    mask = (column < lengths.unsqueeze(1))[:, None, None]
    window = _window(longest, sliding_window, query.device)
    if window is not None:  # padding attends to itself: a row that sees nothing would be NaN, and make every gradient NaN
        mask = (mask & window) | torch.eye(longest, dtype=torch.bool, device=query.device)
    q, k, v = (x[token].transpose(1, 2) for x in (query, key, value))
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=scaling)
    text = torch.arange(len(lengths), device=query.device).repeat_interleave(lengths, output_size=len(query))
    return output.transpose(1, 2)[text, torch.arange(len(query), device=query.device) - offsets[text]]


def takes_varlen(query: Tensor) -> bool:
    """Whether torch's attention for texts of varying length reads packed texts; it has no dropout."""
    return query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)


def takes_blocks(query: Tensor, longest: int) -> bool:
    """Whether explicit matmuls in blocks beat torch's flash kernel for ``[T, h, d]`` and texts of at most ``longest`` tokens."""
    able = torch.cpu.get_capabilities()
    faster = query.requires_grad if able.get("amx_bf16", False) else able.get("avx512_bf16", False)
    return faster and query.device.type == "cpu" and query.dtype == torch.bfloat16 and longest <= LONGEST_IN_BLOCKS


def _scale(query: Tensor, scaling: float | None) -> float:
    return query.shape[-1] ** -0.5 if scaling is None else scaling


def _window(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """``[L, L]`` bool, True where tokens are nearer than the window. None where all of them are."""
    if sliding_window is None or length <= sliding_window:
        return None
    position = torch.arange(length, device=device)
    return (position.unsqueeze(1) - position).abs() < sliding_window


def _mask(*args: Any, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Torch's mask for padded texts. A packed chunk gets none: it would be ``[T, T]``."""
    return None if attention_mask is None else sdpa_mask(*args, attention_mask=attention_mask, **options)


# Registered on import, so that an encoder unpickled in another process finds its attention.
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
