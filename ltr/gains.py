"""Gains of relevance grades, shared by metrics and losses."""

import math

import torch
from torch import Tensor


def exp_gain(grades: Tensor) -> Tensor:
    """2^y - 1, the gain of LETOR's nDCG; a grade below 0 gains nothing, as 0."""
    return torch.expm1(grades.clamp(min=0) * math.log(2))
