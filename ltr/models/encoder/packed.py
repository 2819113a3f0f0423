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
from transformers import PreTrainedConfig, PreTrainedModel

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder.attention import PACKED, Kernels, Layout
from ltr.models.encoder.chunks import Chunk, packed_chunks, padded_chunks
from ltr.models.encoder.kernels.first_tokens import attended, leave_others_out
from ltr.models.encoder.loading.pooling import Pooling, pool
from ltr.models.encoder.loading.positions import first_position

log = logging.getLogger(__name__)

SHORT = 3  # tokens of the first text of a trial
# The longest window of local attention that a trial goes beyond. Attention over longer texts would
# take seconds for each layer; the windows of known encoders have 64 to 513 tokens.
LONGEST_WINDOW = 1024
# Relative error of outputs that should agree: rounding makes 1e-5, a wrong attention 5e-3.
TOLERANCE = 1e-3


def hidden_states(encoder: PreTrainedModel, chunk: Chunk) -> Tensor:
    """The encoder's last layer ``[T, H]`` of a chunk's texts, end to end.

    For packed ones see :func:`enable_packing`.
    """
    hidden = encoder(**chunk.inputs).last_hidden_state
    if "attention_mask" in chunk.inputs:
        return hidden[chunk.inputs["attention_mask"].bool()]
    return hidden[0, : hidden.shape[1] - chunk.inputs["packed_layout"].padding]


def pooled(encoder: PreTrainedModel, chunk: Chunk, pooling: Pooling) -> Tensor:
    """One vector ``[C, H]`` float32 for each text of a chunk.

    For packed ones see :func:`enable_packing`.
    """
    layout = chunk.inputs.get("packed_layout")
    if layout is None or pooling != "cls":
        return pool(hidden_states(encoder, chunk), chunk.lengths, pooling)
    layout = replace(layout, first_alone=True)
    output = _run(encoder, chunk.inputs | {"packed_layout": layout})
    return _of_texts(output.last_hidden_state, layout, pooling)


def logits(classifier: PreTrainedModel, chunk: Chunk) -> Tensor:
    """Scores ``[C]`` float32 of a ready cross-encoder's own head. For packed texts see
    :func:`enable_packing`.

    Such a head reads the first token of a row (ModernBERT's may read the mean), or what the pooler
    makes of it. So the base model hands it a row of one token for each packed text.
    """
    inputs = chunk.inputs
    if "packed_layout" in inputs:
        pooling: Pooling = getattr(classifier.config, "classifier_pooling", "cls")
        layout = replace(inputs["packed_layout"], first_alone=pooling == "cls", head=pooling)
        inputs = inputs | {"packed_layout": layout}
    return _run(classifier, inputs).logits[:, 0].float()


