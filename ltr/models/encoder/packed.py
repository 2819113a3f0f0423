"""Encoders that read texts end to end, without padding: which can, and what they make of a chunk.

Shapes: T tokens of the C texts of a chunk, H the hidden size.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder.attention import PACKED_ATTENTION, Kernels, Layout
from ltr.models.encoder.chunks import Chunk, packed_chunks, padded_chunks
from ltr.models.encoder.kernels.first_tokens import (
    announce_first_tokens,
    leave_out_later_tokens,
)
from ltr.models.encoder.loading.architecture import padding_index, window_tokens
from ltr.models.encoder.loading.pooling import Pooling, pool

log = logging.getLogger(__name__)

# enable_packing tries an encoder on two texts: one of SHORT tokens, and one that is longer than the
# encoder's window of local attention. Windows above LONGEST_WINDOW are not tried: attention would
# take seconds for each layer. The windows of known encoders have 64 to 513 tokens, those of decoders
# up to 4,096 and more.
SHORT = 3
LONGEST_WINDOW = 1024
# Relative error of outputs that should agree: rounding makes 1e-5, a wrong attention 5e-3.
TOLERANCE = 1e-3
# Relative error of the first token's output where a later token changes: 0 in a decoder, 3e-3 and
# more in an encoder, even with initial weights.
CAUSAL_TOLERANCE = 1e-6


def hidden_states(encoder: PreTrainedModel, chunk: Chunk) -> Tensor:
    """The encoder's last layer ``[T, H]`` of a chunk's texts, end to end.

    Only an encoder that :func:`enable_packing` has prepared reads packed chunks.
    """
    hidden = encoder(**chunk.inputs).last_hidden_state
    if "attention_mask" in chunk.inputs:
        return hidden[chunk.inputs["attention_mask"].bool()]
    return hidden[0, : hidden.shape[1] - chunk.inputs["packed_layout"].padding]


def read_pooled(encoder: PreTrainedModel, chunk: Chunk, pooling: Pooling) -> Tensor:
    """One vector ``[C, H]`` float32 for each text of a chunk.

    Only an encoder that :func:`enable_packing` has prepared reads packed chunks.
    """
    layout = chunk.inputs.get("packed_layout")
    if layout is None or pooling != "cls":
        return pool(hidden_states(encoder, chunk), chunk.lengths, pooling)
    layout = replace(layout, first_alone=True)
    output = _run(encoder, chunk.inputs | {"packed_layout": layout})
    return _pool_packed(output.last_hidden_state, layout, pooling)


def read_logits(classifier: PreTrainedModel, chunk: Chunk) -> Tensor:
    """Scores ``[C]`` float32 of a ready cross-encoder's own head.

    Only a classifier that :func:`enable_packing` has prepared reads packed chunks.

    A head reads the first token of each row (ModernBERT's may read the mean), or what the pooler
    makes of it. A packed chunk is one row of many texts. So the hook :func:`_one_row_per_text`
    hands it a row of one token for each text. The head of a decoder is read by
    :func:`_read_decoder_logits`.
    """
    if isinstance(classifier, GenericForSequenceClassification):
        return _read_decoder_logits(classifier, chunk)
    inputs = chunk.inputs
    if "packed_layout" in inputs:
        pooling: Pooling = getattr(classifier.config, "classifier_pooling", "cls")
        layout = replace(
            inputs["packed_layout"], first_alone=pooling == "cls", head_pooling=pooling
        )
        inputs = inputs | {"packed_layout": layout}
    return _run(classifier, inputs).logits[:, 0].float()


def _read_decoder_logits(classifier: PreTrainedModel, chunk: Chunk) -> Tensor:
    """Scores ``[C]`` float32 of a decoder with the linear head that transformers gives it.

    The head reads the last token of a text that isn't padding's. Here it does so in float32:
    transformers has scores in the model's precision, and rounded to bfloat16 they tie.
    """
    hidden = hidden_states(classifier.base_model, chunk)
    ids = chunk.inputs["input_ids"]
    if "attention_mask" in chunk.inputs:
        ids = ids[chunk.inputs["attention_mask"].bool()]
    else:
        ids = ids[0, : len(hidden)]
    begins = chunk.lengths.cumsum(0) - chunk.lengths
    text = torch.arange(len(begins), device=ids.device)
    text = text.repeat_interleave(chunk.lengths, output_size=len(ids))
    place = torch.arange(len(ids), device=ids.device)
    pad_id = classifier.config.get_text_config().pad_token_id
    if pad_id is not None:
        # Of a text that holds nothing else the first token is read, as by transformers.
        place = torch.where(ids == pad_id, begins[text], place)
    last = begins.scatter_reduce(0, text, place, "amax")
    score = classifier.score
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if score.bias is None else score.bias.float()
        return F.linear(hidden[last].float(), score.weight.float(), bias)[:, 0]


def _run(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    """The model's output. Afterwards no announcement of first tokens is left."""
    try:
        return model(**inputs)
    finally:
        # If the last layer raises, its announcement is left. Our attention overwrites it in the
        # next call, but transformers' own does not, and the next call would lose tokens.
        announce_first_tokens(None)


def _one_row_per_text(
    base: PreTrainedModel, _args: tuple, inputs: dict[str, Any], output: Any
) -> Any:
    """A forward hook of the base below a head: one row of output for each packed text."""
    layout = inputs.get("packed_layout")
    if layout is None or layout.head_pooling is None:
        return output
    hidden = output.last_hidden_state
    vectors = _pool_packed(hidden, layout, layout.head_pooling).to(hidden.dtype)
    output.last_hidden_state = vectors.unsqueeze(1)  # [C, 1, H]
    if output.get("pooler_output") is not None:
        # The pooler has read the first token of the only row: it must read those of all texts.
        output.pooler_output = base.pooler(output.last_hidden_state)
    return output


def _pool_packed(hidden: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """One vector for each text, ``[C, H]`` float32, of the hidden states of first tokens alone
    ``[1, C, H]``, or of all tokens, with the padding behind them ``[1, T + padding, H]``.
    """
    lengths = layout.offsets.diff().long()
    # As many tokens as texts: either these are first tokens alone, or every text is a single token.
    # Pooling would change nothing in both cases.
    if hidden.shape[1] == len(lengths):
        return hidden[0].float()
    return pool(hidden[0, : hidden.shape[1] - layout.padding], lengths, pooling)


def enable_packing(
    model: PreTrainedModel, kernels: Kernels = "auto", causal: bool | None = None
) -> bool:
    """Prepare an encoder, or a ready cross-encoder, to read packed texts. It still reads padded
    ones as before.

    A trial decides: two texts must give the same outputs packed as padded. An encoder that fails
    reads as before. Texts beyond :func:`longest_packed` stay padded.

    Args:
        model: of transformers.
        kernels: see :class:`ltr.models.encoder.text_encoder.TextEncoder.Options`.
        causal: what :func:`is_causal` says of it; None: it is asked.

    Returns:
        Whether the encoder reads packed texts.

    Raises:
        InputError: if it cannot read two padded texts either, a text's outputs depend on the text
            beside it, or outputs are NaN.
    """
    name = type(model).__name__
    own_attention = model.config._attn_implementation
    with in_eval_mode(model):
        padded_outputs = _padded_trial(model)
        if causal is None:
            causal = is_causal(model.base_model)
        fault = _switch_to_packed(model, padded_outputs, PACKED_ATTENTION[kernels], causal)
    if fault:
        model.set_attn_implementation(own_attention)
        log.info("%s can't read packed texts, so it gets padded ones: %s", name, fault)
        return False
    if kernels == "auto":
        _enable_first_alone(model, padded_outputs[0], causal)
    return True


def longest_packed(config: PreTrainedConfig) -> int | None:
    """Tokens of the longest text that may be packed; None: no bound.

    A window of local attention that is too long to be tried cuts nothing of a text that is no
    longer. Longer texts are padded.
    """
    window = window_tokens(config)
    return window if window > LONGEST_WINDOW else None


def _padded_trial(model: PreTrainedModel) -> list[Tensor]:
    """Outputs of two padded texts; an InputError unless each is what the text gives alone."""
    name = type(model).__name__
    try:
        outputs = _padded_outputs(model)
        error = _difference(_outputs_alone(model), outputs)
    # An architecture may raise anything for inputs that it does not know.
    except Exception as unforeseen:
        raise InputError(
            f"{name} can't read two texts side by side ({one_line(unforeseen)}); "
            "take another backbone"
        ) from None
    if math.isnan(error):
        raise InputError(
            f"{name} gives outputs that are NaN or infinite, so it can't be trained; "
            "take another backbone"
        )
    if error > TOLERANCE:
        raise InputError(
            f"{name} gives a text other outputs beside a longer text than alone (by {error:.1%}), "
            "so it can't read batches; take another backbone"
        )
    return outputs


@torch.no_grad()
def is_causal(encoder: PreTrainedModel) -> bool:
    """Whether the first token of a text has the same output whatever stands behind it, as in a
    decoder. False for one that can't be read: the trial of :func:`enable_packing` says why.
    """
    texts = _trial_texts(encoder)
    row = texts.ids[:SHORT].unsqueeze(0)
    other = row.clone()
    other[0, -1] = row[0, 0]  # another token than before: those of a trial differ
    try:
        with in_eval_mode(encoder):
            first = encoder(row).last_hidden_state[0, 0]
            same = encoder(other).last_hidden_state[0, 0]
    except Exception:  # an architecture may raise anything for inputs that it does not know
        return False
    return _difference([first], [same]) < CAUSAL_TOLERANCE


def _switch_to_packed(
    model: PreTrainedModel, padded_outputs: list[Tensor], attention: str, causal: bool
) -> str:
    """Switch to packed texts for good. Returns why the model can't read them; empty if it can."""
    base = model.base_model
    try:
        model.set_attn_implementation(attention)
        if _one_row_per_text not in base._forward_hooks.values():  # it may be prepared already
            base.register_forward_hook(_one_row_per_text, with_kwargs=True)
        error = _difference(padded_outputs, _packed_outputs(model, causal))
    except Exception as unforeseen:  # as in _padded_trial
        return one_line(unforeseen)
    if error < TOLERANCE:
        return ""
    return f"its outputs would differ by {error:.1%}"


def _enable_first_alone(model: PreTrainedModel, padded_hidden: Tensor, causal: bool) -> None:
    """Let the last layer compute first tokens alone where no others are read. It is undone if a
    trial gives other outputs for these than the padded trial, whose hidden states are given.
    """
    handle = leave_out_later_tokens(model)
    if handle is None:
        return
    expected = padded_hidden[[0, SHORT]]  # the first tokens of the two texts
    try:
        with in_eval_mode(model):
            first_tokens = _first_token_outputs(model, causal)
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


def _trial_texts(model: PreTrainedModel) -> Texts:
    """Two short texts, the second one longer than the window of local attention.

    They show that an encoder reads packed texts rightly:

    * no text attends to the other, and positions restart: any two texts of several tokens show it;
    * each token attends to those behind it, or, of a decoder, does not: any two tokens show it;
    * no token attends beyond the window: only a text longer than the window shows it. Where the
      window is too long to be tried, the second text is short.
    """
    config = model.config
    device = model.get_input_embeddings().weight.device
    window = window_tokens(config)
    is_tried = 0 < window <= LONGEST_WINDOW
    more = window if is_tried else 4
    lengths = torch.tensor([SHORT, SHORT + more], device=device)
    # Without the padding's id: an encoder may mask such a token.
    token_ids = [i for i in range(min(config.vocab_size, 50)) if i != config.pad_token_id]
    number = torch.arange(int(lengths.sum()), device=device)
    ids = torch.tensor(token_ids, device=device)[number % len(token_ids)]
    return Texts(ids, lengths)


# Below, the outputs of the two texts of a trial: hidden states ``[T, H]``, and for a ready
# cross-encoder the logits ``[2]`` of its head. Only a model with a head differs from its base model.


@torch.no_grad()
def _outputs_alone(model: PreTrainedModel) -> list[Tensor]:
    """Outputs of each text read alone, without anything of ours."""
    base = model.base_model
    has_head = base is not model
    texts = _trial_texts(model)
    rows = [ids.unsqueeze(0) for ids in texts.ids.split(texts.lengths.tolist())]
    outputs = [torch.cat([base(row).last_hidden_state[0] for row in rows])]
    if has_head:
        outputs.append(torch.cat([model(row).logits[:, 0] for row in rows]))
    return outputs


@torch.no_grad()
def _padded_outputs(model: PreTrainedModel) -> list[Tensor]:
    """Outputs of both texts in one padded chunk."""
    texts = _trial_texts(model)
    pad_id = model.config.pad_token_id or 0
    (chunk,) = padded_chunks(texts, _enough_for(texts), pad_id)
    return _outputs_of_chunk(model, chunk)


@torch.no_grad()
def _packed_outputs(model: PreTrainedModel, causal: bool) -> list[Tensor]:
    """Outputs of both texts in one packed chunk."""
    return _outputs_of_chunk(model, _packed_chunk(model, causal))


@torch.no_grad()
def _first_token_outputs(model: PreTrainedModel, causal: bool) -> Tensor:
    """Hidden states ``[2, H]`` of first tokens, read alone in a packed chunk."""
    return read_pooled(model.base_model, _packed_chunk(model, causal), "cls")


def _outputs_of_chunk(model: PreTrainedModel, chunk: Chunk) -> list[Tensor]:
    base = model.base_model
    has_head = base is not model
    outputs = [hidden_states(base, chunk)]
    if has_head:
        outputs.append(read_logits(model, chunk))
    return outputs


def _packed_chunk(model: PreTrainedModel, causal: bool) -> Chunk:
    texts = _trial_texts(model)
    index = padding_index(model.base_model)
    (chunk,) = packed_chunks(texts, _enough_for(texts), index, causal)
    return chunk


def _enough_for(texts: Texts) -> int:
    """``max_tokens`` with which all these texts fit in one chunk, padding included."""
    return 10 * len(texts.ids)
