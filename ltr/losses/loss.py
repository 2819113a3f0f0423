"""The base of every loss: what a loss takes, what it gives, and how its rows become one number."""

import math
from typing import Literal, get_args

from torch import Tensor, nn

from ltr.errors import one_of

Reduction = Literal["mean", "sum", "none"]


class Loss(nn.Module):
    r"""A ranking loss is a function of one labelled score matrix: :math:`\ell(s, y)` for each list,
    then a mean over the lists.

    A row is a query (or an anchor), a column a document of its list. What stands at padding changes
    neither value nor gradient. A row with nothing to learn gives 0 and a zero gradient, and does
    not dilute the mean. Values are float32 or better. A NaN among the scores or labels of documents
    gives NaN, also in a row with nothing to learn.

    A loss of your own is a subclass that constructs without arguments. In a file of ``ltr/losses``
    it needs no other line: the package, the documentation and the tests that hold for every loss
    find it.

    Args:
        reduction: ``mean`` over the rows with something to learn, ``sum`` over all rows, or
            ``none``: one value per row.

    Attributes:
        takes_margin: whether it uses the margin of a batch.
        takes_teacher_scores: whether labels may be the scores of a teacher, of any sign; else they
            are grades, and 0 is irrelevant.
        distinguishes_grades: whether two different grades above 0 make a difference; else a document
            is relevant or not.
        largest_label: the label from which on all are the same to it.
        learns_from_one_document: whether each document teaches it by itself, also one that is alone
            in its list.

    Example:
        >>> import torch
        >>> class Gap(Loss):  # the best relevant document should outscore the best other one
        ...     def forward(self, scores, labels, mask=None, margin=None):
        ...         mask = torch.ones_like(labels).bool() if mask is None else mask
        ...         relevant = scores.masked_fill(~mask | (labels <= 0), -1e4).amax(dim=1)
        ...         other = scores.masked_fill(~mask | (labels > 0), -1e4).amax(dim=1)
        ...         return torch.relu(1 + other - relevant).mean()
        >>> Gap()(torch.tensor([[2.0, 1.5]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.5000)
    """

    takes_margin: bool = False
    takes_teacher_scores: bool = False
    distinguishes_grades: bool = True
    largest_label: float = math.inf
    learns_from_one_document: bool = False

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        one_of(get_args(Reduction), reduction=reduction)
        self.reduction = reduction

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        """Value of the loss: a scalar, or ``[B]`` for ``reduction="none"``.

        Args:
            scores: ``[B, N]`` float, higher is better.
            labels: ``[B, N]``, relevance grades, or the scores of a teacher; they get no gradient.
            mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
            margin: in units of score, used instead of the loss's own: ``[B, 1]`` (per row),
                ``[B, N]`` (per less relevant document) or ``[B, N, N]`` (per pair, more relevant
                document first). Ignored if ``takes_margin`` is False.

        Raises:
            TypeError: for arrays or lists instead of tensors, or a mask that is not bool.
            ValueError: if the shapes of scores, labels and mask differ, or the margin has none of
                the three shapes.
        """
        raise NotImplementedError

    @property
    def current(self) -> "Loss":
        """The loss itself; of losses that follow one another, that of the stage."""
        return self

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:
        """The gap ``s_i - s_j``, in units of score, that the loss asks of a pair; None if it asks
        for none.

        Args:
            margin: that of the batch, as in :meth:`forward`; None where it brings none.
        """
        return None

    def reduce(self, value_b: Tensor, has_signal_b: Tensor) -> Tensor:
        """One value per row, reduced as the option says.

        Args:
            value_b: ``[B]``.
            has_signal_b: bool, or a count: False or 0 for the rows with nothing to learn.
        """
        # Again, since a loss that exists may be given another reduction.
        one_of(get_args(Reduction), reduction=self.reduction)
        if self.reduction == "none":
            return value_b
        if self.reduction == "sum":
            return value_b.sum()
        return value_b.sum() / has_signal_b.count_nonzero().clamp(min=1)
