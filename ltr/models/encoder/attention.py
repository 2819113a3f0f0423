"""Attention within each of several texts that lie end to end.

It is registered in transformers as two implementations of attention, which models find by name.

Shapes: T tokens of the C texts of a chunk, h heads of d dimensions, L tokens of a text, or of the
longest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ltr.draws import draw_site, keys_at_site, keys_inside
from ltr.dropout import keyed_dropout, new_keys
from ltr.models.encoder.kernels.block_attention import Slots, attend_in_blocks
from ltr.models.encoder.kernels.first_tokens import announce_first_tokens
from ltr.models.encoder.loading.pooling import Pooling

Kernels = Literal["auto", "plain"]
# The implementation's name in transformers, by the option ``kernels``: with blocks and the cheap
# mask of dropout, or by torch's attention alone.
PACKED_ATTENTION: dict[Kernels, str] = {"auto": "ltr_packed", "plain": "ltr_packed_plain"}
# The longest text that attends by explicit matmuls, in blocks, on a CPU that multiplies bfloat16.
# On such a CPU torch's flash kernel is slow in the backward pass, and without AMX in the forward
# pass, too (benchmarks/attention.py). Blocks are faster for longer texts as well, but less exact:
# flash keeps scores in float32, and at 1,024 tokens its error is half as large.
LONGEST_IN_BLOCKS = 512
# Whether torch's attention for texts of varying length takes fewer heads of keys than of queries.
VARLEN_TAKES_GROUPS = "enable_gqa" in signature(varlen_attn).parameters


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each text of a packed chunk lies, and what is read of it.

    A dataclass, not a tuple: wrappers of models, such as torch's for several processes, rebuild
    tuples among the arguments, and pass this on untouched.

    Attributes:
        groups: (number of texts, length) of each length, shortest first. Texts of equal length lie
            side by side.
        offsets: ``[C + 1]`` int32, where each text begins, and where the last one ends.
        padding: tokens behind the last text, which no text attends to; on a CPU only.
        causal: whether a token sees only itself and those before it, as in a decoder.
        first_alone: whether the last layer's output is read at the first token of each text only.
        head_pooling: what a head behind the encoder reads of each text; None: there is no head.
        keys: ``[C]`` int64, from which dropout is drawn, see :attr:`ltr.batch.Texts.keys`; None
            where none is.
        draw: makes the layers behind an attention draw for these texts, where a backward pass
            computes a layer again.
    """

    groups: tuple[tuple[int, int], ...]
    offsets: Tensor
    padding: int = 0
    causal: bool = False
    first_alone: bool = False
    head_pooling: Pooling | None = None
    keys: Tensor | None = None
    draw: Callable[[], None] | None = None
    _slots: dict[int, Slots] = field(default_factory=dict, init=False, repr=False)
    _padded: dict[int | None, "_PaddedForm"] = field(default_factory=dict, init=False, repr=False)

    def slots(self, n_heads: int) -> Slots:
        """Where the heads of each token lie in blocks, for
        :func:`ltr.models.encoder.kernels.block_attention.attend_in_blocks`.

        Made in the first layer, and used in all.
        """
        if n_heads not in self._slots:
            lengths: list[int] = []
            for n_texts, length in self.groups:
                if length:
                    lengths += n_texts * [length]
            self._slots[n_heads] = Slots.from_lengths(lengths, n_heads)
        return self._slots[n_heads]

    def padded(self, window: int | None) -> "_PaddedForm":
        """How the texts are padded to the longest, for a GPU without a kernel for ragged texts, and
        what a token sees there.

        Made in the first layer with this window, and used in all with it.
        """
        if window not in self._padded:
            self._padded[window] = _PaddedForm.from_layout(self, window)
        return self._padded[window]


