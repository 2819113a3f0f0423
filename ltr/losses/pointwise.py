"""Pointwise losses: each document is judged by itself. The level of the scores matters, not their differences only."""

from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import Reduction, check_lists, reduce_lists


def bce_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    pos_weight: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Binary cross entropy of each document's probability of being relevant, mean over the list.

    .. math::
        \ell(s, y) = -\frac{1}{N} \sum_i \Bigl[ w\, \bar y_i \log \frac{1}{1 + e^{-s_i}}
            + (1 - \bar y_i) \log \frac{1}{1 + e^{s_i}} \Bigr], \qquad \bar y_i = \min(\max(y_i, 0), 1)

    A grade of 1 or more is relevant, 0 is not, and what lies between is a probability.

    Args:
        scores: ``[B, N]`` float logits; one row is one query.
        labels: ``[B, N]`` float.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        pos_weight: weight w of the relevant documents, for instance irrelevant ones per relevant one.
        reduction: ``mean`` is over the rows that have a document.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without documents gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    Use:
        When scores should be read as probabilities, or queries have few judged documents; weaker than list losses for order
        alone.

    Cost:
        O(N) time and memory.

    References:
        Nogueira & Cho (2019), Passage re-ranking with BERT.

    Example:
        >>> import torch
        >>> bce_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # log 2
        tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    cost = F.binary_cross_entropy_with_logits(
        scores, labels.clamp(0.0, 1.0), pos_weight=scores.new_tensor(pos_weight), reduction="none"
    )
    return _mean_over_documents(cost, mask, reduction)


def mse_loss(scores: Tensor, labels: Tensor, mask: Tensor | None = None, *, reduction: Reduction = "mean") -> Tensor:
    r"""Squared difference of score and label, mean over the list.

    .. math::
        \ell(s, y) = \frac{1}{N} \sum_i (s_i - y_i)^2

    Args:
        scores: ``[B, N]`` float; one row is one query.
        labels: ``[B, N]`` float, grades or a teacher's scores, in units of score.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        reduction: ``mean`` is over the rows that have a document.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without documents gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    Use:
        When the scores themselves should be grades, comparable over queries.

    Cost:
        O(N) time and memory.

    References:
        Cossock & Zhang (2006), Subset ranking using regression.

    Example:
        >>> import torch
        >>> mse_loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]]))
        tensor(2.)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    return _mean_over_documents((scores - labels).square(), mask, reduction)


def _mean_over_documents(cost: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    n_docs_b = mask.sum(dim=1)
    return reduce_lists(cost.masked_fill(~mask, 0.0).sum(dim=1) / n_docs_b.clamp(min=1), n_docs_b > 0, reduction)


class BCELoss(nn.Module):
    """:func:`bce_loss` with its options held.

    Args:
        pos_weight: weight of the relevant documents.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, pos_weight: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.pos_weight, self.reduction = pos_weight, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return bce_loss(scores, labels, mask, pos_weight=self.pos_weight, reduction=self.reduction)


class MSELoss(nn.Module):
    """:func:`mse_loss` with its reduction held.

    Args:
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return mse_loss(scores, labels, mask, reduction=self.reduction)
