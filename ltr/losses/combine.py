"""Several losses at once."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ltr.errors import InputError, not_negative
from ltr.losses.listwise import SoftmaxLoss
from ltr.losses.loss import Loss
from ltr.losses.pairwise import MarginRankingLoss


class WeightedSum(Loss):
    r"""A weighted sum of losses over the same lists: :math:`\sum_k w_k\, \ell_k(s, y)`.

    A margin of the batch goes to the losses that take one. Each loss keeps its own reduction, and
    the sum has none: what its attribute ``reduction`` says does not count.

    Use: To keep a second objective in sight, for instance a margin beside a distribution, or
    distillation beside labels.
    Cost: The sum of theirs.
    References: Those of the losses.

    Args:
        losses: the losses; None is :class:`ltr.losses.SoftmaxLoss` and
            :class:`ltr.losses.MarginRankingLoss`, order and gap.
        weights: one number each, at least 0; None is 1 for all.

    Raises:
        InputError: if there is no loss, not one weight for each, or one below 0.

    Example:
        >>> from ltr.losses import MSELoss, RankNetLoss
        >>> loss = WeightedSum([RankNetLoss(), MSELoss()], [1.0, 0.5])
        >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))  # log 2 + 0.5 * 0.5
        tensor(0.9431)
    """

    def __init__(
        self, losses: list[Loss] | None = None, weights: list[float] | None = None
    ) -> None:
        super().__init__()
        losses = [SoftmaxLoss(), MarginRankingLoss()] if losses is None else losses
        self.weights = [1.0] * len(losses) if weights is None else weights
        if not losses or len(self.weights) != len(losses):
            raise InputError(
                f"losses must not be empty and weights must be one for each, got {len(losses)} and {len(self.weights)}",
                option="weights",
            )
        for weight in self.weights:
            not_negative("weights", weight)
        # A ModuleList forgets the class of its modules.
        self.losses: Iterable[Loss] = nn.ModuleList(losses)  # type: ignore[assignment]
        self.takes_margin = any(loss.takes_margin for loss in losses)
        self.takes_teacher_scores = all(loss.takes_teacher_scores for loss in losses)
        self.distinguishes_grades = any(loss.distinguishes_grades for loss in losses)
        self.largest_label = min(loss.largest_label for loss in losses)
        self.learns_from_one_document = any(loss.learns_from_one_document for loss in losses)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        values = [loss(scores, labels, mask, margin) for loss in self.losses]
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:
        """The largest that one of the losses with a weight above 0 asks for, pair by pair."""
        largest: float | Tensor | None = None
        for loss, weight in zip(self.losses, self.weights, strict=True):
            asked = loss.asked_margin(margin)
            if weight <= 0 or asked is None:
                continue
            largest = asked if largest is None else _larger_margin(largest, asked)
        return largest


def _larger_margin(one: float | Tensor, other: float | Tensor) -> float | Tensor:
    """The larger of two margins pair by pair, in the shape that can tell their pairs apart."""
    if isinstance(one, Tensor):
        like = one
    elif isinstance(other, Tensor):
        like = other
    else:
        return max(one, other)
    tensors = [torch.as_tensor(margin).to(like) for margin in (one, other)]
    # [B, N] is per less relevant document j: it becomes [B, 1, N] beside [B, i, j].
    if max(tensor.ndim for tensor in tensors) == 3:
        tensors = [t.unsqueeze(1) if t.ndim == 2 else t for t in tensors]
    return torch.maximum(*tensors)
