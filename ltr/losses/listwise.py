"""Listwise losses: the list of a query is judged as a whole."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import Reduction, check_lists, reduce_lists


def softmax_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy of each relevant document against the irrelevant ones of its list, mean over the relevant.

    .. math::
        \ell(s, y) = -\frac{1}{|R|} \sum_{i \in R} \log
            \frac{e^{s_i / \tau}}{e^{s_i / \tau} + \sum_{j \notin R} e^{s_j / \tau}},
        \qquad R = \{i : y_i > 0\}

    Other relevant documents stay out of the denominator: they do not compete with each other. With one relevant document this
    is the softmax cross entropy over the list (InfoNCE, where the list is the batch).

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float; above 0 means relevant.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        temperature: in units of score; smaller puts more weight on the hardest documents.
        reduction: ``mean`` is over the rows that have a relevant and an irrelevant document.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row all relevant or all irrelevant gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    References:
        van den Oord, Li & Vinyals (2018), Representation learning with contrastive predictive coding.

    Example:
        >>> import torch
        >>> softmax_loss(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0]]))  # log 3
        tensor(1.0986)
    """
    scores, mask = check_lists(scores, labels, mask)
    scores = scores / temperature
    relevant, irrelevant = (labels > 0) & mask, (labels <= 0) & mask
    has_signal_b = relevant.any(dim=1) & irrelevant.any(dim=1)
    # A row without an irrelevant document would give log 0 = -inf, and NaN in the backward pass: it keeps its zeros instead.
    others = scores.masked_fill(~irrelevant & has_signal_b.unsqueeze(1), -torch.inf)
    cost = -F.logsigmoid(scores - torch.logsumexp(others, dim=1, keepdim=True))
    cost = cost.masked_fill(~(relevant & has_signal_b.unsqueeze(1)), 0.0)
    return reduce_lists(cost.sum(dim=1) / relevant.sum(dim=1).clamp(min=1), has_signal_b, reduction)


class SoftmaxLoss(nn.Module):
    """:func:`softmax_loss` with its temperature held.

    Args:
        temperature: in units of score.
    """

    takes_margin = False

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return softmax_loss(scores, labels, mask, temperature=self.temperature)
