"""Encoders that read texts end to end, without padding: which can, and what they make of a chunk.

Shapes: T tokens of the C texts of a chunk, H the hidden size.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder.attention import NAME, Layout
from ltr.models.encoder.chunks import Chunk, packed_chunks, padded_chunks
from ltr.models.encoder.first_tokens import attended, leave_others_out
from ltr.models.encoder.pooling import Pooling, pool

log = logging.getLogger(__name__)

SHORT = 3  # tokens of the first text of a trial
TOLERANCE = 1e-3  # relative error of outputs that should agree: rounding makes 1e-5, a wrong attention 5e-3


def hidden_states(encoder: PreTrainedModel, chunk: Chunk) -> Tensor:
    """The encoder's last layer ``[T, H]`` of a chunk's texts, end to end. For packed ones see :func:`enable_packing`."""
    hidden = encoder(**chunk.inputs).last_hidden_state
    if "attention_mask" in chunk.inputs:
        return hidden[chunk.inputs["attention_mask"].bool()]
    return hidden[0, : hidden.shape[1] - chunk.inputs["packed_layout"].padding]


def pooled(encoder: PreTrainedModel, chunk: Chunk, pooling: Pooling) -> Tensor:
    """One vector ``[C, H]`` float32 for each text of a chunk. For packed ones see :func:`enable_packing`."""
    layout = chunk.inputs.get("packed_layout")
    if layout is None or pooling != "cls":
        return pool(hidden_states(encoder, chunk), chunk.lengths, pooling)
    layout = replace(layout, first_alone=True)
    return _of_texts(_called(encoder, chunk.inputs | {"packed_layout": layout}).last_hidden_state, layout, pooling)


def logits(classifier: PreTrainedModel, chunk: Chunk) -> Tensor:
    """Scores ``[C]`` float32 of a ready cross-encoder's own head. For packed texts see :func:`enable_packing`.

    Such a head reads the first token of a row (ModernBERT's may read the mean), or what the pooler makes of it. So the base model
    hands it a row of one token for each packed text.
    """
    inputs = chunk.inputs
    if "packed_layout" in inputs:
        how: Pooling = getattr(classifier.config, "classifier_pooling", "cls")
        inputs = inputs | {"packed_layout": replace(inputs["packed_layout"], first_alone=how == "cls", head=how)}
    return _called(classifier, inputs).logits[:, 0].float()


def _called(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    try:
        return model(**inputs)
    finally:
        attended(None)  # or, broken off, it could leave what attention has said last to another implementation of attention


def _one_row_per_text(base: PreTrainedModel, _: tuple, inputs: dict[str, Any], output: Any) -> Any:
    """A hook of the base model below a head."""
    layout = inputs.get("packed_layout")
    if layout is not None and layout.head is not None:
        hidden = output.last_hidden_state
        output.last_hidden_state = _of_texts(hidden, layout, layout.head).to(hidden.dtype).unsqueeze(1)
        if output.get("pooler_output") is not None:
            output.pooler_output = base.pooler(output.last_hidden_state)
    return output


def _of_texts(hidden: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """``[C, H]`` float32, from the hidden states of first tokens alone ``[1, C, H]`` or of all tokens ``[1, T + padding, H]``."""
    lengths = layout.offsets.diff().long()
    if hidden.shape[1] == len(lengths):  # or each text is one token, which is what any pooling makes of it
        return hidden[0].float()
    return pool(hidden[0, : hidden.shape[1] - layout.padding], lengths, pooling)


def position_embeddings(encoder: nn.Module) -> nn.Embedding | None:
    """The table of learnt positions. None where positions are computed."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(encoder: nn.Module) -> int:
    """The position of a text's first token: RoBERTa and its kin count from behind the padding index."""
    positions = position_embeddings(encoder)
    return 0 if positions is None or positions.padding_idx is None else positions.padding_idx + 1


def enable_packing(encoder: PreTrainedModel) -> bool:
    """Prepare an encoder, or a ready cross-encoder, to read packed texts. It still reads padded ones as before.

    A trial decides: two texts must give the same outputs packed as padded. An encoder that fails reads as before.

    Returns:
        Whether the encoder reads packed texts.

    Raises:
        InputError: if it cannot read two padded texts either, or a text's outputs depend on the text beside it.
    """
    before, name = encoder.config._attn_implementation, type(encoder).__name__
    with in_eval_mode(encoder):
        try:
            expected = _trial(encoder, "padded")
            error = _difference(_trial(encoder, "alone"), expected)
        except Exception as unforeseen:  # an architecture may raise anything for inputs that it does not know
            why = one_line(unforeseen)
            raise InputError(f"{name} can't read two texts side by side ({why}); take another backbone") from None
        if error > TOLERANCE:
            text = f"{name} gives a text other outputs beside a longer text than alone (by {error:.1%})"
            raise InputError(f"{text}, so it can't read batches; take another backbone")
        try:
            encoder.set_attn_implementation(NAME)
            if _one_row_per_text not in encoder.base_model._forward_hooks.values():
                encoder.base_model.register_forward_hook(_one_row_per_text, with_kwargs=True)
            error = _difference(expected, _trial(encoder, "packed"))
            reason = "" if error < TOLERANCE else f"its outputs would differ by {error:.1%}"
        except Exception as unforeseen:
            reason = one_line(unforeseen)
    if reason:
        encoder.set_attn_implementation(before)
        log.info("%s can't read packed texts, so it gets padded ones: %s", name, reason)
    else:
        _enable_first_alone(encoder, expected[0])
    return not reason


def _enable_first_alone(encoder: PreTrainedModel, expected: Tensor) -> None:
    """Leave out what no first token needs, where a trial's first tokens are as in ``expected``, its hidden states."""
    if (prepared := leave_others_out(encoder)) is None:
        return
    try:
        with in_eval_mode(encoder):
            equal = _difference([expected[[0, SHORT]]], _trial(encoder, "first")) < TOLERANCE
    except Exception:  # as above
        equal = False
    if not equal:
        prepared.remove()


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode inside the block. Afterwards each submodule is back in the mode it was in."""
    training = [inner for inner in module.modules() if inner.training]
    module.eval()
    try:
        yield
    finally:
        for inner in training:
            inner.training = True


def one_line(error: Exception) -> str:
    """The kind of an error, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference, relative: logits of an untrained head are small, whatever it reads."""
    return max(((y - x).abs().max() / x.abs().mean()).item() for x, y in zip(expected, found, strict=True))


@torch.no_grad()
def _trial(encoder: PreTrainedModel, how: Literal["alone", "padded", "packed", "first"]) -> list[Tensor]:
    """Hidden states (and logits) of two short texts, one of them longer than the window of local attention.

    ``first``: hidden states of their first tokens alone.
    """
    config, base = encoder.config, encoder.base_model
    device = base.get_input_embeddings().weight.device
    lengths = torch.tensor([SHORT, SHORT + (getattr(config, "sliding_window", None) or 4)], device=device)
    # Without the padding's id: such a token would not count as one.
    known = torch.tensor([i for i in range(min(config.vocab_size, 50)) if i != config.pad_token_id], device=device)
    ids = known[torch.arange(int(lengths.sum()), device=device) % len(known)]
    if how == "alone":
        rows = [row.unsqueeze(0) for row in ids.split(lengths.tolist())]
        hidden = [torch.cat([base(row).last_hidden_state[0] for row in rows])]
        return hidden + ([] if base is encoder else [torch.cat([encoder(row).logits[:, 0] for row in rows])])
    texts, unlimited = Texts(ids, lengths), 10 * len(ids)
    if how in ("packed", "first"):
        (chunk,) = packed_chunks(texts, unlimited, first_position(base))
    else:
        (chunk,) = padded_chunks(texts, unlimited, config.pad_token_id or 0)
    if how == "first":
        return [pooled(base, chunk, "cls")]
    return [hidden_states(base, chunk)] + ([] if base is encoder else [logits(encoder, chunk)])
