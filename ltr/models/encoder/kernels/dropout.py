"""Dropout with a mask that is cheap on a CPU.

Torch draws a double per element there, on one thread: a third of a training step in bfloat16.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def use_fast_dropout(module: nn.Module) -> None:
    """Turn every ``nn.Dropout`` inside into a :class:`FastDropout`."""
    for child in module.modules():
        if type(child) is nn.Dropout:
            child.__class__ = FastDropout


def use_torch_dropout(module: nn.Module) -> None:
    """Undo :func:`use_fast_dropout`."""
    for child in module.modules():
        if type(child) is FastDropout:
            child.__class__ = nn.Dropout  # type: ignore[assignment]


class FastDropout(nn.Dropout):
    """:func:`fast_dropout` as a module: the identity in eval mode."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        return fast_dropout(input, self.p)


def fast_dropout(x: Tensor, p: float) -> Tensor:
    r"""Set elements of ``x`` to 0 with probability ``p``, and scale the others so that the mean
    stays the same.

    .. math::
        y_i = \frac{256}{256 - c} \, x_i \, [b_i \ge c], \qquad c = \mathrm{round}(256 p)

    On a CPU, eight random bytes :math:`b_i` come from one 64-bit draw of torch's global generator,
    so ``torch.manual_seed`` makes it repeatable. On other devices, and where c would be 0 or 256,
    it is torch's own dropout.

    Args:
        x: any shape, floating point.
        p: probability of 0; on a CPU rounded to a multiple of 1/256. The scale is exact for the
            rounded value.

    References:
        Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> fast_dropout(torch.ones(8), p=0.5)
        tensor([0., 2., 2., 2., 2., 0., 0., 2.])
    """
    cut = round(256 * p)
    if x.device.type != "cpu" or not 0 < cut < 256:
        return F.dropout(x, p)
    n_draws = (x.numel() + 7) // 8
    # All 64 bits are random: from the smallest integer up to the largest, which is meant by None.
    draws = torch.empty(n_draws, dtype=torch.int64).random_(-(2**63), None)
    # The mask waits for the backward pass in one byte per element. Comparing in place and
    # multiplying are vectorised for bytes, not for bools.
    random_bytes = draws.view(torch.uint8)[: x.numel()]
    keep = random_bytes.ge_(cut).view(x.shape)
    return (x * keep).mul_(256 / (256 - cut))
