"""A self-check: does packed reading give what padded reading by transformers gives?

It answers for the device and the precision at hand. The packed kernels of a GPU depend on its generation, its driver and the release of torch. No test
can run on all of them.

Shapes: T tokens of all texts, H the hidden size.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ltr.batch import Texts
from ltr.models.encoder.attention import PACKED
from ltr.models.encoder.chunks import packed_chunks, padded_chunks
from ltr.models.encoder.loading.positions import first_position
from ltr.models.encoder.loading.pretrained import max_positions
from ltr.models.encoder.packed import hidden_states, in_eval_mode, one_line

# Ragged: two of one length, one of a single token, one longer than the tiles of 128 tokens that
# kernels work on.
LENGTHS = (7, 1, 150, 33, 7)
# How far packed texts may be from float32, in errors of the padded ones. Both round as often, in
# other places. Measured on a CPU: 0.9 to 1.4 where all is right, 20 or more for a wrong sign, nearly
# 5 or more where two texts see each other.
AS_FAR = 3.0
# What is allowed in any case, as two orders of summation differ by it: some ten roundings in half
# precision or TF32, a thousand in float32 (measured: ten). The precision of the weights counts;
# autocast shows in the padded errors.
ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}


class PathCheck(NamedTuple):
    """How packed reading compares with padded reading.

    Attributes:
        fault: what is wrong with packed reading; empty if nothing is.
        error: of packed reading against float32, relative error of the norm: of the outputs, or of
            the weight matrix whose gradient is the farthest off; infinite where a kernel is
            missing.
        rounding: the same of padded reading, the largest of all: what the precision costs.
    """

    fault: str
    error: float
    rounding: float


def check_packed(
    model: PreTrainedModel,
    attention: str,
    dtype: torch.dtype | None,
    packed_attention: str = PACKED["auto"],
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

    Raises:
        RuntimeError: if padded texts can't be read; there is no other way.
    """
    device = model.get_input_embeddings().weight.device
    with in_eval_mode(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            model.set_attn_implementation(attention)
            exact = _read(model, "padded", None)
            padded = _read(model, "padded", dtype)
        finally:
            model.set_attn_implementation(packed_attention)
        rounding = _errors(padded, exact)
        try:
            errors = _errors(_read(model, "packed", dtype), exact)
        except torch.OutOfMemoryError:  # says nothing of a kernel
            raise
        except RuntimeError as error:  # NotImplementedError is one, too
            fault = f"can't be read ({one_line(error)})"
            return PathCheck(fault, float("inf"), rounding.max().item())
    # Outputs come first, then weight by weight. Above 1 where packed reading is too far off.
    excess = errors / (AS_FAR * rounding + _floor(model))
    worst = int(excess.argmax())  # a NaN counts as the largest
    fault = ""
    if not excess[worst] <= 1:
        kind = "gradients" if worst else "outputs"
        fault = (
            f"give wrong {kind} (off by {errors[worst]:.2g} of their norm, "
            f"padded ones by {rounding[worst]:.2g})"
        )
    return PathCheck(fault, errors[worst].item(), rounding.max().item())


def _read(
    model: PreTrainedModel, how: Literal["packed", "padded"], dtype: torch.dtype | None
) -> list[Tensor]:
    """Hidden states ``[T, H]`` and, with gradients enabled, that of every weight matrix: float32."""
    base = model.base_model
    device = base.get_input_embeddings().weight.device
    pad_id = model.config.pad_token_id or 0
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(LENGTHS).clamp(max=max_positions(base) or max(LENGTHS))
    ids = torch.randint(model.config.vocab_size - 1, (int(lengths.sum()),), generator=generator)
    # All ids but the padding's: such a token would not count as one.
    ids = torch.where(ids >= pad_id, ids + 1, ids)
    texts = Texts(ids.to(device), lengths.to(device))
    one_chunk = 10 * len(ids)
    if how == "packed":
        chunks = packed_chunks(texts, one_chunk, first_position(base))
    else:
        chunks = padded_chunks(texts, one_chunk, pad_id)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        hidden = hidden_states(base, *chunks).float()
    weights = [weight for weight in base.parameters() if weight.requires_grad and weight.ndim > 1]
    gradients: tuple[Tensor | None, ...] = ()
    if weights and torch.is_grad_enabled():
        direction = torch.randn(hidden.shape, generator=generator).to(device)
        # Of vectors it would say little: the gradient of a key's bias, for one, is rounding alone.
        gradients = torch.autograd.grad((hidden * direction).sum(), weights, allow_unused=True)
    torch.clear_autocast_cache()  # it holds weights with the graph that is gone
    return [hidden.detach(), *(gradient.float() for gradient in gradients if gradient is not None)]


def _errors(outputs: list[Tensor], exact: list[Tensor]) -> Tensor:
    """The relative error of the norm of each tensor."""
    errors = []
    for x, y in zip(outputs, exact, strict=True):
        errors.append((x - y).norm() / y.norm().clamp(min=1e-30))
    return torch.stack(errors)


def _floor(model: PreTrainedModel) -> float:
    """The error that is allowed in any case."""
    weight = model.get_input_embeddings().weight
    of_torch = torch.backends.fp32_precision  # type: ignore[attr-defined]
    of_cuda = torch.backends.cuda.matmul.fp32_precision
    if weight.dtype == torch.float32 and weight.is_cuda and "tf32" in (of_torch, of_cuda):
        return ROUNDING[torch.float16]
    return ROUNDING[weight.dtype]
