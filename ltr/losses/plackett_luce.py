"""The likelihood of an order, drawn document by document without replacement: each against the less
relevant ones.

Letters of shapes: b row (one query), i a document and j one below it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.pairs.blocks import refuse_second_derivative
from ltr.pairs.list_tensors import prepare_lists
from ltr.pairs.sorted import sum_after

# The largest spread of scores whose exponentials float64 can add up: e^-600 is 1e-261, its smallest
# number with all digits 2e-308.
FAR = 600.0


class LabelOrder(NamedTuple):
    """The documents of each list in ascending order of the labels, the padding last."""

    columns: Tensor  # [B, N] int64, their columns in the list
    n_below: Tensor  # [B, N] int64, how many documents have a lower label; N at the padding
    has_lower: Tensor  # [B, N] bool, whether a document has one with a lower label


def sort_by_label(scores: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, LabelOrder]:
    """The scores after :func:`ltr.pairs.list_tensors.prepare_lists`, and the order of the labels."""
    scores, labels, real = prepare_lists(scores, labels, mask)
    if mask is not None:
        labels = labels.masked_fill(~real, torch.inf)
    labels, columns = labels.sort(dim=1)
    n_below = torch.searchsorted(labels, labels)
    has_lower = n_below > 0
    if mask is not None:
        padding = labels == torch.inf
        n_below = n_below.masked_fill(padding, labels.shape[1])
        has_lower = has_lower & ~padding
    return scores, LabelOrder(columns, n_below, has_lower)


class PlackettLuce(torch.autograd.Function):
    r"""``[B]``: the sum of :math:`w_i \log(1 + e^{L_i - s_i})`, with the log :math:`L_i` of the
    summed exponentials below.

    The gradient of document j is :math:`\sum_i w_i e^{s_j} / (e^{s_i} + e^{L_i})` over the i above
    it, less :math:`w_j / (1 + e^{s_j - L_j})`. These are running sums from both sides, of
    exponentials, or of their logarithms where scores lie too far apart. They are computed in
    float64, since a running sum loses digits; on a device that has none in float32. On a GPU they
    are always of logarithms: the host would wait to know how far scores lie apart.

    The arguments are those of :class:`LabelOrder`, the weights in its order.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, columns: Tensor, n_below: Tensor, weight: Tensor
    ) -> Tensor:
        ordered = scores.gather(1, columns)
        precise = ordered if scores.device.type == "mps" else ordered.double()
        highest = _highest_of_near(precise)
        if highest is None:
            value_b, gradient = _by_logs(precise, n_below, weight)
        else:
            value_b, gradient = _by_exponentials(precise - highest, n_below, weight)
        # Back from the order of the labels.
        gradient = torch.empty_like(scores).scatter_(1, columns, gradient.to(scores.dtype))
        ctx.save_for_backward(gradient)
        return value_b.to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient_b: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (gradient,) = ctx.saved_tensors
        return gradient_b.unsqueeze(1) * gradient, None, None, None


def _highest_of_near(scores: Tensor) -> float | None:
    """The highest score; None where they lie too far apart for exponentials, or on a GPU."""
    if scores.device.type != "cpu":
        return None
    if not scores.numel():
        return 0.0
    bounds = scores.aminmax()
    highest = bounds.max.item()
    return highest if highest - bounds.min.item() < FAR else None


def _by_exponentials(scores: Tensor, n_below: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The value ``[B]`` and its gradient ``[B, N]``, for scores of at most 0: none overflows."""
    power = scores.exp()
    power_below = F.pad(power.cumsum(dim=1), (1, 0)).gather(1, n_below)
    # w_i / (e^{s_i} + e^{L_i}): what each e^{s_j} below i is multiplied with in the gradient.
    pull = weight / (power + power_below)
    # i pulls on the documents at the places before n_below, so place j is pulled by the i with
    # n_below > j: their pulls are collected by n_below, and those after j summed up.
    pull_at = pull.new_zeros(len(pull), pull.shape[1] + 1).scatter_add_(1, n_below, pull)
    pull_from_above = sum_after(pull_at)
    value_b = torch.special.xlog1py(weight, power_below / power).sum(dim=1)
    return value_b, (power * pull_from_above).addcmul_(pull, power_below, value=-1)


def _by_logs(scores: Tensor, n_below: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`_by_exponentials`, for any scores."""
    # x_i = L_i - s_i. Where nothing is below, it is any number: the weight is 0 there.
    x = torch.logcumsumexp(scores, dim=1).gather(1, (n_below - 1).clamp(min=0)) - scores
    # The log of w_i / (e^{s_i} + e^{L_i}).
    log_pull = weight.log() + F.logsigmoid(x) - x - scores
    # Place k holds the sum over the last k documents.
    log_sum_of_last = F.pad(torch.logcumsumexp(log_pull.flip(1), dim=1), (1, 0), value=-torch.inf)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(n_below).contiguous()
    n_above = scores.shape[1] - torch.searchsorted(n_below, places, right=True)
    from_above = (scores + log_sum_of_last.gather(1, n_above)).exp()
    gradient = from_above - weight * torch.sigmoid(x)
    value_b = -(weight * F.logsigmoid(-x)).sum(dim=1)
    return value_b, gradient
