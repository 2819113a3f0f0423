"""Margins that no embedding moves: one number, or the gap of two grades."""

import math

import torch
from torch import Tensor

from ltr.batch import ScoredLists
from ltr.margins.margin import Margin, require


class Constant(Margin):
    r"""The same margin for every pair: :math:`m_{ij} = v`.

    Args:
        value: at least 0, in units of score.

    Example:
        >>> one_list = ScoredLists(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.ones(1, 2).bool())
        >>> Constant(0.5)(one_list)
        tensor([[0.5000, 0.5000]])
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        require(0 <= value < math.inf, "Constant: value must be finite and at least 0", value=value)
        self.value = value

    def forward(self, lists: ScoredLists) -> Tensor:
        return torch.full_like(lists.labels, self.value)


class LabelGap(Margin):
    r"""A margin per pair that grows with the gap of the grades: :math:`m_{ij} = s \cdot \max(0,\;
    y_i - y_j)`.

    It is ``[B, N, N]``: with in-batch lists rows × columns² numbers.

    Args:
        scale: above 0, units of score per grade.

    References:
        Ha & Blanz (2021), Deep ranking with adaptive margin triplet loss, arXiv:2107.06187 (margins
        from ratings).

    Example:
        >>> labels = torch.tensor([[2.0, 0.0]])
        >>> LabelGap(0.5)(ScoredLists(torch.zeros(1, 2), labels, labels >= 0))  # of (0, 1): 0.5 * (2 - 0)
        tensor([[[0., 1.],
                 [0., 0.]]])
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        require(0 < scale < math.inf, "LabelGap: scale must be finite and above 0", scale=scale)
        self.scale = scale

    def forward(self, lists: ScoredLists) -> Tensor:
        gap_bij = lists.labels.unsqueeze(2) - lists.labels.unsqueeze(1)
        return self.scale * gap_bij.clamp(min=0)