def _run(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    """The model's output, also where an error breaks it off without a trace of its first tokens."""
    try:
        return model(**inputs)
    finally:
        # Or, broken off, it could leave what attention has said last to another implementation of
        # attention.
        attended(None)


def _one_row_per_text(base: PreTrainedModel, _: tuple, inputs: dict[str, Any], output: Any) -> Any:
    """A hook of the base model below a head."""
    layout = inputs.get("packed_layout")
    if layout is None or layout.head is None:
        return output
    hidden = output.last_hidden_state
    rows = _of_texts(hidden, layout, layout.head).to(hidden.dtype)
    output.last_hidden_state = rows.unsqueeze(1)  # [C, 1, H]
    if output.get("pooler_output") is not None:
        output.pooler_output = base.pooler(output.last_hidden_state)
    return output


def _of_texts(hidden: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """``[C, H]`` float32, from the hidden states of first tokens alone ``[1, C, H]`` or of all
    tokens ``[1, T + padding, H]``.
    """
    lengths = layout.offsets.diff().long()
    # As many as texts: first tokens alone, or each text is one token, which is what any pooling
    # makes of it.
    if hidden.shape[1] == len(lengths):
        return hidden[0].float()
    return pool(hidden[0, : hidden.shape[1] - layout.padding], lengths, pooling)


def enable_packing(encoder: PreTrainedModel, kernels: Kernels = "auto") -> bool:
    """Prepare an encoder, or a ready cross-encoder, to read packed texts. It still reads padded
    ones as before.

    A trial decides: two texts must give the same outputs packed as padded. An encoder that fails
    reads as before.

    Args:
        encoder: of transformers.
        kernels: see :class:`ltr.models.encoder.text_encoder.TextEncoder.Options`.

    Returns:
        Whether the encoder reads packed texts.

    Raises:
        InputError: if it cannot read two padded texts either, or a text's outputs depend on the
            text beside it.
    """
    name = type(encoder).__name__
    own_attention = encoder.config._attn_implementation
    with in_eval_mode(encoder):
        expected = _padded_trial(encoder)
        # Outputs of two short texts would not show what a longer window does.
        if (window := _window(encoder.config)) > LONGEST_WINDOW:
            reason = f"its window of {window:,} tokens is too long to be tried"
        else:
            reason = _try_packed(encoder, expected, PACKED[kernels])
    if reason:
        encoder.set_attn_implementation(own_attention)
        log.info("%s can't read packed texts, so it gets padded ones: %s", name, reason)
        return False
    if kernels == "auto":
        _enable_first_alone(encoder, expected[0])
    return True


def _padded_trial(encoder: PreTrainedModel) -> list[Tensor]:
    """What two padded texts give; an InputError where it isn't what each gives alone."""
    name = type(encoder).__name__
    try:
        expected = _trial(encoder, "padded")
        error = _difference(_trial(encoder, "alone"), expected)
    # An architecture may raise anything for inputs that it does not know.
    except Exception as unforeseen:
        raise InputError(
            f"{name} can't read two texts side by side ({one_line(unforeseen)}); "
            "take another backbone"
        ) from None
    if error > TOLERANCE:
        raise InputError(
            f"{name} gives a text other outputs beside a longer text than alone (by {error:.1%}), "
            "so it can't read batches; take another backbone"
        )
    return expected


def _try_packed(encoder: PreTrainedModel, expected: list[Tensor], attention: str) -> str:
    """Switch to packed texts. Why it can't read them; empty if it can."""
    try:
        encoder.set_attn_implementation(attention)
        if _one_row_per_text not in encoder.base_model._forward_hooks.values():
            encoder.base_model.register_forward_hook(_one_row_per_text, with_kwargs=True)
        error = _difference(expected, _trial(encoder, "packed"))
    except Exception as unforeseen:  # as in _padded_trial
        return one_line(unforeseen)
    return "" if error < TOLERANCE else f"its outputs would differ by {error:.1%}"


def _enable_first_alone(encoder: PreTrainedModel, expected: Tensor) -> None:
    """Leave out what no first token needs, where a trial shows the same first tokens.

    Args:
        encoder: reads packed texts.
        expected: hidden states of the padded trial.
    """
    handle = leave_others_out(encoder)
    if handle is None:
        return
    try:
        with in_eval_mode(encoder):
            first_tokens = _trial(encoder, "first")
        equal = _difference([expected[[0, SHORT]]], first_tokens) < TOLERANCE
    except Exception:  # as in _padded_trial
        equal = False
    if not equal:
        handle.remove()


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


def _difference(expected: list[Tensor], outputs: list[Tensor]) -> float:
    """The largest difference, relative: logits of an untrained head are small, whatever it reads."""
    differences = []
    for x, y in zip(expected, outputs, strict=True):
        differences.append(((y - x).abs().max() / x.abs().mean()).item())
    return max(differences)


def _window(config: PreTrainedConfig) -> int:
    """Tokens of the window of local attention; 0 where there is none."""
    return getattr(config, "sliding_window", None) or 0


def _trial_texts(encoder: PreTrainedModel) -> Texts:
    """Two short texts, the second one longer than the window of local attention.

    What they must show: that no text attends to the other, and that positions restart (any two
    texts of several tokens); that each token attends to those behind it (a decoder's does not; any
    text of two tokens); and that tokens outside of the window are not attended to. Only the last
    needs a long text, and of a window too long to be tried nothing is read packed anyway.
    """
    config = encoder.config
    device = encoder.get_input_embeddings().weight.device
    window = _window(config)
    longer = window if 0 < window <= LONGEST_WINDOW else 4
    lengths = torch.tensor([SHORT, SHORT + longer], device=device)
    # Without the padding's id: such a token would not count as one.
    token_ids = [i for i in range(min(config.vocab_size, 50)) if i != config.pad_token_id]
    which = torch.arange(int(lengths.sum()), device=device) % len(token_ids)
    return Texts(torch.tensor(token_ids, device=device)[which], lengths)


@torch.no_grad()
def _trial(
    encoder: PreTrainedModel, how: Literal["alone", "padded", "packed", "first"]
) -> list[Tensor]:
    """Hidden states (and logits) of :func:`_trial_texts`; ``first``: of their first tokens alone."""
    base = encoder.base_model
    has_head = base is not encoder
    texts = _trial_texts(encoder)
    if how == "alone":
        rows = [row.unsqueeze(0) for row in texts.ids.split(texts.lengths.tolist())]
        outputs = [torch.cat([base(row).last_hidden_state[0] for row in rows])]
        if has_head:
            outputs.append(torch.cat([encoder(row).logits[:, 0] for row in rows]))
        return outputs
    one_chunk = 10 * len(texts.ids)
    if how == "padded":
        (chunk,) = padded_chunks(texts, one_chunk, encoder.config.pad_token_id or 0)
    else:
        (chunk,) = packed_chunks(texts, one_chunk, first_position(base))
    if how == "first":
        return [pooled(base, chunk, "cls")]
    outputs = [hidden_states(base, chunk)]
    if has_head:
        outputs.append(logits(encoder, chunk))
    return outputs
