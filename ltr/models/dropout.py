"""Dropout whose mask is cheap on a CPU, where torch draws a double per element on one thread: a third of a bf16 training step."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Tensor, p: float) -> Tensor:
    r"""``x`` with a share of its elements zeroed and the others scaled up so that the mean stays, as in training.

    .. math::
        y_i = \frac{256}{256 - c} \, x_i \, [b_i \ge c], \qquad c = \mathrm{round}(256 p)

    On a CPU, the random bytes :math:`b_i` come eight at a time out of 64-bit draws of torch's global generator, so
    ``torch.manual_seed`` before a step repeats it. Elsewhere, and where p would round to 0 or 1, it is torch's own.

    Args:
        x: any shape, floating point.
        p: probability of zero; on a CPU rounded to a multiple of 1/256. The scale is exact for the rounded one.

    References:
        Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> dropout(torch.ones(8), p=0.5)
        tensor([0., 2., 2., 2., 2., 0., 0., 2.])
    """
    cut = round(256 * p)
    if x.device.type != "cpu" or not 0 < cut < 256:
        return F.dropout(x, p)
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)  # None: up to the largest
    # A byte per element waits for the backward pass. Comparing in place and multiplying by bytes is vectorised, by bools not.
    keep = draws.view(torch.uint8)[: x.numel()].ge_(cut).view(x.shape)
    return (x * keep).mul_(256 / (256 - cut))


class FastDropout(nn.Dropout):
    """:func:`dropout` as a module: the identity in eval mode."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input


def use_fast_dropout(module: nn.Module) -> None:
    """Replace every ``nn.Dropout`` inside by a :class:`FastDropout`. The names of parameters stay: dropout has none."""
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if type(child) is nn.Dropout:
            module.set_submodule(name, FastDropout(child.p).train(child.training))
