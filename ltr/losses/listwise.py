"""Listwise losses: the scores of a query's list as one distribution over its documents."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import one_of, positive
from ltr.losses.loss import Loss, Reduction
from ltr.pairs.list_tensors import (
    as_margin,
    masked_log_softmax,
    prepare_lists,
    prepare_types,
    relevant_and_not,
    two_labels,
)

Positives = Literal["out", "in"]
Kind = Literal["ce", "kl"]


class SoftmaxLoss(Loss):
    r"""Cross entropy of each relevant document against its list, mean over the relevant.

    .. math::
        \ell(s, y) = -\frac{1}{|R|} \sum_{i \in R} \log
            \frac{e^{s_i / \tau}}{e^{s_i / \tau} + \sum_{j \in C_i} e^{(s_j + m_{ij}) / \tau}},
        \qquad R = \{i : y_i > 0\}

    With ``positives="out"`` the competitors :math:`C_i` are the irrelevant documents: relevant ones
    do not compete with each other. With ``"in"`` they are all other documents of the list, so
    relevant ones do. With one relevant document both are the softmax cross entropy over the list
    (InfoNCE, where the list is the batch). A margin raises the scores of the irrelevant documents
    by :math:`m_{ij}`; without one it is 0.

    Differences alone count, so a score says nothing of how well anything fits the query. With an
    ``anchor`` it does: a document with score 0 joins each list, competes with the relevant ones,
    and is itself relevant by the weight :math:`y_0`. This adds

    .. math::
        y_0 \log \Bigl( 1 + \sum_{j \in C_0} e^{s_j / \tau} \Bigr),

    where :math:`C_0` are the irrelevant documents (with ``"in"`` all of them). Relevant documents
    then go above 0, and others below.

    Use: The first choice for one relevant document and sampled or in-batch negatives; a low
    temperature looks at the hardest.
    Cost: O(N) time and memory.
    References: van den Oord, Li & Vinyals (2018), Representation learning with contrastive
    predictive coding; Khosla et al. (2020), Supervised contrastive learning, for several positives;
    Yang et al. (2019), Improving multilingual sentence embedding using bi-directional dual encoder
    with additive margin softmax, for the margin; Yan et al. (2022), Scale calibration of deep
    ranking models, for the anchor.

    Args:
        temperature: in units of score; smaller puts more weight on the hardest documents.
        positives: whether other relevant documents are ``in`` or ``out`` of the denominator.
        anchor: the weight :math:`y_0` of a document with score 0; None is without one.

    Example:
        >>> SoftmaxLoss()(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0]]))  # log 3
        tensor(1.0986)
    """

    distinguishes_grades = False
    takes_margin = True

    def __init__(
        self,
        temperature: float = 1.0,
        positives: Positives = "out",
        reduction: Reduction = "mean",
        anchor: float | None = None,
    ) -> None:
        super().__init__(reduction)
        one_of(get_args(Positives), positives=positives)
        self.temperature = positive("temperature", temperature)
        self.positives = positives
        self.anchor = None if anchor is None else positive("anchor", anchor)
        # Against the anchor each document teaches, also one that is alone.
        self.learns_from_one_document = anchor is not None

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        # Less the highest of the row: a log-sum-exp of large scores would lose the digits of their
        # gaps. Padding (score 0, perhaps far above all others) takes no part in the maximum, and is
        # 0 again afterwards.
        highest = scores.detach().masked_fill(~mask, -1e30).amax(dim=1, keepdim=True)
        if self.anchor is not None:
            highest = highest.clamp(min=0.0)
        scores = ((scores - highest) / self.temperature).masked_fill(~mask, 0.0)
        relevant, irrelevant, has_signal_b = relevant_and_not(labels, mask)
        if self.anchor is not None:
            has_signal_b = mask.any(dim=1)
        learns = has_signal_b.unsqueeze(1)
        # [B, N, N], or [B, 1, N] where it is the same for every i: s_j + m_ij.
        competitor_ij = scores.unsqueeze(1)
        if margin is not None:
            # Anything may stand where there is no pair, NaN included.
            m_ij = as_margin(margin, scores) / self.temperature
            if m_ij.ndim == 2:
                m_ij = m_ij.unsqueeze(1)
                raised_ij = (irrelevant & learns).unsqueeze(1)
            else:
                raised_ij = irrelevant.unsqueeze(1) & relevant.unsqueeze(2)
            competitor_ij = competitor_ij + torch.where(raised_ij, m_ij, 0.0)
        # What does not compete is left out of the sum; but a row that teaches nothing leaves nothing
        # out, since the log of an empty sum would be NaN in the backward pass.
        competes = irrelevant if self.positives == "out" else mask
        left_out = ~competes & learns
        competitor_ij = competitor_ij.masked_fill(left_out.unsqueeze(1), -torch.inf)
        anchor_cost_b: Tensor | None = None
        if self.anchor is not None:
            anchor_score = -highest / self.temperature
            others = scores.masked_fill(left_out, -torch.inf)
            log_sum_b = torch.logsumexp(torch.cat([others, anchor_score], dim=1), dim=1)
            cost_b = log_sum_b - anchor_score.squeeze(1)
            anchor_cost_b = self.anchor * cost_b.masked_fill(~has_signal_b, 0.0)
            anchor_ij = anchor_score.unsqueeze(1).expand(-1, competitor_ij.shape[1], 1)
            competitor_ij = torch.cat([competitor_ij, anchor_ij], dim=2)
        log_sum_i = torch.logsumexp(competitor_ij, dim=2)
        if self.positives == "out":
            cost = -F.logsigmoid(scores - log_sum_i)
        else:  # i itself is one of its competitors
            cost = log_sum_i - scores
        cost = cost.masked_fill(~(relevant & learns), 0.0)
        value_b = cost.sum(dim=1) / relevant.sum(dim=1).clamp(min=1)
        if anchor_cost_b is not None:
            value_b = value_b + anchor_cost_b
        return self.reduce(value_b, has_signal_b)

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:
        return margin


class ListNetLoss(Loss):
    r"""Cross entropy between the top-one probabilities of the labels and of the scores.

    .. math::
        \ell(s, y) = -\sum_i P_i(y) \log P_i(s), \qquad P_i(x) = \frac{e^{x_i}}{\sum_j e^{x_j}}

    Scores are divided by the temperature, labels are not. ``kl`` subtracts the entropy of
    :math:`P(y)`: the same gradient, and a value that is 0 when the distributions agree.

    Use: Graded lists, also long ones: every document teaches at once. Grades as they are give a
    flat target; scale them to sharpen it.
    Cost: O(N) time and memory.
    References: Cao et al. (2007), Learning to rank: from pairwise approach to listwise approach.

    Args:
        kind: ``ce`` (as published) or ``kl``.
        temperature: in units of score.

    Example:
        >>> ListNetLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # log 2, whatever the labels
        tensor(0.6931)
    """

    takes_teacher_scores = True

    def __init__(
        self, kind: Kind = "ce", temperature: float = 1.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        one_of(get_args(Kind), kind=kind)
        self.kind = kind
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_types(scores, labels, mask)
        teaches_b = two_labels(labels, mask)
        if mask is not None:  # finite, since -inf times a probability of 0 would be NaN
            scores = scores.masked_fill(~mask, -1e30)
            labels = labels.masked_fill(~mask, -1e30)
        target = labels.softmax(dim=1)
        logits = scores if self.temperature == 1 else scores / self.temperature
        cost_b = F.cross_entropy(logits, target, reduction="none")
        if self.kind == "kl":
            cost_b = cost_b - torch.special.entr(target).sum(dim=1)
        has_signal_b = teaches_b | cost_b.isnan()  # a NaN that comes in goes out
        return self.reduce(cost_b.masked_fill(~has_signal_b, 0.0), has_signal_b)


class MeanInequalityLoss(Loss):
    r"""How far the n relevant documents of a list are from sharing all the probability evenly.

    With :math:`p = \mathrm{softmax}(s)` over the list, the inequality of arithmetic and geometric
    means gives :math:`\sum_{i \in R} \log p_i \le -n \log n`, so

    .. math::
        \ell(s, y) = -n \log n - \sum_{i \in R} \log p_i \;\ge\; 0, \qquad R = \{i : y_i > 0\},\; n = |R|

    with equality when the relevant documents share all the mass evenly. n differs from row to row.
    With one relevant document it is the softmax cross entropy.

    Use: Several relevant documents that should come out equal: it pulls the relevant ones together
    as well as up.
    Cost: O(N) time and memory.
    References: infgrad (2020), A listwise loss based on the inequality of means (blog post).

    Example:
        >>> scores = torch.tensor([[3.0, 4.3, 5.3, 0.5, 0.25, 0.25, 1.0]])
        >>> MeanInequalityLoss()(scores, torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]))
        tensor(1.2261)
    """

    distinguishes_grades = False

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        relevant, _, has_signal_b = relevant_and_not(labels, mask)
        counted = relevant & has_signal_b.unsqueeze(1)
        log_p = masked_log_softmax(scores, mask).masked_fill(~counted, 0.0)
        n_b = relevant.sum(dim=1).clamp(min=1).to(scores.dtype)
        bound_b = torch.where(has_signal_b, n_b * n_b.log(), 0.0)
        value_b = -bound_b - log_p.sum(dim=1)
        return self.reduce(value_b, has_signal_b)
