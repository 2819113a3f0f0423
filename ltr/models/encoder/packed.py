"""Encoders that read texts end to end, without padding: which can, and what they make of a chunk.

Shapes: T tokens of the C texts of a chunk, H the hidden size.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder.attention import PACKED_ATTENTION, Kernels, Layout
from ltr.models.encoder.chunks import Chunk, packed_chunks, padded_chunks
from ltr.models.encoder.kernels.first_tokens import (
    announce_first_tokens,
    keep_first_tokens_alone,
)
from ltr.models.encoder.loading.pooling import Pooling, pool
from ltr.models.encoder.loading.positions import first_position

log = logging.getLogger(__name__)

SHORT = 3  # tokens of the first of the two texts of a trial
# The longest window of local attention that is tried, by a text that is longer. With a longer text
# attention would take seconds for each layer; the windows of known encoders have 64 to 513 tokens.
LONGEST_WINDOW = 1024
# Relative error of outputs that should agree: rounding makes 1e-5, a wrong attention 5e-3.
TOLERANCE = 1e-3


def hidden_states(encoder: PreTrainedModel, chunk: Chunk) -> Tensor:
    """The encoder's last layer ``[T, H]`` of a chunk's texts, end to end.

    Only an encoder that :func:`enable_packing` has prepared reads packed chunks.
    """
    hidden = encoder(**chunk.inputs).last_hidden_state
    if "attention_mask" in chunk.inputs:
        return hidden[chunk.inputs["attention_mask"].bool()]
    return hidden[0, : hidden.shape[1] - chunk.inputs["packed_layout"].padding]


def pooled(encoder: PreTrainedModel, chunk: Chunk, pooling: Pooling) -> Tensor:
    """One vector ``[C, H]`` float32 for each text of a chunk.

    Only an encoder that :func:`enable_packing` has prepared reads packed chunks.
    """
    layout = chunk.inputs.get("packed_layout")
    if layout is None or pooling != "cls":
        return pool(hidden_states(encoder, chunk), chunk.lengths, pooling)
    layout = replace(layout, first_alone=True)
    output = _run(encoder, chunk.inputs | {"packed_layout": layout})
    return _pool_packed(output.last_hidden_state, layout, pooling)


def logits(classifier: PreTrainedModel, chunk: Chunk) -> Tensor:
    """Scores ``[C]`` float32 of a ready cross-encoder's own head.

    Only a classifier that :func:`enable_packing` has prepared reads packed chunks.

    A head reads the first token of each row (ModernBERT's may read the mean), or what the pooler
    makes of it. A packed chunk is one row of many texts. So the hook :func:`_one_row_per_text`
    hands it a row of one token for each text.
    """
    inputs = chunk.inputs
    if "packed_layout" in inputs:
        pooling: Pooling = getattr(classifier.config, "classifier_pooling", "cls")
        layout = replace(inputs["packed_layout"], first_alone=pooling == "cls", head=pooling)
        inputs = inputs | {"packed_layout": layout}
    return _run(classifier, inputs).logits[:, 0].float()


def _run(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    """The model's output. Afterwards no announcement of first tokens is left."""
    try:
        return model(**inputs)
    finally:
        # An error in the last layer would leave one behind, and the next call would take it for
        # its own if its attention is not ours, which announces anew.
        announce_first_tokens(None)


def _one_row_per_text(
    base: PreTrainedModel, _args: tuple, inputs: dict[str, Any], output: Any
) -> Any:
    """A forward hook of the base model below a head: its output with one row for each packed text,
    which the head then reads.
    """
    layout = inputs.get("packed_layout")
    if layout is None or layout.head is None:
        return output
    hidden = output.last_hidden_state
    vectors = _pool_packed(hidden, layout, layout.head).to(hidden.dtype)
    output.last_hidden_state = vectors.unsqueeze(1)  # [C, 1, H]
    if output.get("pooler_output") is not None:
        # The pooler has read the first token of the only row: it must read those of all texts.
        output.pooler_output = base.pooler(output.last_hidden_state)
    return output


def _pool_packed(hidden: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """One vector for each text, ``[C, H]`` float32.

    Args:
        hidden: hidden states of first tokens alone ``[1, C, H]``, or of all tokens, with the
            padding behind them ``[1, T + padding, H]``.
        layout: of the chunk.
        pooling: the name.
    """
    lengths = layout.offsets.diff().long()
    # As many tokens as texts: either these are first tokens alone, or every text is a single token.
    # Pooling would change nothing in both cases.
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
    window = _window_tokens(encoder.config)
    with in_eval_mode(encoder):
        padded_outputs = _padded_trial(encoder)
        if window > LONGEST_WINDOW:
            # The texts of a trial are shorter, and would not show whether the window is kept.
            fault = f"its window of {window:,} tokens is too long to be tried"
        else:
            fault = _packed_fault(encoder, padded_outputs, PACKED_ATTENTION[kernels])
    if fault:
        encoder.set_attn_implementation(own_attention)
        log.info("%s can't read packed texts, so it gets padded ones: %s", name, fault)
        return False
    if kernels == "auto":
        _enable_first_alone(encoder, padded_outputs[0])
    return True


def _padded_trial(encoder: PreTrainedModel) -> list[Tensor]:
    """Outputs of two padded texts; an InputError where they aren't what each text gives alone."""
    name = type(encoder).__name__
    try:
        outputs = _padded_outputs(encoder)
        error = _difference(_outputs_alone(encoder), outputs)
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
    return outputs


def _packed_fault(encoder: PreTrainedModel, padded_outputs: list[Tensor], attention: str) -> str:
    """Switch to packed texts, and try them.

    Returns:
        Why the encoder can't read them; empty if it can.
    """
    base = encoder.base_model
    try:
        encoder.set_attn_implementation(attention)
        if _one_row_per_text not in base._forward_hooks.values():  # it may be prepared already
            base.register_forward_hook(_one_row_per_text, with_kwargs=True)
        error = _difference(padded_outputs, _packed_outputs(encoder))
    except Exception as unforeseen:  # as in _padded_trial
        return one_line(unforeseen)
    if error < TOLERANCE:
        return ""
    return f"its outputs would differ by {error:.1%}"


def _enable_first_alone(encoder: PreTrainedModel, padded_hidden: Tensor) -> None:
    """Leave out all but first tokens where these are read alone, if a trial shows the same ones.

    Args:
        encoder: reads packed texts.
        padded_hidden: hidden states of the padded trial, of the two texts end to end.
    """
    handle = keep_first_tokens_alone(encoder)
    if handle is None:
        return
    expected = padded_hidden[[0, SHORT]]  # the first tokens of the two texts
    try:
        with in_eval_mode(encoder):
            first_tokens = _first_token_outputs(encoder)
        equal = _difference([expected], [first_tokens]) < TOLERANCE
    except Exception:  # as in _padded_trial
        equal = False
    if not equal:
        handle.remove()


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode inside the block. Afterwards each submodule is back in the mode it was in."""
    in_training = [submodule for submodule in module.modules() if submodule.training]
    module.eval()
    try:
        yield
    finally:
        for submodule in in_training:
            submodule.training = True


def one_line(error: Exception) -> str:
    """The class of an error, and the first line of its message."""
    first_line, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first_line}"


def _difference(expected: list[Tensor], outputs: list[Tensor]) -> float:
    """The largest difference of any of these tensors, relative to the mean size of its numbers.

    Relative, as the logits of an untrained head are small for any text. NaN if an output is NaN.
    """
    differences = []
    for x, y in zip(expected, outputs, strict=True):
        size = x.abs().mean().float().clamp(min=1e-30)  # of a head of zeros: not 0 / 0
        differences.append((y - x).abs().max().float() / size)
    return torch.stack(differences).max().item()  # max() of Python could lose a NaN


def _window_tokens(config: PreTrainedConfig) -> int:
    """Tokens of the window of local attention; 0 where there is none."""
    return getattr(config, "sliding_window", None) or 0


def _trial_texts(encoder: PreTrainedModel) -> Texts:
    """Two short texts, the second one longer than the window of local attention.

    They show that an encoder reads packed texts rightly:

    * no text attends to the other, and positions restart: any two texts of several tokens show it;
    * each token attends to those behind it, which a decoder's does not: any two tokens show it;
    * no token attends beyond the window: only a text longer than the window shows it. Where the
      window is too long to be tried, the second text is short.
    """
    config = encoder.config
    device = encoder.get_input_embeddings().weight.device
    window = _window_tokens(config)
    is_tried = 0 < window <= LONGEST_WINDOW
    more = window if is_tried else 4
    lengths = torch.tensor([SHORT, SHORT + more], device=device)
    # Without the padding's id: an encoder may mask such a token.
    token_ids = [i for i in range(min(config.vocab_size, 50)) if i != config.pad_token_id]
    number = torch.arange(int(lengths.sum()), device=device)
    ids = torch.tensor(token_ids, device=device)[number % len(token_ids)]
    return Texts(ids, lengths)


# Below, the outputs of the two texts of a trial: hidden states ``[T, H]``, and for a ready
# cross-encoder the logits ``[2]`` of its head.


@torch.no_grad()
def _outputs_alone(encoder: PreTrainedModel) -> list[Tensor]:
    """Outputs of each text read alone, without anything of ours."""
    base = encoder.base_model
    texts = _trial_texts(encoder)
    rows = [ids.unsqueeze(0) for ids in texts.ids.split(texts.lengths.tolist())]
    outputs = [torch.cat([base(row).last_hidden_state[0] for row in rows])]
    if base is not encoder:
        outputs.append(torch.cat([encoder(row).logits[:, 0] for row in rows]))
    return outputs


@torch.no_grad()
def _padded_outputs(encoder: PreTrainedModel) -> list[Tensor]:
    """Outputs of both texts in one padded chunk."""
    texts = _trial_texts(encoder)
    pad_id = encoder.config.pad_token_id or 0
    (chunk,) = padded_chunks(texts, _more_than(texts), pad_id)
    return _outputs_of_chunk(encoder, chunk)


@torch.no_grad()
def _packed_outputs(encoder: PreTrainedModel) -> list[Tensor]:
    """Outputs of both texts in one packed chunk."""
    return _outputs_of_chunk(encoder, _packed_chunk(encoder))


@torch.no_grad()
def _first_token_outputs(encoder: PreTrainedModel) -> Tensor:
    """Hidden states ``[2, H]`` of first tokens, read alone in a packed chunk."""
    return pooled(encoder.base_model, _packed_chunk(encoder), "cls")


def _outputs_of_chunk(encoder: PreTrainedModel, chunk: Chunk) -> list[Tensor]:
    base = encoder.base_model
    outputs = [hidden_states(base, chunk)]
    if base is not encoder:
        outputs.append(logits(encoder, chunk))
    return outputs


def _packed_chunk(encoder: PreTrainedModel) -> Chunk:
    texts = _trial_texts(encoder)
    (chunk,) = packed_chunks(texts, _more_than(texts), first_position(encoder.base_model))
    return chunk


def _more_than(texts: Texts) -> int:
    """A number of tokens that all these texts fit in, padding included."""
    return 10 * len(texts.ids)
