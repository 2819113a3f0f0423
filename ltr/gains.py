"""Gains of relevance grades, shared by metrics and losses."""

import math

import torch
from torch import Tensor


def exp_gain(grades: Tensor, top: float | Tensor | None = None) -> Tensor:
    r"""The gain of LETOR's nDCG in units of :math:`2^{top}`, a number for all grades up to that
    one; a grade below 0 gains nothing, as 0.

    .. math:: (2^y - 1) / 2^{top} = 2^{y - top} (1 - 2^{-y})

    The gain itself is no float32 from grade 128 on. What is divided by the gain of the best order
    has the same value in any unit.

    Args:
        grades: ``[B, N]``.
        top: at least as large as every grade, and as 0; None takes the largest of each list.

    Example:
        >>> exp_gain(torch.tensor([[300.0, 299.0, 0.0]]))
        tensor([[1.0000, 0.5000, 0.0000]])
    """
    grades = grades.clamp(min=0)
    if top is None:
        top = grades.amax(dim=1, keepdim=True)
    return -torch.exp2(grades - top) * torch.expm1(-grades * math.log(2))
