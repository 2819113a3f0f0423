"""Ragged texts laid end to end, for encoders that can read them so: no token is padding.

Shapes: T tokens of the C texts of a chunk, S texts in all, h heads of d dimensions, H the hidden size.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.dropout import dropout as drop

log = logging.getLogger(__name__)

NAME = "ltr_packed"
# Shorter texts train faster by explicit matmuls on a CPU that multiplies bfloat16 (AMX): 2.6 to 11 times from 64 to 256 tokens,
# as the flash kernel's backward is slow there. Everywhere else flash is as fast or faster: benchmarks/attention.py.
EXPLICIT_BELOW = 512
TOLERANCE = 1e-3  # of outputs that should agree, relative: rounding makes 1e-5, a wrong attention 5e-3


@dataclass(frozen=True, eq=False)
class Layout:
    """Which spans of a chunk attend to themselves. An object, not a tuple: models hand it on to their attention untouched.

    Attributes:
        groups: texts of one length lie side by side: (texts, length), shortest first.
        offsets: ``[C + 1]`` int32, where each text begins, and T.
    """

    groups: tuple[tuple[int, int], ...]
    offsets: Tensor


class Packed(NamedTuple):
    """Some of the texts, end to end, shortest first.

    Attributes:
        rows: ``[C]`` int64, which of the texts these are.
        lengths: ``[C]`` int64, their tokens.
        input_ids: ``[1, T]`` int64.
        position_ids: ``[1, T]`` int64, restarted with every text.
        token_type_ids: ``[1, T]`` int64, or None.
        layout: where they begin.
    """

    rows: Tensor
    lengths: Tensor
    input_ids: Tensor
    position_ids: Tensor
    token_type_ids: Tensor | None
    layout: Layout


def packed_chunks(texts: Texts, max_tokens: int, first_position: int) -> Iterator[Packed]:
    """The texts sorted by length and cut into chunks of at most ``max_tokens`` tokens (or a single text).

    Args:
        texts: at least one.
        max_tokens: none of them padding.
        first_position: as :func:`first_position` knows it.
    """
    order = texts.lengths.argsort(stable=True)
    begins = texts.lengths.cumsum(0) - texts.lengths
    sizes = texts.lengths[order].tolist()
    for begin, end in cuts(sizes, max_tokens):
        rows, n_tokens = order[begin:end], sum(sizes[begin:end])
        lengths = texts.lengths[rows]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        position = torch.arange(n_tokens, device=rows.device)
        position = position - offsets[:-1].repeat_interleave(lengths, output_size=n_tokens)
        token = position + begins[rows].repeat_interleave(lengths, output_size=n_tokens)
        yield Packed(
            rows=rows,
            lengths=lengths,
            input_ids=texts.ids[token].unsqueeze(0),
            position_ids=(position + first_position).unsqueeze(0),
            token_type_ids=None if texts.type_ids is None else texts.type_ids[token].unsqueeze(0),
            layout=Layout(tuple((len(list(same)), n) for n, same in groupby(sizes[begin:end])), offsets.int()),
        )


def cuts(sizes: list[int], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of texts of these sizes, of at most ``max_tokens`` in all, or of one text.

    >>> list(cuts([2, 3, 4, 9], max_tokens=5))
    [(0, 2), (2, 3), (3, 4)]
    """
    begin = total = 0
    for i, size in enumerate(sizes):
        if total and total + size > max_tokens:
            yield begin, i
            begin, total = i, 0
        total += size
    yield begin, len(sizes)


def hidden_states(encoder: nn.Module, chunk: Packed) -> Tensor:
    """``[T, H]``: the last layer of an encoder that :func:`enable_packing` has prepared."""
    return encoder(**_inputs(chunk)).last_hidden_state.squeeze(0)


def logits(classifier: nn.Module, chunk: Packed) -> Tensor:
    """``[C]`` float32: what a ready cross-encoder, prepared by :func:`enable_packing`, scores with its own head.

    Such heads read the first token of a row (ModernBERT's perhaps the mean), or what the pooler made of it. So the base model
    hands them a row of one token for each text.
    """

    def a_row_for_each_text(base: nn.Module, _: tuple, output: Any) -> Any:
        how = getattr(base.config, "classifier_pooling", "cls")
        pooled = pool(output.last_hidden_state.squeeze(0), chunk.lengths, how)
        output.last_hidden_state = pooled.to(output.last_hidden_state.dtype).unsqueeze(1)
        if output.get("pooler_output") is not None:
            output.pooler_output = base.pooler(output.last_hidden_state)
        return output

    hook = classifier.base_model.register_forward_hook(a_row_for_each_text)
    try:
        return classifier(**_inputs(chunk)).logits[:, 0].float()
    finally:
        hook.remove()