class _PaddedForm(NamedTuple):
    """From tokens to texts that are padded to the longest, and back.

    Attributes:
        token: ``[C L]`` int64, the token of each place. Padding takes any: one of the next text, or
            the last.
        place: ``[T]`` int64, the place of each token.
        is_padding: ``[C L, 1, 1]`` bool, which places are padding; None where none is.
        mask: ``[…, L, L]`` bool, which keys a query sees; see :func:`_attend`.
    """

    token: Tensor
    place: Tensor
    is_padding: Tensor | None
    mask: Tensor | None

    @classmethod
    def from_layout(cls, layout: Layout, window: int | None) -> "_PaddedForm":
        offsets = layout.offsets.long()
        longest = layout.groups[-1][1]
        n_tokens = sum(n_texts * length for n_texts, length in layout.groups)
        begins = offsets[:-1]
        lengths = offsets.diff()
        column = torch.arange(longest, device=offsets.device)
        token = (begins.unsqueeze(1) + column).clamp(max=n_tokens - 1)
        # For each token its text, and its position there.
        text = torch.repeat_interleave(lengths, output_size=n_tokens)
        position = torch.arange(n_tokens, device=offsets.device) - begins[text]
        is_token = column < lengths.unsqueeze(1)
        is_padding = None
        if len(layout.groups) > 1:
            is_padding = ~is_token.view(-1, 1, 1)
        mask = _mask(longest, window, layout.causal, offsets.device)
        # Padding stands behind the tokens, where a causal attention doesn't look.
        if not layout.causal and is_padding is not None:
            is_key = is_token[:, None, None]  # [C, 1, 1, L]
            if mask is None:
                mask = is_key
            else:
                # Padding attends to itself: a row that sees nothing would be NaN, and make every
                # gradient NaN.
                mask = (is_key & mask) | torch.eye(longest, dtype=torch.bool, device=mask.device)
        return cls(token.flatten(), text * longest + position, is_padding, mask)


class _Gathered(torch.autograd.Function):
    """Rows of a tensor by an index. The gradient is gathered too, by the inverse: it is that of a
    place that is read, and 0 where none is. Torch's own would add up, since it can't know that no
    gradient comes from padding.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, unread: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inverse, unread)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inverse, unread = ctx.saved_tensors
        gradient_of_x = gradient.index_select(0, inverse)
        if unread is not None:
            gradient_of_x.masked_fill_(unread, 0)
        return gradient_of_x, None, None, None


class _Settings(NamedTuple):
    """How a layer attends.

    Attributes:
        scaling: what products of query and key are multiplied by; None: one over the root of d.
        dropout: probability that an attention weight is set to 0.
        site: of the layer, from which dropout is drawn, see :func:`ltr.draws.draw_site`; None where
            none is.
        window: a token attends to tokens nearer than this; None: to all.
        causal: whether a token attends only to itself and to those before it.
        softcap: c of c · tanh(s / c), which Gemma 2 makes of each scaled product s; None: s itself.
        kernels: the option of this name.
    """

    scaling: float | None
    dropout: float
    site: Tensor | None
    window: int | None
    causal: bool
    softcap: float | None
    kernels: Kernels

    @property
    def is_plain(self) -> bool:
        """Whether fast kernels compute it: they have neither dropout nor a soft cap."""
        return self.dropout == 0 and self.softcap is None


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
    softcap: float | None = None,
    packed_layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: takes ``[B, h, T, d]``, returns ``[B, T, h, d]``.

    With ``packed_layout`` it is attention over a chunk (B = 1), without it torch's over padded
    texts. Key and value may have fewer heads than the query, each for a group of its heads.
    ``sliding_window``: a token attends to tokens nearer than this. ``softcap``: see
    :class:`_Settings`; torch's attention has none. ``others`` are for other implementations.
    """
    if kernels == "auto":
        # The hook behind the last layer's attention leaves out tokens if the latest announcement
        # allows it. Every attention announces, a padded one that all tokens are read: so the latest
        # announcement is that of the hook's own layer and call.
        first_tokens = None
        if packed_layout is not None and packed_layout.first_alone:
            first_tokens = packed_layout.offsets[:-1].long()
        announce_first_tokens(first_tokens, query.shape[2])
    if packed_layout is not None:
        site = None
        if dropout > 0:
            site = cast(Tensor, module.draw_site)  # use_keyed_dropout has set it
        settings = _Settings(
            scaling, dropout, site, sliding_window, packed_layout.causal, softcap, kernels
        )
        if not (VARLEN_TAKES_GROUPS and takes_varlen(query) and settings.is_plain):
            queries_per_key = query.shape[1] // key.shape[1]
            key = repeat_kv(key, queries_per_key)
            value = repeat_kv(value, queries_per_key)
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        output = _attend_packed(q, k, v, packed_layout, settings)
        return output.unsqueeze(0), None
    is_causal = others.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)  # the default of transformers
    if attention_mask is None:
        attention_mask = _mask(query.shape[2], sliding_window, is_causal, query.device)
    if softcap is not None:
        queries_per_key = query.shape[1] // key.shape[1]
        key = repeat_kv(key, queries_per_key)
        value = repeat_kv(value, queries_per_key)
        settings = _Settings(scaling, dropout, draw_site(0), None, is_causal, softcap, kernels)
        text_keys = new_keys(len(query), query.device) if dropout > 0 else None
        output = _attend(query, key, value, attention_mask, text_keys, settings)
        return output.transpose(1, 2), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, **others
    )


