"""The likelihood of an order, drawn document by document without replacement: each against the less
relevant ones.

Letters of shapes: b row (one query), i a document and j one below it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.pairs.blocks import refuse_second_derivative
from ltr.pairs.lists import check_lists

# Units of score over which float64 keeps the digits of a sum of exponentials: e^-600 is far from
# its smallest number.
FAR = 600.0


def sort_by_label(
    scores: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The scores, and ``[B, N]`` each in ascending order of the labels, the padding last: the
    columns, how many documents have a lower label (N at the padding), and whether there is one.
    """
    scores, labels, real = check_lists(scores, labels, mask)
    if mask is not None:
        labels = labels.masked_fill(~real, torch.inf)
    labels, order = labels.sort(dim=1)
    n_below = torch.searchsorted(labels, labels)
    if mask is None:
        return scores, order, n_below, n_below > 0
    padding = labels == torch.inf
    return scores, order, n_below.masked_fill(padding, labels.shape[1]), (n_below > 0) & ~padding


class PlackettLuce(torch.autograd.Function):
    r"""``[B]``: the sum of :math:`w_i \log(1 + e^{L_i - s_i})`, with the log :math:`L_i` of the
    summed exponentials below.

    The gradient of document j is :math:`\sum_i w_i e^{s_j} / (e^{s_i} + e^{L_i})` over the i above
    it, less :math:`w_j / (1 + e^{s_j - L_j})`: running sums from both sides, of exponentials, or of
    their logarithms where scores lie too far apart. In float64, since a running sum adds up many
    digits; on a device without, of logarithms in float32.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, order: Tensor, n_below: Tensor, weight: Tensor) -> Tensor:
        ordered = scores.gather(1, order)
        precise = ordered if scores.device.type == "mps" else ordered.double()
        low, high = (bound.item() for bound in precise.aminmax()) if precise.numel() else (0.0, 0.0)
        near = precise.dtype == torch.float64 and high - low < FAR
        value_b, gradient = (
            _by_exponentials(precise - high, n_below, weight)
            if near
            else _by_logs(precise, n_below, weight)
        )
        ctx.save_for_backward(
            torch.empty_like(scores).scatter_(1, order, gradient.to(scores.dtype))
        )
        return value_b.to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient_b: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (gradient,) = ctx.saved_tensors
        return gradient_b.unsqueeze(1) * gradient, None, None, None


def _by_exponentials(scores: Tensor, n_below: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """For scores of at most 0: no exponential overflows."""
    power = scores.exp()
    below = F.pad(power.cumsum(dim=1), (1, 0)).gather(1, n_below)
    pull = weight / (power + below)
    # i pulls on the documents before place n_below: on j, those with n_below > j.
    reach = pull.new_zeros(len(pull), pull.shape[1] + 1).scatter_add_(1, n_below, pull)
    pulled = reach.flip(1).cumsum(dim=1)[:, :-1].flip(1)
    value_b = torch.special.xlog1py(weight, below / power).sum(dim=1)
    return value_b, (power * pulled).addcmul_(pull, below, value=-1)


def _by_logs(scores: Tensor, n_below: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """For any scores."""
    x = torch.logcumsumexp(scores, dim=1).gather(1, (n_below - 1).clamp(min=0)) - scores
    log_pull = weight.log() + F.logsigmoid(x) - x - scores
    # From the last document on; place k holds the sum over the last k documents.
    last = F.pad(torch.logcumsumexp(log_pull.flip(1), dim=1), (1, 0), value=-torch.inf)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(n_below).contiguous()
    n_above = scores.shape[1] - torch.searchsorted(n_below, places, right=True)
    gradient = (scores + last.gather(1, n_above)).exp() - weight * torch.sigmoid(x)
    return -(weight * F.logsigmoid(-x)).sum(dim=1), gradient
