"""Listwise losses: the list of a query is judged as a whole."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import Reduction, check_lists, masked_log_softmax, reduce_lists, two_labels


def softmax_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    positives: Literal["out", "in"] = "out",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy of each relevant document against its list, mean over the relevant.

    .. math::
        \ell(s, y) = -\frac{1}{|R|} \sum_{i \in R} \log
            \frac{e^{s_i / \tau}}{e^{s_i / \tau} + \sum_{j \in C_i} e^{s_j / \tau}},
        \qquad R = \{i : y_i > 0\}

    With ``positives="out"`` the competitors :math:`C_i` are the irrelevant documents: relevant ones do not compete with each
    other. With ``"in"`` they are all other documents of the list, so relevant ones do. With one relevant document both are
    the softmax cross entropy over the list (InfoNCE, where the list is the batch).

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float; above 0 means relevant.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        temperature: in units of score; smaller puts more weight on the hardest documents.
        positives: whether other relevant documents are in or out of the denominator.
        reduction: ``mean`` is over the rows that have a relevant and an irrelevant document.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row all relevant or all irrelevant gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or for an unknown option.

    References:
        van den Oord, Li & Vinyals (2018), Representation learning with contrastive predictive coding; Khosla et al. (2020),
        Supervised contrastive learning, for several positives.

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
    learns = has_signal_b.unsqueeze(1)
    if positives == "out":
        competitors = scores.masked_fill(~irrelevant & learns, -torch.inf)
        cost = -F.logsigmoid(scores - torch.logsumexp(competitors, dim=1, keepdim=True))
    elif positives == "in":
        cost = torch.logsumexp(scores.masked_fill(~mask & learns, -torch.inf), dim=1, keepdim=True) - scores
    else:
        raise ValueError(f"positives must be 'out' or 'in', got {positives!r}")
    cost = cost.masked_fill(~(relevant & learns), 0.0)
    return reduce_lists(cost.sum(dim=1) / relevant.sum(dim=1).clamp(min=1), has_signal_b, reduction)


def listnet_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    kind: Literal["ce", "kl"] = "ce",
    temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy between the top-one probabilities of the labels and of the scores.

    .. math::
        \ell(s, y) = -\sum_i P_i(y) \log P_i(s), \qquad P_i(x) = \frac{e^{x_i}}{\sum_j e^{x_j}}

    Scores are divided by the temperature, labels are not. ``kl`` subtracts the entropy of :math:`P(y)`: the same gradient,
    and a value that is 0 when the distributions agree.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float, relevance grades.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        kind: ``ce`` (as published) or ``kl``.
        temperature: in units of score.
        reduction: ``mean`` is over the rows that have two different labels.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row whose labels are all equal gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ, or for an unknown option.

    References:
        Cao et al. (2007), Learning to rank: from pairwise approach to listwise approach.

    Example:
        >>> import torch
        >>> listnet_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # log 2, whatever the labels
        tensor(0.6931)
    """
    if kind not in ("ce", "kl"):
        raise ValueError(f"kind must be 'ce' or 'kl', got {kind!r}")
    scores, mask = check_lists(scores, labels, mask)
    has_signal_b = two_labels(labels, mask)
    log_p = masked_log_softmax(labels.to(scores.dtype), mask)
    log_q = masked_log_softmax(scores / temperature, mask)
    target = log_p.exp().masked_fill(~(mask & has_signal_b.unsqueeze(1)), 0.0)
    cost = target * ((log_p - log_q) if kind == "kl" else -log_q)
    return reduce_lists(cost.sum(dim=1), has_signal_b, reduction)


def mean_inequality_loss(scores: Tensor, labels: Tensor, mask: Tensor | None = None, *, reduction: Reduction = "mean") -> Tensor:
    r"""How far the n relevant documents of a list are from sharing all the probability evenly.

    With :math:`p = \mathrm{softmax}(s)` over the list, the inequality of arithmetic and geometric means gives
    :math:`\sum_{i \in R} \log p_i \le -n \log n`, so

    .. math::
        \ell(s, y) = -n \log n - \sum_{i \in R} \log p_i \;\ge\; 0, \qquad R = \{i : y_i > 0\},\; n = |R|

    with equality when the relevant documents share all the mass evenly. n differs from row to row. With one relevant
    document it is the softmax cross entropy.

    Args:
        scores: ``[B, N]`` float, higher is better; one row is one query.
        labels: ``[B, N]`` float; above 0 means relevant.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        reduction: ``mean`` is over the rows that have a relevant and an irrelevant document.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row all relevant or all irrelevant gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[3.0, 4.3, 5.3, 0.5, 0.25, 0.25, 1.0]])
        >>> mean_inequality_loss(scores, torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]))
        tensor(1.2261)
    """
    scores, mask = check_lists(scores, labels, mask)
    relevant, irrelevant = (labels > 0) & mask, (labels <= 0) & mask
    has_signal_b = relevant.any(dim=1) & irrelevant.any(dim=1)
    log_p = masked_log_softmax(scores, mask).masked_fill(~(relevant & has_signal_b.unsqueeze(1)), 0.0)
    n_b = relevant.sum(dim=1).clamp(min=1).to(scores.dtype)
    bound_b = torch.where(has_signal_b, n_b * n_b.log(), 0.0)
    return reduce_lists(-bound_b - log_p.sum(dim=1), has_signal_b, reduction)


class SoftmaxLoss(nn.Module):
    """:func:`softmax_loss` with its options held.

    Args:
        temperature: in units of score.
        positives: whether other relevant documents are ``in`` or ``out`` of the denominator.
    """

    takes_margin = False

    def __init__(self, temperature: float = 1.0, positives: Literal["out", "in"] = "out") -> None:
        super().__init__()
        self.temperature, self.positives = temperature, positives

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return softmax_loss(scores, labels, mask, temperature=self.temperature, positives=self.positives)


class ListNetLoss(nn.Module):
    """:func:`listnet_loss` with its options held.

    Args:
        kind: ``ce`` or ``kl``.
        temperature: in units of score.
    """

    takes_margin = False

    def __init__(self, kind: Literal["ce", "kl"] = "ce", temperature: float = 1.0) -> None:
        super().__init__()
        self.kind, self.temperature = kind, temperature

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return listnet_loss(scores, labels, mask, kind=self.kind, temperature=self.temperature)


class MeanInequalityLoss(nn.Module):
    """:func:`mean_inequality_loss`."""

    takes_margin = False

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return mean_inequality_loss(scores, labels, mask)
