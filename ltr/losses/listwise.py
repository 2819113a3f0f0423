"""Listwise losses: the scores of a query's list as one distribution over its documents."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses._lists import (
    Reduction,
    check_choice,
    check_lists,
    check_shapes,
    masked_log_softmax,
    reduce_lists,
    relevant_and_not,
    two_labels,
)


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

    Use:
        The first choice for one relevant document and sampled or in-batch negatives; a low temperature looks at the hardest.

    Cost:
        O(N) time and memory.

    References:
        van den Oord, Li & Vinyals (2018), Representation learning with contrastive predictive coding; Khosla et al. (2020),
        Supervised contrastive learning, for several positives.

    Example:
        >>> import torch
        >>> softmax_loss(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0]]))  # log 3
        tensor(1.0986)
    """
    check_choice("positives", positives, ("out", "in"))
    scores, labels, mask = check_lists(scores, labels, mask)
    # Less the highest of the row, which changes nothing: a log-sum-exp of large scores would lose the digits of their gaps.
    scores = (scores - scores.detach().amax(dim=1, keepdim=True)) / temperature
    relevant, irrelevant, has_signal_b = relevant_and_not(labels, mask)
    # A row without an irrelevant document would give log 0 = -inf, and NaN in the backward pass: it keeps its zeros instead.
    learns = has_signal_b.unsqueeze(1)
    if positives == "out":
        competitors = scores.masked_fill(~irrelevant & learns, -torch.inf)
        cost = -F.logsigmoid(scores - torch.logsumexp(competitors, dim=1, keepdim=True))
    else:
        cost = torch.logsumexp(scores.masked_fill(~mask & learns, -torch.inf), dim=1, keepdim=True) - scores
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

    Use:
        Graded lists, also long ones: every document teaches at once. Grades as they are give a flat target; scale them to sharpen
        it.

    Cost:
        O(N) time and memory.

    References:
        Cao et al. (2007), Learning to rank: from pairwise approach to listwise approach.

    Example:
        >>> import torch
        >>> listnet_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # log 2, whatever the labels
        tensor(0.6931)
    """
    check_choice("kind", kind, ("ce", "kl"))
    scores, labels, real = check_shapes(scores, labels, mask)
    has_signal_b = two_labels(labels, mask if mask is None else real)
    if mask is not None:  # finite, since -inf times a probability of 0 would be NaN
        scores, labels = scores.masked_fill(~real, -1e30), labels.masked_fill(~real, -1e30)
    target = labels.softmax(dim=1)
    cost_b = F.cross_entropy(scores if temperature == 1 else scores / temperature, target, reduction="none")
    if kind == "kl":
        cost_b = cost_b - torch.special.entr(target).sum(dim=1)
    return reduce_lists(cost_b.masked_fill(~has_signal_b, 0.0), has_signal_b, reduction)


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

    Use:
        Several relevant documents that should come out equal: it pulls the relevant ones together as well as up.

    Cost:
        O(N) time and memory.

    References:
        This project; the bound is the inequality of arithmetic and geometric means.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[3.0, 4.3, 5.3, 0.5, 0.25, 0.25, 1.0]])
        >>> mean_inequality_loss(scores, torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]))
        tensor(1.2261)
    """
    scores, labels, mask = check_shapes(scores, labels, mask)
    relevant, _, has_signal_b = relevant_and_not(labels, mask)
    log_p = masked_log_softmax(scores, mask).masked_fill(~(relevant & has_signal_b.unsqueeze(1)), 0.0)
    n_b = relevant.sum(dim=1).clamp(min=1).to(scores.dtype)
    bound_b = torch.where(has_signal_b, n_b * n_b.log(), 0.0)
    return reduce_lists(-bound_b - log_p.sum(dim=1), has_signal_b, reduction)


class SoftmaxLoss(nn.Module):
    """:func:`softmax_loss` with its options held.

    Args:
        temperature: in units of score.
        positives: whether other relevant documents are ``in`` or ``out`` of the denominator.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, temperature: float = 1.0, positives: Literal["out", "in"] = "out", reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("positives", positives, ("out", "in"))
        self.temperature, self.positives, self.reduction = temperature, positives, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        options = {"temperature": self.temperature, "positives": self.positives, "reduction": self.reduction}
        return softmax_loss(scores, labels, mask, **options)


class ListNetLoss(nn.Module):
    """:func:`listnet_loss` with its options held.

    Args:
        kind: ``ce`` or ``kl``.
        temperature: in units of score.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, kind: Literal["ce", "kl"] = "ce", temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("kind", kind, ("ce", "kl"))
        self.kind, self.temperature, self.reduction = kind, temperature, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        options = {"kind": self.kind, "temperature": self.temperature, "reduction": self.reduction}
        return listnet_loss(scores, labels, mask, **options)


class MeanInequalityLoss(nn.Module):
    """:func:`mean_inequality_loss` with its reduction held.

    Args:
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return mean_inequality_loss(scores, labels, mask, reduction=self.reduction)
