"""Margin policies: how far apart two scores should be, in units of score."""

from typing import NamedTuple

from torch import Tensor, nn


class MarginInputs(NamedTuple):
    """What a margin may depend on.

    Attributes:
        labels: ``[B, N]`` float.
        mask: ``[B, N]`` bool.
        distances: ``[B, N]`` float, distance of each document to its query in the index that mined it, or None.
        embeddings: ``[B, N, H]`` float, the documents' representations, or None.
    """

    labels: Tensor
    mask: Tensor
    distances: Tensor | None = None
    embeddings: Tensor | None = None


class FromDistance(nn.Module):
    r"""A margin per negative, from its distance in the index: :math:`\min(k\, d^{\,p}, \text{cap})`.

    A far (easy) negative is asked to stay further away. The distances come from the index, so the margin carries no gradient.

    Args:
        k: factor.
        power: 1 for ``k·d``, 0.5 for ``k·√d``, 2 for ``k·d²``.
        cap: upper bound, in units of score; None for no bound.

    Returns:
        ``[B, N]``.
    """

    def __init__(self, k: float = 1.0, power: float = 1.0, cap: float | None = None) -> None:
        super().__init__()
        self.k, self.power, self.cap = k, power, cap

    def forward(self, inputs: MarginInputs) -> Tensor:
        if inputs.distances is None:
            raise ValueError(
                "FromDistance needs a batch with distances, got none; set data.init_args.negatives to a folder of mined "
                "negatives, or take another margin"
            )
        margin = self.k * inputs.distances.detach().clamp(min=0) ** self.power
        return margin if self.cap is None else margin.clamp(max=self.cap)