def pool(hidden: Tensor, lengths: Tensor, how: Literal["mean", "cls"]) -> Tensor:
    """``[C, H]`` float32: the mean of each text's tokens, or its first.

    Args:
        hidden: ``[T, H]``, texts end to end.
        lengths: ``[C]`` int64, tokens of each; they sum to T.
        how: ``mean`` or ``cls``.
    """
    if how == "cls":
        return hidden[lengths.cumsum(0) - lengths].float()
    text = torch.arange(len(lengths), device=hidden.device).repeat_interleave(lengths, output_size=len(hidden))
    total = hidden.new_zeros(len(lengths), hidden.shape[1], dtype=torch.float32).index_add(0, text, hidden.float())
    return total / lengths.unsqueeze(1)


def first_position(encoder: nn.Module) -> int:
    """The position of a text's first token: RoBERTa and its kin count from behind the padding index."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def enable_packing(encoder: nn.Module) -> bool:
    """Prepare an encoder, or a ready cross-encoder, to read packed texts; padded ones it reads as before.

    Whether it can is found out by trying: two texts must come out as they do padded. One that can't is left as it was.

    Raises:
        InputError: if it can't read two padded texts either, or gives one of them something else than it gives it alone.
    """
    before, name = encoder.config._attn_implementation, type(encoder).__name__
    with in_eval_mode(encoder):
        try:
            expected = _trial(encoder, "padded")
            error = _difference(_trial(encoder, "alone"), expected)
        except Exception as unforeseen:  # whatever an architecture does with what it does not know
            raise InputError(f"{name} can't read two texts side by side ({_line(unforeseen)}); take another backbone") from None
        if error > TOLERANCE:
            raise InputError(
                f"{name} gives a text something else beside a longer one than alone (by {error:.1%}): it can't be read in "
                "batches; take another backbone"
            )
        try:
            encoder.set_attn_implementation(NAME)
            error = _difference(expected, _trial(encoder, "packed"))
            reason = "" if error < TOLERANCE else f"its outputs would differ by {error:.1%}"
        except Exception as unforeseen:
            reason = _line(unforeseen)
    if reason:
        encoder.set_attn_implementation(before)
        log.info("%s can't read packed texts, and gets padded ones: %s", name, reason)
    return not reason


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards each module inside is in the mode it was in."""
    training = [inner for inner in module.modules() if inner.training]
    module.eval()
    try:
        yield
    finally:
        for inner in training:
            inner.training = True


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest, relative: the logits of an untrained head are small, whatever it reads."""
    return max(((y - x).abs().max() / x.abs().mean()).item() for x, y in zip(expected, found, strict=True))


@torch.no_grad()
def _trial(encoder: nn.Module, how: Literal["alone", "padded", "packed"]) -> list[Tensor]:
    """Hidden states (and logits) of two short texts, one longer than the window of local attention."""
    config, base = encoder.config, encoder.base_model
    device = base.get_input_embeddings().weight.device
    lengths = torch.tensor([3, 3 + (getattr(config, "sliding_window", None) or 4)], device=device)
    # The padding's id would not count as a token.
    known = torch.tensor([i for i in range(min(config.vocab_size, 50)) if i != config.pad_token_id], device=device)
    ids = known[torch.arange(int(lengths.sum()), device=device) % len(known)]
    if how == "packed":
        (chunk,) = packed_chunks(Texts(ids, lengths), len(ids), first_position(base))
        return [hidden_states(base, chunk)] + ([] if base is encoder else [logits(encoder, chunk)])
    if how == "alone":
        rows = [row.unsqueeze(0) for row in ids.split(lengths.tolist())]
        hidden = [torch.cat([base(row).last_hidden_state[0] for row in rows])]
        return hidden + ([] if base is encoder else [torch.cat([encoder(row).logits[:, 0] for row in rows])])
    mask = torch.arange(int(lengths[1]), device=device) < lengths.unsqueeze(1)
    padding = torch.full(mask.shape, config.pad_token_id or 0, device=device)
    inputs = {"input_ids": padding.masked_scatter(mask, ids), "attention_mask": mask.long()}
    return [base(**inputs).last_hidden_state[mask]] + ([] if base is encoder else [encoder(**inputs).logits[:, 0]])


def _inputs(chunk: Packed) -> dict[str, Any]:
    types = {} if chunk.token_type_ids is None else {"token_type_ids": chunk.token_type_ids}
    return {"input_ids": chunk.input_ids, "position_ids": chunk.position_ids, "packed_layout": chunk.layout, **types}


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
    """``[B, T, h, d]``: attention over a chunk (B = 1), or torch's over padded texts.

    Args:
        module: the layer that asks.
        query: ``[B, h, T, d]``, as key and value.
        key: as the query.
        value: as the query.
        attention_mask: of padded texts; for a chunk there is none.
        scaling: of the scores.
        dropout: probability, 0 in eval mode.
        sliding_window: a token attends to those nearer than this.
        packed_layout: of a chunk.
        others: what some layers say for other implementations.
    """
    if packed_layout is not None:
        qkv = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        return _block_diagonal(*qkv, packed_layout, scaling, dropout, sliding_window).unsqueeze(0), None
    if attention_mask is None:
        attention_mask = _window(query.shape[2], sliding_window, query.device)
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)


@torch.compiler.disable  # or every new layout would be compiled
def _block_diagonal(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None, p: float, sliding_window: int | None
) -> Tensor:
    """``[T, h, d]`` of as much: every text attends to itself."""
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and not p:  # varlen_attn knows no other, and no dropout
        longest = layout.groups[-1][1]
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
        ends = layout.offsets, layout.offsets, longest, longest
        return varlen_attn(query, key, value, *ends, scale=scaling, window_size=window)
    # A GPU would spend more on many small kernels than on some padding, a CPU the other way round.
    attend = _padded if query.is_cuda else _by_length
    return attend(query, key, value, layout, scaling, p, sliding_window)


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None, p: float, sliding_window: int | None
) -> Tensor:
    """Texts of one length together, by the faster kernel."""
    outputs = []
    sizes = [n_texts * length for n_texts, length in layout.groups]
    for group, *qkv in zip(layout.groups, *(x.split(sizes) for x in (query, key, value)), strict=True):
        output = _attend(*(x.unflatten(0, group).transpose(1, 2) for x in qkv), scaling, p, sliding_window)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, p: float, sliding_window: int | None) -> Tensor:
    """``[C, h, L, d]`` of as much."""
    mask = _window(query.shape[2], sliding_window, query.device)
    if not (p or explicit_is_faster(query)):  # with dropout, torch has no flash kernel on a CPU
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return drop(scores.softmax(dim=-1), p) @ value


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
    if window is not None:  # padding attends to itself: a row that sees nothing would be NaN, and its gradient everyone's
        mask = (mask & window) | torch.eye(longest, dtype=torch.bool, device=query.device)
    output = F.scaled_dot_product_attention(
        *(x[token].transpose(1, 2) for x in (query, key, value)),
        attn_mask=mask,
        dropout_p=p,
        scale=scaling,
    )
    text = torch.arange(len(lengths), device=query.device).repeat_interleave(lengths, output_size=len(query))
    return output.transpose(1, 2)[text, torch.arange(len(query), device=query.device) - offsets[text]]


def explicit_is_faster(query: Tensor) -> bool:
    """Whether on a CPU explicit matmuls beat torch's flash kernel for ``[C, h, L, d]``: the one place that chooses."""
    multiplies_bfloat16 = torch.cpu.get_capabilities().get("amx_bf16", False)
    return multiplies_bfloat16 and query.dtype == torch.bfloat16 and query.requires_grad and query.shape[2] < EXPLICIT_BELOW


def _window(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """``[L, L]`` bool, True where tokens are nearer than the window; None where all are."""
    if sliding_window is None or length <= sliding_window:
        return None
    position = torch.arange(length, device=device)
    return (position.unsqueeze(1) - position).abs() < sliding_window


def _mask(*args: Any, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """That of torch for padded texts. A chunk of T tokens needs none of ``[T, T]``."""
    return None if attention_mask is None else sdpa_mask(*args, attention_mask=attention_mask, **options)


# Names only, and here: an encoder that arrives in another process finds them when its class is imported.
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
