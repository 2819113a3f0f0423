"""What every loss over lists shares: checks, margins, reduction.

Letters of shapes: b row (one query), i and j columns (documents of its list).
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import InputError

Reduction = Literal["mean", "sum", "none"]


def check_lists(scores: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Check shapes; return the scores in float32 or better and the labels like them, both 0 at the padding, and the mask.

    Raises:
        ValueError: if scores, labels and mask do not share one shape ``[B, N]``.
    """
    scores, labels, real = check_shapes(scores, labels, mask)
    return (scores, labels, real) if mask is None else (*fill_padding(scores, labels, real), real)


def check_shapes(scores: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The part of :func:`check_lists` that fills nothing: what stands in the padding stays."""
    mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    if scores.ndim != 2 or scores.shape != labels.shape or scores.shape != mask.shape:
        raise ValueError(
            "scores, labels and mask must share one shape [B, N], got "
            f"{tuple(scores.shape)}, {tuple(labels.shape)} and {tuple(mask.shape)}. "
            "One row is one query; pad short lists and mark the padding with mask=False."
        )
    if not scores.is_floating_point():
        raise ValueError(f"scores must be floating, got {scores.dtype}; call .float()")
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if not scores.shape[1]:  # rows without columns are rows of padding
        scores, labels, mask = (F.pad(t, (0, 1)) for t in (scores, labels, mask))
    return scores, labels.detach().to(scores.dtype), mask  # labels, a teacher's scores too, carry no gradient


def fill_padding(scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Filled with 0, not multiplied: whatever stands in the padding, NaN included, reaches neither value nor gradient."""
    padding = ~mask
    return scores.masked_fill(padding, 0.0), labels.masked_fill(padding, 0.0)


def check_margin(margin: float | Tensor, scores: Tensor) -> Tensor:
    """A margin as a tensor like the scores: ``[B, 1]``, ``[B, N]`` (one per less relevant document), or ``[B, N, N]`` (per pair).

    Raises:
        ValueError: for any other shape.
    """
    rows, columns = scores.shape
    margin = torch.as_tensor(margin, dtype=scores.dtype, device=scores.device)
    if margin.ndim == 0:
        return margin.expand(rows, 1)
    if margin.ndim > 1 and margin.shape[0] in (1, rows) and margin.shape[1:] in ((1,), (columns,), (columns, columns)):
        return margin.expand(rows, *margin.shape[1:])
    raise ValueError(
        f"a margin for scores [B={rows}, N={columns}] must be a number, [B, 1] (per row), [B, N] (per less relevant document) or "
        f"[B, N, N] (per pair), got {tuple(margin.shape)}"
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option that is none of the choices.

    Raises:
        InputError: a ValueError, with the name, the choices, and what came.
    """
    if value not in choices:
        raise InputError(f"{name} must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}, got {value!r}")


def reduce_lists(value_b: Tensor, has_signal_b: Tensor, reduction: Reduction) -> Tensor:
    """Reduce one value per row; ``mean`` is over the rows with something to learn, so the others do not dilute it.

    Raises:
        ValueError: for an unknown reduction.
    """
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    if reduction == "none":
        return value_b
    if reduction == "sum":
        return value_b.sum()
    return value_b.sum() / has_signal_b.sum().clamp(min=1)


def two_labels(labels: Tensor, mask: Tensor | None) -> Tensor:
    """``[B]`` bool: whether a row has two documents with different labels."""
    if mask is None:
        low_b, high_b = labels.aminmax(dim=1)
        return high_b > low_b
    high = labels.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
    return ((labels < high) & mask).any(dim=1)


def relevant_and_not(labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[B, N]`` which documents are relevant (a label above 0) and which are not, and ``[B]`` which rows have both."""
    relevant, irrelevant = (labels > 0) & mask, (labels <= 0) & mask
    return relevant, irrelevant, relevant.any(dim=1) & irrelevant.any(dim=1)


def masked_log_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the real documents of each row; at the padding a finite number whose exponential is 0."""
    # Not -inf: a product with probability 0 would be NaN, and so would a row without documents.
    return torch.log_softmax(x.masked_fill(~mask, -1e30), dim=1)
