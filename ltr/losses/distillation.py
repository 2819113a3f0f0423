"""Distillation: the labels are the scores of a teacher."""

from torch import Tensor, nn

from ltr.losses._lists import Reduction, check_lists, masked_log_softmax, reduce_lists, two_labels
from ltr.losses._pairs import mean_over_pairs


def margin_mse_loss(scores: Tensor, labels: Tensor, mask: Tensor | None = None, *, reduction: Reduction = "mean") -> Tensor:
    r"""Squared difference between the score gaps of student and teacher, over every pair that the teacher tells apart.

    .. math::
        \ell(s, t) = \frac{1}{|P|} \sum_{(i, j) \in P} \bigl((s_i - s_j) - (t_i - t_j)\bigr)^2,
        \qquad P = \{(i, j) : t_i > t_j\}

    Args:
        scores: ``[B, N]`` float, the student's; one row is one query.
        labels: ``[B, N]`` float, the teacher's scores, in the same units.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        reduction: ``mean`` is over the rows that have at least one pair.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row without a pair gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    Use:
        A teacher's scores in the units of the student's (a cross-encoder teaching a dual encoder).

    Cost:
        O(P·N) time, O(N · block) memory.

    References:
        Hofstätter et al. (2020), Improving efficient neural ranking models with cross-architecture knowledge distillation.

    Example:
        >>> import torch
        >>> margin_mse_loss(torch.tensor([[3.0, 1.0]]), torch.tensor([[5.0, 4.0]]))  # gaps 2 and 1
        tensor(1.)
    """

    def cost(s_i: Tensor, s_j: Tensor, y_i: Tensor, y_j: Tensor, m_ij: Tensor) -> Tensor:
        return ((s_i - y_i) - (s_j - y_j)).square()

    return mean_over_pairs(scores, labels, mask, 0.0, "all", reduction, cost)


def kl_divergence_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Kullback–Leibler divergence of the student's distribution over the list from the teacher's.

    .. math::
        \ell(s, t) = \tau^2 \sum_i p_i \log \frac{p_i}{q_i}, \qquad
        p = \mathrm{softmax}(t / \tau),\; q = \mathrm{softmax}(s / \tau)

    The factor :math:`\tau^2` keeps the size of the gradient when the temperature changes.

    Args:
        scores: ``[B, N]`` float, the student's; one row is one query.
        labels: ``[B, N]`` float, the teacher's scores.
        mask: ``[B, N]`` bool, True for a document, False for padding; None means no padding.
        temperature: in units of score, for both.
        reduction: ``mean`` is over the rows that have at least two documents that the teacher tells apart.

    Returns:
        A scalar, or ``[B]`` for ``reduction="none"``; a row whose documents all have one teacher score gives 0.

    Raises:
        ValueError: if the shapes of scores, labels and mask differ.

    Use:
        A teacher whose scores have another scale, or where only the share of each document in its list counts.

    Cost:
        O(N) time and memory.

    References:
        Hinton, Vinyals & Dean (2015), Distilling the knowledge in a neural network.

    Example:
        >>> import torch
        >>> kl_divergence_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 2.0]]))  # equal gaps
        tensor(0.)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    has_signal_b = two_labels(labels, mask)
    log_p = masked_log_softmax(labels / temperature, mask)
    log_q = masked_log_softmax(scores / temperature, mask)
    cost = (log_p.exp() * (log_p - log_q)).masked_fill(~(mask & has_signal_b.unsqueeze(1)), 0.0)
    return reduce_lists(temperature**2 * cost.sum(dim=1), has_signal_b, reduction)


class MarginMSELoss(nn.Module):
    """:func:`margin_mse_loss` with its reduction held.

    Args:
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return margin_mse_loss(scores, labels, mask, reduction=self.reduction)


class KLDivergenceLoss(nn.Module):
    """:func:`kl_divergence_loss` with its options held.

    Args:
        temperature: in units of score.
        reduction: over rows.
    """

    takes_margin = False

    def __init__(self, temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.temperature, self.reduction = temperature, reduction

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return kl_divergence_loss(scores, labels, mask, temperature=self.temperature, reduction=self.reduction)
