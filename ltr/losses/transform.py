"""What a loss sees in the place of the scores: a softmax over each list, or a sigmoid."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ltr.errors import one_of
from ltr.pairs.list_tensors import masked_log_softmax

Transform = Literal["none", "softmax", "sigmoid"]


def transformed(scores: Tensor, mask: Tensor, transform: Transform) -> Tensor:
    r"""``[B, N]``: the scores as a loss shall see them, 0 at the padding; with ``none`` unchanged.

    .. math::
        p_i = \frac{e^{s_i}}{\sum_{j \in \text{list}} e^{s_j}} \;(\text{softmax}), \qquad
        p_i = \frac{1}{1 + e^{-s_i}} \;(\text{sigmoid})

    Both lie from 0 to 1 and keep the order, so a gap is less than 1: margins are in units of
    probability then. Float32 or better; what stands at the padding changes neither value nor
    gradient.

    Args:
        scores: ``[B, N]`` float.
        mask: ``[B, N]`` bool, True for a document.
        transform: ``none``, ``softmax`` or ``sigmoid``.

    Raises:
        InputError: for another transform.

    Example:
        >>> mask = torch.tensor([[True, True, False]])
        >>> transformed(torch.tensor([[1.0, 1.0, 9.0]]), mask, "softmax")
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    one_of(get_args(Transform), transform=transform)
    if transform == "none":
        return scores
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if transform == "softmax":
        probabilities = masked_log_softmax(scores, mask).exp()
    else:
        probabilities = scores.masked_fill(~mask, 0.0).sigmoid()
    return probabilities.masked_fill(~mask, 0.0)
