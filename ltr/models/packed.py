"""Ragged texts laid end to end, for encoders that can read them so: no token is padding.

Shapes: T tokens of the C texts of a chunk, S texts in all, H the hidden size.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.attention import NAME, Layout

log = logging.getLogger(__name__)

TOLERANCE = 1e-3  # of outputs that should agree, relative: rounding makes 1e-5, a wrong attention 5e-3


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


def pool(hidden: Tensor, lengths: Tensor, how: Literal["mean", "cls", "max"]) -> Tensor:
    """``[C, H]`` float32: the mean of each text's tokens, its first, or the maximum of each dimension.

    Args:
        hidden: ``[T, H]``, texts end to end.
        lengths: ``[C]`` int64, tokens of each; they sum to T.
        how: ``mean``, ``cls`` or ``max``; tokens that share a maximum share its gradient.
    """
    if how == "cls":
        return hidden[lengths.cumsum(0) - lengths].float()
    if how == "max":
        return torch.segment_reduce(hidden.float(), "max", lengths=lengths, axis=0)  # 3 times as fast as scatter_reduce on a CPU
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