@torch.compiler.disable  # or every new layout would be compiled
def _attend_packed(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, settings: _Settings
) -> Tensor:
    """Takes and returns ``[T, h, d]``; each text attends to itself only. Torch's attention for texts
    of varying length takes fewer heads of keys and values, too.
    """
    if layout.draw is not None:
        layout.draw()
    longest = layout.groups[-1][1]
    if takes_varlen(query) and settings.is_plain:
        # How many tokens are seen on each side; -1: all.
        reach = -1 if settings.window is None else settings.window - 1
        # Queries and keys may be float32, as behind Qwen3's norms.
        q, k, v = (x.to(_precision(query)) for x in (query, key, value))
        in_groups: dict[str, Any] = {"enable_gqa": True} if k.shape[1] < q.shape[1] else {}
        output = varlen_attn(
            q,
            k,
            v,
            cu_seq_q=layout.offsets,
            cu_seq_k=layout.offsets,
            max_q=longest,
            max_k=longest,
            scale=settings.scaling,
            window_size=(reach, 0 if settings.causal else reach),
            **in_groups,
        )
        assert isinstance(output, Tensor), "auxiliary outputs come only when asked for"
        return output
    if settings.kernels == "auto" and takes_blocks(query, longest) and settings.is_plain:
        slots = layout.slots(query.shape[1])
        scale = _scale(query, settings.scaling)
        return attend_in_blocks(query, key, value, slots, scale, settings.window, settings.causal)
    # Many small kernels cost a GPU more than some padding does; for a CPU it is the other way
    # round.
    if query.is_cuda:
        return _padded(query, key, value, layout, settings)
    return _by_length(query, key, value, layout, settings)


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, settings: _Settings
) -> Tensor:
    """Takes and returns ``[T, h, d]``: texts of equal length together. Padding gets zeros."""
    sizes = [n_texts * length for n_texts, length in layout.groups]
    # One part for each length, and one more for the padding, which zip leaves out.
    q_parts, k_parts, v_parts = (x.split([*sizes, layout.padding]) for x in (query, key, value))
    text_keys: Sequence[Tensor | None] = [None] * len(layout.groups)
    if settings.dropout > 0:
        text_keys = _keys_of(layout).split([n_texts for n_texts, _ in layout.groups])
    outputs = []
    for group, keys, *parts in zip(
        layout.groups, text_keys, q_parts, k_parts, v_parts, strict=False
    ):
        n_texts, length = group
        # [C L, h, d] to [C, h, L, d] and back.
        q, k, v = (x.unflatten(0, (n_texts, length)).transpose(1, 2) for x in parts)
        mask = _mask(length, settings.window, settings.causal, q.device)
        output = _attend(q, k, v, mask, keys, settings)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    outputs.append(value.new_zeros(layout.padding, *value.shape[1:]))
    return torch.cat(outputs)


