"""A self-check: does packed reading give what padded reading by transformers gives?

It answers for the device and the precision at hand. The packed kernels of a GPU depend on its
generation, its driver and the release of torch. No test can run on all of them.

Three readings are compared: padded in float32, which counts as exact; padded in the precision at
hand, whose error is what rounding costs; and packed in that precision, whose error must be of the
same size. What all of them compute alike is not checked: linear layers, norms and rotations, and our
kernels for these.

Shapes: T tokens of all texts, H the hidden size.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ltr.batch import Texts
from ltr.models.encoder.attention import PACKED_ATTENTION
from ltr.models.encoder.chunks import packed_chunks, padded_chunks
from ltr.models.encoder.loading.architecture import max_positions, padding_index
from ltr.models.encoder.packed import hidden_states, in_eval_mode, one_line
from ltr.tf32 import rounds_factors

# Ragged: two of one length, one of a single token, one longer than the tiles of 128 tokens that
# kernels work on.
LENGTHS = (7, 1, 150, 33, 7)
# The error of packed reading may be this many times that of padded reading. Both round as often, in
# other places. Measured on a CPU: 0.9 to 1.4 where all is right, 20 or more for a wrong sign, and
# nearly 5 or more where two texts see each other.
ERROR_FACTOR = 3.0
# An error that is allowed in any case, by the precision of the weights: sums in another order
# differ by it even where padded reading shows no error. In half precision it is ten times the
# rounding error; in float32 a thousand times, though only ten times was ever measured. Under
# autocast weights are float32: what autocast rounds is in the errors of padded reading already.
ALLOWED_ERROR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}


class PathCheck(NamedTuple):
    """How packed reading compares with padded reading.

    Errors are relative errors of the norm, against padded reading in float32.

    Attributes:
        fault: what is wrong with packed reading; empty if nothing is.
        error: of packed reading: that of the outputs, or of the gradient of a weight matrix,
            whichever is the farthest off; infinite where a kernel is missing.
        padded_error: the largest error of padded reading: what the precision costs.
    """

    fault: str
    error: float
    padded_error: float


def compare_packed(
    model: PreTrainedModel,
    attention: str,
    dtype: torch.dtype | None,
    packed_attention: str = PACKED_ATTENTION["auto"],
    causal: bool = False,
) -> PathCheck:
    """Read a few ragged texts packed and padded, and compare.

    What is compared are the outputs and, with gradients enabled, those of the weight matrices.
    Nothing is left behind: random state, ``grad`` of the parameters and modes are as before. It
    needs the memory of three gradients, no more than AdamW needs after the first step.

    Args:
        model: an encoder, or a ready cross-encoder, that reads packed texts.
        attention: its own implementation of attention, which reads the padded texts.
        dtype: of autocast; None: without.
        packed_attention: the implementation that reads packed texts; the model has it afterwards.
        causal: whether the model is a decoder.

    Raises:
        RuntimeError: if padded texts can't be read; there is no other way.
    """
    device = model.get_input_embeddings().weight.device
    with in_eval_mode(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            model.set_attn_implementation(attention)
            exact = _read(model, "padded", None, causal)
            padded = _read(model, "padded", dtype, causal)
        finally:
            model.set_attn_implementation(packed_attention)
        padded_errors = _errors(padded, exact)
        try:
            packed_errors = _errors(_read(model, "packed", dtype, causal), exact)
        except torch.OutOfMemoryError:  # says nothing of a kernel
            raise
        except RuntimeError as error:  # NotImplementedError is one, too
            fault = f"can't be read ({one_line(error)})"
            return PathCheck(fault, float("inf"), padded_errors.max().item())
    # The outputs come first, then each weight. Above 1 where packed reading is too far off.
    excess = packed_errors / (ERROR_FACTOR * padded_errors + _allowed_error(model))
    worst = int(excess.argmax())  # a NaN counts as the largest
    fault = ""
    if not excess[worst] <= 1:  # not "> 1", which a NaN is not
        kind = "outputs" if worst == 0 else "gradients"
        fault = (
            f"give wrong {kind} (off by {packed_errors[worst]:.2g} of their norm, "
            f"padded ones by {padded_errors[worst]:.2g})"
        )
    return PathCheck(fault, packed_errors[worst].item(), padded_errors.max().item())


def _read(
    model: PreTrainedModel,
    how: Literal["packed", "padded"],
    dtype: torch.dtype | None,
    causal: bool,
) -> list[Tensor]:
    """Hidden states ``[T, H]``; with gradients enabled, also the gradient for every weight matrix of
    a randomly weighted sum of these. All float32.
    """
    base = model.base_model
    device = base.get_input_embeddings().weight.device
    pad_id = model.config.pad_token_id or 0
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(LENGTHS).clamp(max=max_positions(base) or max(LENGTHS))
    ids = torch.randint(model.config.vocab_size - 1, (int(lengths.sum()),), generator=generator)
    # Skip the padding's id, as an encoder may mask such a token: the ids from it on move up by one.
    ids = torch.where(ids >= pad_id, ids + 1, ids)
    texts = Texts(ids.to(device), lengths.to(device))
    more_than_all = 10 * len(ids)  # tokens of a chunk: all texts fit in one, padding included
    if how == "packed":
        (chunk,) = packed_chunks(texts, more_than_all, padding_index(base), causal)
    else:
        (chunk,) = padded_chunks(texts, more_than_all, pad_id)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        hidden = hidden_states(base, chunk).float()
    outputs = [hidden.detach()]
    # Matrices only. Vectors would say little: the gradient of a key's bias is rounding alone.
    matrices = [weight for weight in base.parameters() if weight.requires_grad and weight.ndim > 1]
    if matrices and torch.is_grad_enabled():
        direction = torch.randn(hidden.shape, generator=generator).to(device)
        random_sum = (hidden * direction).sum()
        for gradient in torch.autograd.grad(random_sum, matrices, allow_unused=True):
            if gradient is not None:
                outputs.append(gradient.float())
    torch.clear_autocast_cache()  # it holds weights with the graph that is gone
    return outputs


def _errors(outputs: list[Tensor], exact: list[Tensor]) -> Tensor:
    """The relative error of the norm of each tensor."""
    errors = []
    for x, y in zip(outputs, exact, strict=True):
        errors.append((x - y).norm() / y.norm().clamp(min=1e-30))
    return torch.stack(errors)


def _allowed_error(model: PreTrainedModel) -> float:
    """The error that is allowed in any case."""
    weight = model.get_input_embeddings().weight
    is_on_gpu = weight.dtype == torch.float32 and weight.is_cuda
    if is_on_gpu and rounds_factors(torch.backends.cuda.matmul):
        return ALLOWED_ERROR[torch.float16]  # TF32 has as many digits
    return ALLOWED_ERROR[weight.dtype]
