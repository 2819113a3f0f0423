"""Attention within each of several texts that lie end to end, as implementations that transformers
finds by their names.

Shapes: T tokens of the C texts of a chunk, h heads of d dimensions, L tokens of a text, or of the
longest.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ltr.models.encoder.kernels.blocks import Slots, attend_in_blocks
from ltr.models.encoder.kernels.dropout import fast_dropout
from ltr.models.encoder.kernels.first_tokens import attended
from ltr.models.encoder.loading.pooling import Pooling

Kernels = Literal["auto", "plain"]
# The implementation's name by the option ``kernels``: with blocks and the cheap mask of dropout,
# or by torch's attention alone.
PACKED: dict[Kernels, str] = {"auto": "ltr_packed", "plain": "ltr_packed_plain"}
# The longest text that attends by explicit matmuls, in blocks, on a CPU that multiplies bfloat16.
# The backward pass of torch's flash kernel is slow there, and without AMX its forward pass, too:
# benchmarks/attention.py. Longer texts attend faster as well, but flash keeps scores in float32: at
# 1,024 tokens its error is half as large.
LONGEST_IN_BLOCKS = 512


@dataclass(frozen=True, eq=False)
class Layout:
    """Which tokens of a chunk are one text.

    An object, not a tuple, so that models pass it on to their attention untouched.

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
        """Where the heads of each token lie in blocks. All layers share it.

        See :func:`ltr.models.encoder.kernels.blocks.attend_in_blocks`.
        """
        if heads not in self._slots:
            lengths: list[int] = []
            for n_texts, length in self.groups:
                if length:
                    lengths += n_texts * [length]
            self._slots[heads] = Slots.of(lengths, heads)
        return self._slots[heads]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kernels: Kernels,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed_layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: takes ``[B, h, T, d]``, returns ``[B, T, h, d]``.

    With ``packed_layout`` it is attention over a chunk (B = 1), without it torch's over padded
    texts. Key and value may have fewer heads than the query, each for a group of its heads.
    ``sliding_window``: a token attends to tokens nearer than this. ``others`` are for other
    implementations.
    """
    if kernels == "auto":
        first = None
        if packed_layout is not None and packed_layout.first_alone:
            first = packed_layout.offsets[:-1].long()
        attended(first, query.shape[2])
    if packed_layout is not None:
        queries_per_key = query.shape[1] // key.shape[1]
        key = repeat_kv(key, queries_per_key)
        value = repeat_kv(value, queries_per_key)
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        output = _block_diagonal(q, k, v, packed_layout, scaling, dropout, sliding_window, kernels)
        return output.unsqueeze(0), None
    if attention_mask is None:
        attention_mask = _window(query.shape[2], sliding_window, query.device)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, **others
    )


@torch.compiler.disable  # or every new layout would be compiled
def _block_diagonal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    scaling: float | None,
    p: float,
    sliding_window: int | None,
    kernels: Kernels,
) -> Tensor:
    """Takes and returns ``[T, h, d]``; each text attends to itself only."""
    longest = layout.groups[-1][1]
    if not p and takes_varlen(query):
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
        ends = layout.offsets, layout.offsets, longest, longest
        output = varlen_attn(query, key, value, *ends, scale=scaling, window_size=window)
        assert isinstance(output, Tensor), "auxiliary outputs come only when asked for"
        return output
    if kernels == "auto" and not p and takes_blocks(query, longest):
        slots = layout.slots(query.shape[1])
        scale = _scale(query, scaling)
        return attend_in_blocks(query, key, value, slots, scale, sliding_window)
    # Many small kernels cost a GPU more than some padding does; for a CPU it is the other way
    # round.
    if query.is_cuda:
        return _padded(query, key, value, layout, scaling, p, sliding_window)
    return _by_length(query, key, value, layout, scaling, p, sliding_window, kernels)


def _by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    scaling: float | None,
    p: float,
    sliding_window: int | None,
    kernels: Kernels,
) -> Tensor:
    """Texts of equal length together. Padding gets zeros."""
    attend = _with_cheap_dropout if kernels == "auto" and p else _by_torch
    sizes = [n_texts * length for n_texts, length in layout.groups]
    q_parts, k_parts, v_parts = (x.split([*sizes, layout.padding]) for x in (query, key, value))
    outputs = []
    for group, *parts in zip(layout.groups, q_parts, k_parts, v_parts, strict=False):
        # [C L, h, d] to [C, h, L, d] and back.
        q, k, v = (x.unflatten(0, group).transpose(1, 2) for x in parts)
        output = attend(q, k, v, scaling, p, sliding_window)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    outputs.append(value.new_zeros(layout.padding, *value.shape[1:]))
    return torch.cat(outputs)


def _by_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    p: float,
    sliding_window: int | None,
) -> Tensor:
    """Takes and returns ``[C, h, L, d]``."""
    mask = _window(query.shape[2], sliding_window, query.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=p, scale=scaling
    )


def _with_cheap_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    p: float,
    sliding_window: int | None,
) -> Tensor:
    """Takes and returns ``[C, h, L, d]``. With dropout, torch has no flash kernel on a CPU."""
    mask = _window(query.shape[2], sliding_window, query.device)
    scores = (query * _scale(query, scaling)) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return fast_dropout(scores.softmax(dim=-1), p) @ value


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    scaling: float | None,
    p: float,
    sliding_window: int | None,
) -> Tensor:
    """All texts at once, padded to the longest."""
    offsets = layout.offsets.long()
    longest = layout.groups[-1][1]
    lengths = offsets.diff()
    column = torch.arange(longest, device=query.device)
    token = (offsets[:-1].unsqueeze(1) + column).clamp(max=len(query) - 1)  # [C, L]
    mask = (column < lengths.unsqueeze(1))[:, None, None]
    window = _window(longest, sliding_window, query.device)
    if window is not None:
        # Padding attends to itself: a row that sees nothing would be NaN, and make every gradient
        # NaN.
        mask = (mask & window) | torch.eye(longest, dtype=torch.bool, device=query.device)
    q, k, v = (x[token].transpose(1, 2) for x in (query, key, value))
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=scaling)
    text = torch.arange(len(lengths), device=query.device)
    text = text.repeat_interleave(lengths, output_size=len(query))
    position = torch.arange(len(query), device=query.device) - offsets[text]
    return output.transpose(1, 2)[text, position]


def takes_varlen(query: Tensor) -> bool:
    """Whether torch's attention for texts of varying length reads packed texts; it has no dropout."""
    return query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)


