"""What every loss over lists shares: checks, pairs, reduction.

Letters of shapes: b row (one query), i and j columns (documents of its list).
"""

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def check_lists(scores: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check shapes; return the scores in float32 or better, 0 at the padding, and the mask.

    Raises:
        ValueError: if scores, labels and mask do not share one shape ``[B, N]``.
    """
    mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    if scores.ndim != 2 or scores.shape != labels.shape or scores.shape != mask.shape:
        raise ValueError(
            "scores, labels and mask must share one shape [B, N], got "
            f"{tuple(scores.shape)}, {tuple(labels.shape)} and {tuple(mask.shape)}. "
            "One row is one query; pad short lists and mark the padding with mask=False."
        )
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    # Filled, not multiplied: whatever stands in the padding, NaN included, reaches neither value nor gradient.
    return scores.masked_fill(~mask, 0.0), mask


def pairs(scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Score gaps ``s_i - s_j`` as ``[B, N, N]``, and the pairs of real documents with ``y_i > y_j``."""
    s_gap_bij = scores.unsqueeze(2) - scores.unsqueeze(1)
    pair_bij = (labels.unsqueeze(2) > labels.unsqueeze(1)) & mask.unsqueeze(2) & mask.unsqueeze(1)
    return s_gap_bij, pair_bij


def per_pair(margin: float | Tensor, like: Tensor) -> float | Tensor:
    """A margin as something that broadcasts to ``[B, N, N]``.

    A number stays one; ``[B, N]`` is one margin per less relevant document; ``[B, N, N]`` is one per pair.

    Raises:
        ValueError: for any other shape.
    """
    if not isinstance(margin, Tensor):
        return margin
    rows, columns = like.shape
    margin = margin.to(device=like.device, dtype=like.dtype)
    if margin.ndim == 0 or margin.shape == (rows, columns, columns):
        return margin
    if margin.shape == (rows, columns):
        return margin.unsqueeze(1)
    raise ValueError(
        f"a margin for scores [B={rows}, N={columns}] must be a number, [B, N] (per less relevant document) or "
        f"[B, N, N] (per pair), got {tuple(margin.shape)}"
    )


def mean_over_pairs(cost_bij: Tensor, pair_bij: Tensor, reduction: Reduction) -> Tensor:
    """Mean of a cost over the chosen pairs of each row, then over the rows that have one."""
    n_pairs_b = pair_bij.sum(dim=(1, 2))
    mean_b = cost_bij.masked_fill(~pair_bij, 0.0).sum(dim=(1, 2)) / n_pairs_b.clamp(min=1)
    return reduce_lists(mean_b, n_pairs_b > 0, reduction)


def reduce_lists(value_b: Tensor, has_signal_b: Tensor, reduction: Reduction) -> Tensor:
    """Reduce one value per row; ``mean`` is over the rows with something to learn, so the others do not dilute it.

    Raises:
        ValueError: for an unknown reduction.
    """
    if reduction == "none":
        return value_b
    if reduction == "sum":
        return value_b.sum()
    if reduction == "mean":
        return value_b.sum() / has_signal_b.sum().clamp(min=1)
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def two_labels(labels: Tensor, mask: Tensor) -> Tensor:
    """``[B]`` bool: whether a row has two documents with different labels."""
    low_b = labels.masked_fill(~mask, torch.inf).amin(dim=1)
    high_b = labels.masked_fill(~mask, -torch.inf).amax(dim=1)
    return high_b > low_b


def masked_log_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the real documents of each row; 0 at the padding, and in a row without documents."""
    some = mask.any(dim=1, keepdim=True)
    return torch.log_softmax(x.masked_fill(~mask & some, -torch.inf), dim=1).masked_fill(~mask, 0.0)
