"""What the losses share over lists: shapes and types, padding, and which rows have something to
learn.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def prepare_lists(
    scores: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and labels with 0 at the padding, and the mask, after :func:`prepare_types`. A NaN
    label makes its score NaN, and a NaN score its label: so its row counts as one with something to
    learn, and no loss hides it.
    """
    scores, labels, mask = prepare_types(scores, labels, mask)
    scores, labels = fill_padding(scores, labels, mask)
    scores = nan_of_labels_into_scores(scores, labels)
    labels = labels.masked_fill(scores.isnan(), torch.nan)
    if mask is None:
        mask = torch.ones_like(labels, dtype=torch.bool)
    return scores, labels, mask


def prepare_types(
    scores: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The scores in float32 or better, the labels in the same type and without gradient, and the
    mask; other shapes are refused, what is no tensor, and labels that :func:`labels_as` refuses.
    """
    check_tensors(scores, labels, mask)
    shape = tuple(scores.shape)
    labels_shape = tuple(labels.shape)
    mask_shape = None if mask is None else tuple(mask.shape)
    if scores.ndim != 2 or labels_shape != shape or mask_shape not in (None, shape):
        raise ValueError(
            f"scores, labels and mask must share one shape [B, N], got {shape}, {labels_shape} and {mask_shape}. "
            "One row is one query; pad short lists and mark the padding with mask=False."
        )
    if not scores.is_floating_point():
        raise ValueError(f"scores must be floating, got {scores.dtype}; call .float()")
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if not shape[1]:  # rows without columns are rows of padding
        scores = F.pad(scores, (0, 1))
        labels = F.pad(labels, (0, 1))
        mask = torch.zeros_like(labels, dtype=torch.bool)
    return scores, labels_as(scores.dtype, labels), mask


def labels_as(dtype: torch.dtype, labels: Tensor) -> Tensor:
    """The labels in this type, without gradient; refused where it would make another whole number of
    one, as float32 does beyond 2^24: two grades would be one.
    """
    converted = labels.detach().to(dtype)
    if dtype == torch.float32 and labels.dtype in (torch.float64, torch.int64, torch.int32):
        is_changed = (converted.abs() >= 2**24) & (converted.to(labels.dtype) != labels)
        if is_changed.any():
            raise ValueError(
                f"labels must be numbers that float32 can hold, up to 2^24 where they are whole, got {labels[is_changed][0].item()}"
            )
    return converted


def check_tensors(scores: object, labels: object, mask: object) -> None:
    """Raise a TypeError for what is no tensor, such as a list or an array, and for a mask that is not
    of bool.
    """
    for name, values in (("scores", scores), ("labels", labels), ("mask", mask)):
        if values is not None and not isinstance(values, Tensor):
            raise TypeError(
                f"{name} must be a tensor, got {type(values).__name__}; make one: torch.as_tensor({name})"
            )
    if isinstance(mask, Tensor) and mask.dtype != torch.bool:
        raise TypeError(f"mask must be a tensor of bool, got {mask.dtype}; call .bool()")


def fill_padding(scores: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both with 0 at the padding. Filled, not multiplied: a NaN there reaches neither value nor
    gradient.
    """
    if mask is None:
        return scores, labels
    padding = ~mask
    return scores.masked_fill(padding, 0.0), labels.masked_fill(padding, 0.0)


def nan_of_labels_into_scores(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores, NaN also where the label is NaN: so no loss hides it."""
    # Plus 0 times the label, in one operation.
    return torch.add(scores, labels, alpha=0)


def as_margin(margin: float | Tensor, scores: Tensor) -> Tensor:
    """The margin as a tensor of the scores' type: ``[B, 1]``, ``[B, N]`` (per less relevant
    document) or ``[B, N, N]`` (per pair). Its B may be 1: one margin for all rows.
    """
    rows, columns = scores.shape
    margin = torch.as_tensor(margin, dtype=scores.dtype, device=scores.device)
    if margin.ndim == 0:
        return margin.expand(rows, 1)
    if columns == 1 and not margin.shape[-1]:  # of rows without columns, see prepare_types
        margin = F.pad(margin, (0, 1) * (margin.ndim - 1))
    shapes_of_a_row = ((1,), (columns,), (columns, columns))
    if margin.shape[0] not in (1, rows) or margin.shape[1:] not in shapes_of_a_row:
        raise ValueError(
            f"a margin for scores [B={rows}, N={columns}] must be a number, [B, 1] (per row), [B, N] (per less relevant document) or [B, N, N] (per pair), got {tuple(margin.shape)}"
        )
    return margin.expand(rows, *margin.shape[1:])


def clean_margin(margin: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """A margin per document with 0 at the documents that are never the less relevant one of a pair:
    a policy may leave anything there, NaN included. Other margins stay as they are.
    """
    if margin.shape != labels.shape:
        return margin
    highest_label = labels.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
    return margin.masked_fill(~mask | (labels == highest_label), 0.0)


def two_labels(labels: Tensor, mask: Tensor | None) -> Tensor:
    """``[B]`` bool: whether a row has two documents with different labels.

    A NaN label is different from all: its row counts, or the NaN would be hidden.
    """
    if mask is None:
        low_b, high_b = labels.aminmax(dim=1)
    else:
        padding = ~mask
        low_b = labels.masked_fill(padding, torch.inf).amin(dim=1)
        high_b = labels.masked_fill(padding, -torch.inf).amax(dim=1)
    # Not high > low: that is False for a NaN.
    return ~(high_b <= low_b)


def relevant_and_not(labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[B, N]`` the relevant documents (a label above 0) and the others, and ``[B]`` whether a row
    has both.

    A NaN label counts as both: so its row counts, or the NaN would be hidden.
    """
    relevant = ~(labels <= 0) & mask
    irrelevant = ~(labels > 0) & mask
    has_both_b = relevant.any(dim=1) & irrelevant.any(dim=1)
    return relevant, irrelevant, has_both_b


def masked_log_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the documents of each row; at the padding a finite number whose exponential
    is 0.
    """
    # Not -inf: a product with probability 0 would be NaN, and so would a row without documents.
    return torch.log_softmax(x.masked_fill(~mask, -1e30), dim=1)