def _keys_of(layout: Layout) -> Tensor:
    """``[C]`` int64, from which dropout is drawn."""
    if layout.keys is None:
        return new_keys(len(layout.offsets) - 1, layout.offsets.device)
    return layout.keys


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    text_keys: Tensor | None,
    settings: _Settings,
) -> Tensor:
    """Takes and returns ``[C, h, L, d]``.

    Args:
        query, key, value: of C texts.
        mask: ``[…, L, L]`` bool, which keys a query sees; None: all, or where the settings are
            causal those of its own token and of the ones before it.
        text_keys: ``[C]`` int64, from which dropout is drawn; None: there is none.
        settings: the window is in the mask.
    """
    sees_earlier = settings.causal and mask is None
    if text_keys is None and settings.softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=sees_earlier, scale=settings.scaling
        )
    # Torch's own attention has no soft cap, and its masks of dropout would follow from the chunk,
    # not from the text.
    n_heads, length = query.shape[1:3]
    place = torch.arange(length, device=query.device)
    scores = (query * _scale(query, settings.scaling)) @ key.transpose(-1, -2)
    if settings.softcap is not None:
        scores = (scores / settings.softcap).tanh() * settings.softcap
    if sees_earlier:
        mask = place.unsqueeze(1) >= place
    if mask is not None:
        # Not -inf: a row that sees nothing would be NaN, as padding may behind a window.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if text_keys is None:
        return weights @ value
    head = torch.arange(n_heads, device=query.device).unsqueeze(1)
    assert settings.site is not None, "a layer that drops weights has one"
    layer_keys = keys_at_site(text_keys, settings.site)[:, None, None]
    keys = keys_inside(keys_inside(layer_keys, head), place)  # [C, h, L]
    return keyed_dropout(weights, settings.dropout, keys) @ value


def _padded(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, settings: _Settings
) -> Tensor:
    """Takes and returns ``[T, h, d]``: all texts at once, padded to the longest."""
    form = layout.padded(settings.window)
    longest = layout.groups[-1][1]

    def gathered(x: Tensor, index: Tensor, inverse: Tensor, unread: Tensor | None) -> Tensor:
        if settings.kernels == "plain":  # without a gradient that is written by hand
            return x.index_select(0, index)
        rows: Tensor = _Gathered.apply(x, index, inverse, unread)
        return rows

    def padded(x: Tensor) -> Tensor:  # [C, h, L, d]
        rows = gathered(x, form.token, form.place, None)
        return rows.unflatten(0, (-1, longest)).transpose(1, 2)

    text_keys = _keys_of(layout) if settings.dropout > 0 else None
    output = _attend(padded(query), padded(key), padded(value), form.mask, text_keys, settings)
    rows = output.transpose(1, 2).flatten(0, 1)
    return gathered(rows, form.place, form.token, form.is_padding)


def takes_varlen(query: Tensor) -> bool:
    """Whether torch's attention for texts of varying length takes this query. It has no dropout."""
    return query.is_cuda and _precision(query) in (torch.float16, torch.bfloat16)


def _precision(query: Tensor) -> torch.dtype:
    """In which torch's attention computes: autocast casts what that gets."""
    device = query.device.type
    if query.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return query.dtype


def takes_blocks(query: Tensor, longest: int) -> bool:
    """Whether explicit matmuls in blocks are faster than torch's flash kernel.

    Args:
        query: ``[T, h, d]``.
        longest: tokens of the longest text.
    """
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16", False):
        blocks_are_faster = query.requires_grad  # with AMX flash is faster where nothing is trained
    else:
        blocks_are_faster = capabilities.get("avx512_bf16", False)
    in_bfloat16 = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return blocks_are_faster and in_bfloat16 and longest <= LONGEST_IN_BLOCKS


def _scale(query: Tensor, scaling: float | None) -> float:
    """What products of query and key are multiplied by."""
    return query.shape[-1] ** -0.5 if scaling is None else scaling


def _mask(length: int, window: int | None, causal: bool, device: torch.device) -> Tensor | None:
    """``[L, L]`` bool, True where a key is nearer to its query than the window, and with ``causal``
    not behind it. None where no window cuts: then all keys are seen, or all that are not behind.
    """
    if window is None or length <= window:
        return None
    position = torch.arange(length, device=device)
    distance = position.unsqueeze(1) - position
    if causal:
        return (distance >= 0) & (distance < window)
    return distance.abs() < window


def _mask_of_padding(
    *args: Any, attention_mask: Tensor | None = None, **options: Any
) -> Tensor | None:
    """What transformers calls for the mask of a model: torch's for padded texts. A packed chunk
    gets none: it would be ``[T, T]``, and our attention needs no mask.
    """
    if attention_mask is None:
        return None
    return sdpa_mask(*args, attention_mask=attention_mask, **options)


# Registered on import, so that an encoder unpickled in another process finds its attention.
for _kernels, _name in PACKED_ATTENTION.items():
    AttentionInterface.register(_name, partial(_attention, kernels=_kernels))
    AttentionMaskInterface.register(_name, _mask_of_padding)
