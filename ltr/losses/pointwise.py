"""Pointwise losses: each document is judged by itself. The level of the scores matters, not their
differences only.
"""

from torch import Tensor
from torch.nn import functional as F

from ltr.errors import positive
from ltr.losses.loss import Loss, Reduction
from ltr.pairs.list_tensors import prepare_lists


class BCELoss(Loss):
    r"""Binary cross entropy of each document's probability of being relevant, mean over the list.

    .. math::
        \ell(s, y) = -\frac{1}{N} \sum_i \Bigl[ w\, \bar y_i \log \frac{1}{1 + e^{-s_i}}
            + (1 - \bar y_i) \log \frac{1}{1 + e^{s_i}} \Bigr], \qquad \bar y_i = \min(\max(y_i, 0), 1)

    A grade of 1 or more is relevant, 0 is not, and what lies between is a probability. A row
    without documents gives 0.

    Use: When scores should be read as probabilities, or queries have few judged documents; weaker
    than list losses for order alone.
    Cost: O(N) time and memory.
    References: Nogueira & Cho (2019), Passage re-ranking with BERT.

    Args:
        pos_weight: weight w of the relevant documents, for instance irrelevant ones per relevant
            one.

    Example:
        >>> import torch
        >>> BCELoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # log 2
        tensor(0.6931)
    """

    largest_label = 1.0
    learns_from_one_document = True

    def __init__(self, pos_weight: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.pos_weight = positive("pos_weight", pos_weight)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        cost = F.binary_cross_entropy_with_logits(
            scores,
            labels.clamp(0.0, 1.0),
            pos_weight=scores.new_tensor(self.pos_weight),
            reduction="none",
        )
        value_b, has_documents_b = mean_over_documents(cost, mask)
        return self.reduce(value_b, has_documents_b)


class MSELoss(Loss):
    r"""Squared difference of score and label, mean over the list.

    .. math::
        \ell(s, y) = \frac{1}{N} \sum_i (s_i - y_i)^2

    Labels are grades or a teacher's scores, in units of score. A row without documents gives 0.

    Use: When the scores themselves should be grades, comparable over queries.
    Cost: O(N) time and memory.
    References: Cossock & Zhang (2006), Subset ranking using regression.

    Example:
        >>> import torch
        >>> MSELoss()(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]]))
        tensor(2.)
    """

    takes_teacher_scores = True
    learns_from_one_document = True

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        scores, labels, mask = prepare_lists(scores, labels, mask)
        value_b, has_documents_b = mean_over_documents((scores - labels).square(), mask)
        return self.reduce(value_b, has_documents_b)


def mean_over_documents(cost: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the mean cost of the documents of each row, and whether it has one."""
    n_docs_b = mask.sum(dim=1)
    sum_b = cost.masked_fill(~mask, 0.0).sum(dim=1)
    return sum_b / n_docs_b.clamp(min=1), n_docs_b > 0