def takes_blocks(query: Tensor, longest: int) -> bool:
    """Whether explicit matmuls in blocks beat torch's flash kernel for ``[T, h, d]``.

    Args:
        query: what attends.
        longest: tokens of the longest text.
    """
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16", False):
        faster = query.requires_grad  # in encoding, flash was the faster one there
    else:
        faster = capabilities.get("avx512_bf16", False)
    in_half = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return faster and in_half and longest <= LONGEST_IN_BLOCKS


def _scale(query: Tensor, scaling: float | None) -> float:
    """What products of query and key are multiplied by."""
    return query.shape[-1] ** -0.5 if scaling is None else scaling


def _window(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """``[L, L]`` bool, True where tokens are nearer than the window. None where all of them are."""
    if sliding_window is None or length <= sliding_window:
        return None
    position = torch.arange(length, device=device)
    return (position.unsqueeze(1) - position).abs() < sliding_window


def _mask(*args: Any, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Torch's mask for padded texts. A packed chunk gets none: it would be ``[T, T]``."""
    if attention_mask is None:
        return None
    return sdpa_mask(*args, attention_mask=attention_mask, **options)


# Registered on import, so that an encoder unpickled in another process finds its attention.
for _kernels, _name in PACKED.items():
    AttentionInterface.register(_name, partial(_attention, kernels=_kernels))
    AttentionMaskInterface.register(_name, _mask)
