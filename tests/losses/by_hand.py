"""The value of a loss over one list that is written down."""

import torch
from torch import nn


def value(loss: nn.Module, scores, labels, mask=None, margin=None) -> float:
    """Of the scores and labels of a list; a margin has the dimension of the batch."""
    lists = [torch.tensor([row], dtype=torch.float32) for row in (scores, labels)]
    mask = None if mask is None else torch.tensor([mask])
    margin = None if margin is None else torch.as_tensor(margin, dtype=torch.float32)
    return loss(*lists, mask, margin).item()
