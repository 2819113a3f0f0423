"""A margin that grows while training."""

import torch
from torch import Tensor

from ltr.batch import ScoredLists
from ltr.margins.margin import Margin, require


class Annealed(Margin):
    r"""Another policy's margin, grown linearly: :math:`m_{ij} \cdot \min(1,\; t / T)`, t the
    batches counted so far.

    Early on, when every pair is wrong, a small margin asks for the order alone. The count is in the
    checkpoint.

    Args:
        margin: the policy.
        steps: T, batches until the margin is whole, at least 1; the first one has 0.

    Example:
        >>> from ltr.margins import Constant
        >>> one_list = ScoredLists(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.ones(1, 2).bool())
        >>> margin = Annealed(Constant(0.5), steps=2)
        >>> [margin(one_list)[0, 1].item() for _ in range(3)]
        [0.0, 0.25, 0.5]
    """

    batches: Tensor  # counted so far; in the checkpoint

    def __init__(self, margin: Margin, steps: int) -> None:
        super().__init__()
        require(steps >= 1, "Annealed: steps must be at least 1", steps=steps)
        self.margin = margin
        self.steps = steps
        self.want_as(margin)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, lists: ScoredLists) -> Tensor:
        share = (self.batches / self.steps).clamp(max=1.0)  # 0 at the first batch
        self.batches += 1
        return share * self.margin(lists)
