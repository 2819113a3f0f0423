"""Pairwise losses: a more relevant document should outscore a less relevant one.

All but CoSENT are one formula, the mean or the sum of a cost over chosen pairs (i, j) with
``y_i > y_j``: ``pairs/dense.py`` defines it.
"""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import InputError, not_negative, one_of, positive
from ltr.losses.loss import Loss, Reduction
from ltr.losses.plackett_luce import sort_by_label
from ltr.pairs import (
    Pairs,
    PairsName,
    PairsReduction,
    check_pairs,
    hinge,
    reduce_over_pairs,
    squared_hinge,
)
from ltr.pairs.dense import Cost

Targets = Literal["hard", "soft"]
Ties = Literal["ignore", "half"]
# Of a cost that no pair escapes: the mean over the active pairs would be that over all.
MeanOrSum = Literal["mean", "sum"]
Mode = Literal["shift", "scale"]


class MarginRankingLoss(Loss):
    r"""Hinge on the score gap of pairs of a list whose labels differ.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \max\bigl(0,\; m_{ij} - (s_i - s_j)\bigr)^q,
        \qquad P \subseteq \{(i, j) : y_i > y_j\},\; q \in \{1, 2\}

    The pairs of a list: ``all``; ``hardest``: the one with the least :math:`s_i - s_j`;
    ``semi-hard``: for each i the j with the highest :math:`s_j < s_i`, or the lowest :math:`s_j`
    where there is none; ``adjacent``: neighbours in the order of the labels only; ``mean``: each i
    against the mean of :math:`s_j + m_{ij}` over its less relevant documents.

    ``pairs_reduction`` ``sum`` leaves out :math:`1 / |P|`; ``active`` divides by the pairs of the
    list that cost something (:class:`BatchAllTripletLoss` by those of the batch). The sum is that of
    Burges et al. (2005), where a query counts as often as it has pairs: it pays where every pair is
    a judgement of its own, as with clicks or preferences. It does not pay where the pairs are as
    many as the negatives that were drawn: long lists then drown short ones, and the learning rate
    depends on the size of the lists.

    Use: When a fixed or given gap is enough: pairs beyond their margin teach nothing more. The
    margin has the scores' unit.
    Cost: O(N log N) time, O(N) memory per row and grade, by sorting; with many grades or margins
    per pair O(P·N) time in blocks.
    References: Herbrich, Graepel & Obermayer (2000), Large margin rank boundaries for ordinal
    regression.

    Args:
        margin: in units of score; used where the batch brings none.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``; or a class of your own,
            see :class:`ltr.pairs.choices.PairChoice`.
        squared: whether the hinge is squared.
        pairs_reduction: ``mean``, ``sum`` or ``active``: what becomes of the pairs of a list.

    Example:
        >>> MarginRankingLoss(margin=1.0)(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]]))
        tensor(3.)
    """

    takes_margin = True
    takes_teacher_scores = True

    def __init__(
        self,
        margin: float = 1.0,
        pairs: Pairs = "all",
        squared: bool = False,
        pairs_reduction: PairsReduction = "mean",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        check_pairs(pairs, get_args(PairsName))
        one_of(get_args(PairsReduction), pairs_reduction=pairs_reduction)
        self.margin = not_negative("margin", margin)
        self.pairs = pairs
        self.squared = squared
        self.pairs_reduction = pairs_reduction

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        cost = squared_hinge if self.squared else hinge
        m_ij = self.asked_margin(margin)
        value_b, n_pairs_b = reduce_over_pairs(
            scores, labels, mask, cost, m_ij, self.pairs, self.pairs_reduction
        )
        return self.reduce(value_b, n_pairs_b)

    def asked_margin(self, margin: Tensor | None) -> float | Tensor:
        return self.margin if margin is None else margin


class AdaptiveMarginRankingLoss(MarginRankingLoss):
    r"""Hinge whose margin is a factor times the one that the batch brings.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \max\bigl(0,\; k\,m_{ij} - (s_i - s_j)\bigr),
        \qquad P \subseteq \{(i, j) : y_i > y_j\}

    Use: With mined negatives whose distances tell how far apart they should stay; pairs beyond
    their margin teach nothing more.
    Cost: O(N log N) time, O(N) memory per row and grade, by sorting; with many grades or margins
    per pair O(P·N) time in blocks.
    References: Herbrich, Graepel & Obermayer (2000), Large margin rank boundaries for ordinal
    regression.

    Args:
        k: factor on the margins of the batch, for instance distances in the index that mined the
            negatives.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``, as in
            :class:`MarginRankingLoss`.
        margin: used, times ``k``, where the batch brings none.
        pairs_reduction: ``mean``, ``sum`` or ``active``, as in :class:`MarginRankingLoss`.

    Example:
        >>> margin = torch.tensor([[0.0, 3.0]])  # 0.5 * 3 - (1 - 0.5)
        >>> AdaptiveMarginRankingLoss(k=0.5)(torch.tensor([[1.0, 0.5]]), torch.tensor([[1.0, 0.0]]), margin=margin)
        tensor(1.)
    """

    def __init__(
        self,
        k: float = 1.0,
        pairs: Pairs = "all",
        margin: float = 1.0,
        pairs_reduction: PairsReduction = "mean",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(margin, pairs, pairs_reduction=pairs_reduction, reduction=reduction)
        self.k = not_negative("k", k)

    def asked_margin(self, margin: Tensor | None) -> float | Tensor:
        return self.k * super().asked_margin(margin)


class RankNetLoss(Loss):
    r"""Cross entropy of the modelled probability that the more relevant document of a pair comes
    first.

    .. math::
        \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} -\bar P_{ij} \log P_{ij} - (1 - \bar P_{ij}) \log (1 - P_{ij}), \qquad
        P_{ij} = \frac{1}{1 + e^{-\sigma (s_i - s_j)}}, \quad P \subseteq \{(i, j) : y_i > y_j\}

    The targets :math:`\bar P_{ij}` are 1 (``hard``: the cost is :math:`\log(1 + e^{-\sigma(s_i -
    s_j)})`) or :math:`1 / (1 + e^{-\sigma (y_i - y_j)})` (``soft``: labels are grades or a
    teacher's scores in the units of the student's, and the gap of the labels is the gap to reach).

    ``ties`` ``half`` adds the pairs of documents of one label to P, each once and with the target
    1/2 (Burges' :math:`S_{ij} = 0`): they cost :math:`\frac{1}{2} \sigma (s_i - s_j) + \log(1 +
    e^{-\sigma(s_i - s_j)})`, at least log 2, and are pulled together. A list of one label has
    something to learn then; but the data modules for lists leave out such queries.
    ``pairs_reduction`` ``sum`` leaves out :math:`1 / |P|`, as published;
    :class:`MarginRankingLoss` says where that pays.

    Use: The first choice among pairwise losses: no margin to set, and badly ordered pairs pull with
    a bounded force.
    Cost: O(P·N) time, O(N · block) memory; the gradient is one factor per document (Burges'
    factorised form).
    References: Burges et al. (2005), Learning to rank using gradient descent.

    Args:
        sigma: steepness, in 1 / units of score.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``, as in
            :class:`MarginRankingLoss`.
        targets: ``hard`` or ``soft``.
        ties: ``ignore``, or ``half``, which needs all pairs.
        pairs_reduction: ``mean`` or ``sum``. No pair costs nothing, so ``active`` would be the mean.

    Example:
        >>> RankNetLoss()(torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 0.0]]))  # log 2
        tensor(0.6931)
    """

    takes_teacher_scores = True

    def __init__(
        self,
        sigma: float = 1.0,
        pairs: Pairs = "all",
        targets: Targets = "hard",
        ties: Ties = "ignore",
        pairs_reduction: MeanOrSum = "mean",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        check_pairs(pairs, get_args(PairsName))
        one_of(get_args(Targets), targets=targets)
        one_of(get_args(PairsReduction), pairs_reduction=pairs_reduction)
        self.sigma = positive("sigma", sigma)
        self.pairs = pairs
        self.targets = targets
        self.ties = ties
        self.pairs_reduction = pairs_reduction
        self._check_ties()

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        def cost(
            s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor
        ) -> Tensor:
            if self.sigma != 1:  # before the two meet in a matrix of pairs
                s_i = self.sigma * s_i
                s_j = self.sigma * s_j
            return cross_entropy(s_i - s_j, y_i, y_j, self.sigma, self.targets)

        return self._over_pairs(scores, labels, mask, cost)

    def _over_pairs(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        cost: Cost,
        margin: float | Tensor = 0.0,
    ) -> Tensor:
        """The value of the loss from the cost of its pairs, and that of the ties, if they count."""
        self._check_ties()

        def tie_cost(s_i: Tensor, s_j: Tensor) -> Tensor:
            x = self.sigma * (s_i - s_j)
            return 0.5 * x - F.logsigmoid(x)

        value_b, n_pairs_b = reduce_over_pairs(
            scores,
            labels,
            mask,
            cost,
            margin,
            self.pairs,
            self.pairs_reduction,
            tie_cost if self.ties == "half" else None,
        )
        return self.reduce(value_b, n_pairs_b)

    def _check_ties(self) -> None:
        one_of(get_args(Ties), ties=self.ties)
        if self.ties == "half" and self.pairs != "all":
            raise InputError(
                f"ties: half adds all pairs of documents of one label, so it needs pairs: all, got {self.pairs!r}, which chooses among documents of different labels",
                option="ties",
            )


class AdaptiveRankNetLoss(RankNetLoss):
    r"""RankNet that asks more of the pairs with a larger margin.

    .. math::
        P_{ij} = \frac{1}{1 + e^{-x_{ij}}}, \qquad
        x_{ij} = \sigma (s_i - s_j - k\,m_{ij}) \;\text{(shift)} \quad\text{or}\quad
        \sigma (1 + k\,m_{ij}) (s_i - s_j) \;\text{(scale)}

    in :class:`RankNetLoss`: ``shift`` asks for :math:`s_i - s_j > k\,m_{ij}`; ``scale`` makes the
    logistic steeper. Ties have no margin: no document of them should come first.

    Use: With mined negatives whose distances tell how far apart they should stay
    (:class:`ltr.margins.FromDistance`).
    Cost: O(P·N) time, O(N · block) memory.
    References: Burges et al. (2005), Learning to rank using gradient descent, with a margin inside.

    Args:
        sigma: steepness, in 1 / units of score.
        k: factor on the margins; times a margin in units of score (``shift``) or without unit
            (``scale``).
        mode: ``shift`` or ``scale``.
        pairs: ``all``, ``hardest``, ``semi-hard``, ``adjacent`` or ``mean``, as in
            :class:`MarginRankingLoss`.
        targets: ``hard`` or ``soft``, as in :class:`RankNetLoss`.
        margin: used, times ``k``, where the batch brings none.
        ties: ``ignore`` or ``half``, as in :class:`RankNetLoss`.
        pairs_reduction: ``mean`` or ``sum``, as in :class:`RankNetLoss`.

    Example:
        >>> loss = AdaptiveRankNetLoss(margin=2.0)
        >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # the gap meets the margin: log 2
        tensor(0.6931)
    """

    takes_margin = True

    def __init__(
        self,
        sigma: float = 1.0,
        k: float = 1.0,
        mode: Mode = "shift",
        pairs: Pairs = "all",
        targets: Targets = "hard",
        margin: float = 1.0,
        ties: Ties = "ignore",
        pairs_reduction: MeanOrSum = "mean",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(sigma, pairs, targets, ties, pairs_reduction, reduction)
        one_of(get_args(Mode), mode=mode)
        self.k = not_negative("k", k)
        self.mode = mode
        self.margin = not_negative("margin", margin)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        def cost(
            s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: float | Tensor
        ) -> Tensor:
            if self.mode == "shift":
                gap = s_i - (s_j + self.k * m_ij)
            else:
                gap = (1 + self.k * m_ij) * (s_i - s_j)
            return cross_entropy(self.sigma * gap, y_i, y_j, self.sigma, self.targets)

        return self._over_pairs(
            scores, labels, mask, cost, self.margin if margin is None else margin
        )

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:
        if self.mode == "scale":
            return None
        return self.k * (self.margin if margin is None else margin)


class CoSENTLoss(Loss):
    r"""Soft maximum of how far a less relevant document outscores a more relevant one, over all pairs
    of a list.

    .. math::
        \ell(s, y) = \log\Bigl(1 + \sum_{(i, j) : y_i > y_j} e^{(s_j - s_i) / \tau}\Bigr)

    The worst pairs count most, those in order hardly at all. Only the order of the labels counts.

    Use: Pairs of texts whose ratings can be compared over queries, with ``in_batch:
    ltr.in_batch.OneList``: the list is then the whole batch.
    Cost: O(N log N) time, O(N) memory.
    References: Su (2022), CoSENT: a more efficient sentence vector scheme than Sentence-BERT (blog
    post).

    Args:
        temperature: in units of score; 0.05 as published, for cosines that no temperature of the
            ranker has divided.

    Example:
        >>> CoSENTLoss()(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[2.5, 1.0, 0.0]]))  # 3 pairs: log 4
        tensor(1.3863)
    """

    takes_teacher_scores = True

    def __init__(self, temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, order = sort_by_label(scores, labels, mask)
        # The sum of e^{s_j - s_i} over the j below i is one running sum by i, of logarithms.
        ordered = scores.gather(1, order.columns) / self.temperature
        last_below = (order.n_below - 1).clamp(min=0)
        log_sum_below = torch.logcumsumexp(ordered, dim=1).gather(1, last_below)
        exponents = (log_sum_below - ordered).masked_fill(~order.has_lower, -torch.inf)
        value_b = torch.logsumexp(F.pad(exponents, (1, 0)), dim=1)  # the padded 0 is the 1
        return self.reduce(value_b, order.has_lower.any(dim=1))


def cross_entropy(x: Tensor, y_i: Tensor, y_j: Tensor, sigma: float, targets: Targets) -> Tensor:
    """The cross entropy of the modelled probability sigmoid(x), for the target probability 1
    (``hard``) or sigmoid(sigma * (y_i - y_j)) (``soft``).
    """
    if targets == "hard":
        return -F.logsigmoid(x)  # not softplus: this gradient takes no second exponential
    # With P = sigmoid(x), log(1 - P) = log P - x: so the cross entropy is (1 - target) x - log P,
    # and 1 - sigmoid(z) = sigmoid(-z).
    return torch.sigmoid(sigma * (y_j - y_i)) * x - F.logsigmoid(x)


def chain_probability(p_ik: Tensor, p_kj: Tensor) -> Tensor:
    r"""The probability that i comes before j under RankNet's model, from those of i before k and k
    before j.

    .. math:: P_{ij} = \frac{P_{ik} P_{kj}}{1 + 2 P_{ik} P_{kj} - P_{ik} - P_{kj}}

    The logits add up: :math:`\sigma(s_i - s_j) = \sigma(s_i - s_k) + \sigma(s_k - s_j)`. So
    neighbours in the order of the labels determine all pairs (``pairs="adjacent"``).

    References: Burges et al. (2005), Learning to rank using gradient descent, section 4.

    Args:
        p_ik, p_kj: probabilities in (0, 1), of one shape, which the result has too.

    Example:
        >>> chain_probability(torch.tensor(0.75), torch.tensor(0.75))  # odds 3 times 3: 9 to 1
        tensor(0.9000)
    """
    both = p_ik * p_kj
    return both / (1 + 2 * both - p_ik - p_kj)
