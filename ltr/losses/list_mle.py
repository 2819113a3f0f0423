"""Listwise losses by the likelihood of an order: how probable it is that the list is drawn as its
labels sort it.
"""

import torch
from torch import Tensor

from ltr.losses.loss import Loss
from ltr.losses.plackett_luce import PlackettLuce, sort_by_label


class ListMLELoss(Loss):
    r"""Negative log likelihood of the labels' order, drawn document by document without replacement
    (Plackett–Luce).

    .. math::
        \ell(s, y) = -\sum_i \log \frac{e^{s_i}}{e^{s_i} + \sum_{j : y_j < y_i} e^{s_j}}

    Documents with equal labels do not compete: each meets those below it. For labels that all
    differ this is the likelihood as published; with ties that one takes any order, so the order of
    the columns would count.

    Use: Labels that are a whole order (or many grades) and should be reproduced all the way down.
    Cost: O(N log N) time, O(N) memory.
    References: Xia et al. (2008), Listwise approach to learning to rank: theory and algorithm.

    Example:
        >>> ListMLELoss()(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.0]]))  # log 3 + log 2
        tensor(1.7918)
    """

    takes_teacher_scores = True

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, order = sort_by_label(scores, labels, mask)
        weight = order.has_lower.to(scores.dtype)
        value_b = PlackettLuce.apply(scores, order.columns, order.n_below, weight)
        return self.reduce(value_b, order.has_lower.any(dim=1))


class PositionAwareListMLELoss(Loss):
    r"""ListMLE that weighs the top of the list more.

    .. math::
        \ell(s, y) = -\sum_i \alpha(r_i) \log \frac{e^{s_i}}{e^{s_i} + \sum_{j : y_j < y_i} e^{s_j}}, \qquad
        \alpha(r) = \frac{2^{n - r} - 1}{2^{n - 1} - 1}

    where :math:`r_i` is the position of i in the order of the labels, n the documents of the list.
    The weights are as published (:math:`2^{n-r} - 1`), divided by the largest, which would overflow
    from some hundred documents on. Documents with equal labels share the mean weight of their
    positions.

    Use: As ListMLE, where only the first few positions matter: the weight about halves with every
    position.
    Cost: O(N log N) time, O(N) memory.
    References: Lan et al. (2014), Position-aware ListMLE: a sequential learning process for
    ranking.

    Example:
        >>> PositionAwareListMLELoss()(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.0]]))  # log 3 + log 2 / 3
        tensor(1.3297)
    """

    takes_teacher_scores = True

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, order = sort_by_label(scores, labels, mask)
        n_below = order.n_below
        n_up_to = torch.searchsorted(n_below, n_below, right=True)  # of no higher label
        n_docs = (n_below < n_below.shape[1]).sum(dim=1, keepdim=True)
        n_docs = n_docs.clamp(min=2).to(scores.dtype)
        n_tied = (n_up_to - n_below).to(scores.dtype)
        # alpha(r) = (2^(1 − r) − 2^(1 − n)) / (1 − 2^(1 − n)). Tied documents have the positions r
        # from n − n_up_to + 1 to n − n_below. Over these the sum of 2^(1 − r), a geometric series,
        # is 2^(1 + n_up_to − n) (1 − 2^−n_tied), and their mean is that by n_tied.
        mean_power = torch.exp2(1 + n_up_to - n_docs) * (1 - torch.exp2(-n_tied)) / n_tied
        last_power = torch.exp2(1 - n_docs)
        alpha = ((mean_power - last_power) / (1 - last_power)).clamp(min=0)
        weight = torch.where(order.has_lower, alpha, 0.0)
        value_b = PlackettLuce.apply(scores, order.columns, n_below, weight)
        return self.reduce(value_b, order.has_lower.any(dim=1))
