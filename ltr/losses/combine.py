"""Several losses at once."""

from collections.abc import Sequence

from torch import Tensor, nn

from ltr.errors import InputError
from ltr.losses.listwise import SoftmaxLoss
from ltr.losses.pairwise import MarginRankingLoss


class WeightedSum(nn.Module):
    r"""A weighted sum of losses over the same lists: :math:`\sum_k w_k\, \ell_k(s, y)`.

    A margin of the batch goes to the losses that take one. Each loss keeps its own reduction.

    Args:
        losses: the losses; None is :class:`ltr.losses.SoftmaxLoss` and :class:`ltr.losses.MarginRankingLoss`, order and gap.
        weights: one number each; None is 1 for all.

    Raises:
        ValueError: if there is no loss, or not one weight for each.

    Use:
        To keep a second objective in sight, for instance a margin beside a distribution, or distillation beside labels.

    Cost:
        The sum of theirs.

    References:
        Those of the losses.

    Example:
        >>> import torch
        >>> from ltr.losses import MSELoss, RankNetLoss
        >>> loss = WeightedSum([RankNetLoss(), MSELoss()], [1.0, 0.5])
        >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))  # log 2 + 0.5 * 0.5
        tensor(0.9431)
    """

    def __init__(self, losses: list[nn.Module] | None = None, weights: list[float] | None = None) -> None:
        super().__init__()
        losses = [SoftmaxLoss(), MarginRankingLoss()] if losses is None else losses
        self.weights: Sequence[float] = [1.0] * len(losses) if weights is None else weights
        if not losses or len(self.weights) != len(losses):
            raise InputError(
                f"losses must not be empty and weights must be one for each, got {len(losses)} and {len(self.weights)}"
            )
        self.losses = nn.ModuleList(losses)
        self.takes_margin = any(getattr(loss, "takes_margin", True) for loss in losses)

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        values = [loss(scores, labels, mask, margin) for loss in self.losses]
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))
