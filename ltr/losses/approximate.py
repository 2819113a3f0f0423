"""Smooth stand-ins for ranking metrics: the loss is 1 minus the metric, with ranks or sorting made
differentiable.

Letters of shapes: b row (one query), i and j documents, r rank.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ltr.errors import positive
from ltr.gains import exp_gain
from ltr.losses.loss import Loss, Reduction
from ltr.losses.ranked import best_dcg, discount
from ltr.pairs.blocks import sum_in_blocks
from ltr.pairs.list_tensors import prepare_lists, relevant_and_not, two_labels
from ltr.pairs.uppers import pack

# Rounds of Sinkhorn's row and column scaling; NeuralSort's rows sum to 1 already, and its columns
# nearly do.
SINKHORN_ROUNDS = 10


class ApproxNDCGLoss(Loss):
    r"""1 − nDCG with each rank replaced by a smooth count of the documents above.

    .. math::
        \ell(s, y) = 1 - \frac{1}{\max \mathrm{DCG}} \sum_i \frac{2^{y_i} - 1}{\log_2(1 + \pi_i)}, \qquad
        \pi_i = 1 + \sum_{j \ne i} \frac{1}{1 + e^{(s_i - s_j) / \tau}}

    Use: To train for nDCG itself with many lists; set the temperature to the size of a typical gap
    of scores.
    Cost: O(P·N) time for P documents with a grade above 0, O(N · block) memory.
    References: Qin, Liu & Li (2010), A general approximation framework for direct optimization of
    information retrieval measures; Bruch et al. (2019), Revisiting approximate metric optimization
    in the age of deep neural networks.

    Args:
        temperature: in units of score; towards 0 the ranks become exact, and their gradient
            vanishes.

    Example:
        >>> ApproxNDCGLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # both at rank 1.5: 1 - 1 / log2(2.5)
        tensor(0.2435)
    """

    def __init__(self, temperature: float = 0.1, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        gains = exp_gain(labels)
        has_signal_b = two_labels(labels.clamp(min=0), mask)
        # The documents with a gain. A NaN is among them, to let it out.
        columns, real = pack(~(gains <= 0) & mask)
        gain_p = gains.gather(1, columns).masked_fill(~real, 0.0)

        def block(
            span: slice, cut: Sequence[Tensor], whole: Sequence[Tensor]
        ) -> tuple[Tensor, Tensor]:
            (s_p,) = cut
            (s_n,) = whole
            gap_ij = s_n.unsqueeze(1) - s_p.unsqueeze(2)
            above_ij = torch.sigmoid(gap_ij / self.temperature)
            # A document counts itself as one half.
            rank_i = 0.5 + above_ij.masked_fill(~mask.unsqueeze(1), 0.0).sum(dim=2)
            dcg_b = (gain_p[:, span] / torch.log2(1 + rank_i)).sum(dim=1)
            return dcg_b, torch.zeros_like(dcg_b)

        dcg_b, _ = sum_in_blocks(block, [scores.gather(1, columns)], [scores])
        value_b = 1 - dcg_b / best_dcg(gains)
        return self.reduce(value_b.masked_fill(~has_signal_b, 0.0), has_signal_b)


class ApproxMRRLoss(Loss):
    r"""1 − reciprocal rank of the first relevant document, its rank a smooth count of the
    irrelevant documents above it.

    .. math::
        \ell(s, y) = 1 - \Bigl(1 + \sum_{j \notin R} \frac{1}{1 + e^{(\max_{i \in R} s_i - s_j) / \tau}}\Bigr)^{-1},
        \qquad R = \{i : y_i > 0\}

    Only the best relevant document counts, as in the metric; another one does not push it down.

    Use: Questions with one answer, judged by MRR.
    Cost: O(N) time and memory.
    References: After Qin, Liu & Li (2010), A general approximation framework for direct
    optimization of information retrieval measures.

    Args:
        temperature: in units of score; towards 0 the value becomes the metric's.

    Example:
        >>> ApproxMRRLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # rank 1.5
        tensor(0.3333)
    """

    distinguishes_grades = False

    def __init__(self, temperature: float = 0.1, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        relevant, irrelevant, has_signal_b = relevant_and_not(labels, mask)
        # A row with nothing to learn keeps its scores: the maximum of nothing would be -inf.
        left_out = ~relevant & has_signal_b.unsqueeze(1)
        best = scores.masked_fill(left_out, -torch.inf).amax(dim=1, keepdim=True)
        above_j = torch.sigmoid((scores - best) / self.temperature)
        rank_b = 1 + above_j.masked_fill(~irrelevant, 0.0).sum(dim=1)
        value_b = 1 - 1 / rank_b
        return self.reduce(value_b.masked_fill(~has_signal_b, 0.0), has_signal_b)


class NeuralNDCGLoss(Loss):
    r"""1 − nDCG of the gains after a differentiable sort.

    .. math::
        \ell(s, y) = 1 - \frac{1}{\max \mathrm{DCG}} \sum_r \frac{\sum_j P_{rj} (2^{y_j} - 1)}{\log_2(1 + r)}, \qquad
        P_{r \cdot} = \mathrm{softmax}\Bigl(\frac{(n + 1 - 2r)\, s - \sum_j |s - s_j|}{\tau}\Bigr)

    P is NeuralSort's relaxed permutation, scaled by Sinkhorn's algorithm so that rows and columns
    sum to 1: no document's gain counts twice.

    Use: Lists of up to some hundred documents judged by nDCG, where ApproxNDCG's counts are too
    coarse.
    Cost: O(N²) time and memory, some twenty passes.
    References: Pobrotyn & Białobrzeski (2021), NeuralNDCG: direct optimisation of a ranking metric
    via differentiable relaxation of sorting; Grover et al. (2019), Stochastic optimization of
    sorting networks via continuous relaxations.

    Args:
        temperature: in units of score; towards 0 the sort becomes exact.

    Example:
        >>> NeuralNDCGLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # P = 1/2: 1 - (1 + 1 / log2(3)) / 2
        tensor(0.1845)
    """

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
        scores, labels, mask = prepare_lists(scores, labels, mask)
        gains = exp_gain(labels)
        has_signal_b = two_labels(labels.clamp(min=0), mask)
        n_docs = scores.shape[1]
        ranks_r = torch.arange(1, n_docs + 1, device=scores.device, dtype=scores.dtype)
        n_real = mask.sum(dim=1, keepdim=True)
        # P has a row r for each of the n ranks, and a column j for each of the n documents.
        real_rj = (ranks_r <= n_real).unsqueeze(2) & mask.unsqueeze(1)
        gap_ij = (scores.unsqueeze(2) - scores.unsqueeze(1)).abs()
        distance_j = gap_ij.masked_fill(~mask.unsqueeze(1), 0.0).sum(dim=2)
        slope_r = n_real + 1 - 2 * ranks_r
        logit_rj = slope_r.unsqueeze(2) * scores.unsqueeze(1) - distance_j.unsqueeze(1)
        log_p = (logit_rj / self.temperature).masked_fill(~real_rj, 0.0)
        for _ in range(SINKHORN_ROUNDS):
            for dim in (2, 1):
                # Padding is left out of every sum. But a row or column that is all padding keeps
                # its zeros: the log of an empty sum would be -inf.
                empty = ~real_rj.any(dim=dim, keepdim=True)
                left_out = ~real_rj & ~empty
                log_sum = torch.logsumexp(
                    log_p.masked_fill(left_out, -torch.inf), dim=dim, keepdim=True
                )
                log_p = (log_p - log_sum).masked_fill(~real_rj, 0.0)
        p_rj = log_p.exp().masked_fill(~real_rj, 0.0)
        gain_r = (p_rj * gains.unsqueeze(1)).sum(dim=2)
        value_b = 1 - (gain_r * discount(gains)).sum(dim=1) / best_dcg(gains)
        return self.reduce(value_b.masked_fill(~has_signal_b, 0.0), has_signal_b)
