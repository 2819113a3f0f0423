"""Dropout of an encoder: which of it is used, and a mask that is cheap on a CPU.

Torch draws a double per element there, on one thread: a third of a training step in bfloat16.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

EncoderDropout = Literal["hidden", "own", "none"]


def leave_out_dropout(config: PreTrainedConfig, dropout: EncoderDropout) -> dict[str, float]:
    """Set the unwanted dropout probabilities of a config to 0, in place. The encoder must be built from the config afterwards.

    Returns:
        The probabilities that were set to 0, as they were.
    """
    own = {}
    for name, value in config.to_dict().items():  # every architecture of transformers has its own names
        is_dropout = "drop" in name and isinstance(value, float) and value > 0
        if is_dropout and (dropout == "none" or (dropout == "hidden" and "att" in name)):
            own[name] = value
            setattr(config, name, 0.0)
    return own


def use_dropout(encoder: nn.Module, dropout: EncoderDropout) -> None:
    """What a config cannot say: ``hidden`` uses cheap masks, ``none`` also turns off layers with a fixed probability."""
    if dropout == "hidden":
        use_fast_dropout(encoder)
    if dropout == "none":
        for module in encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0


def use_fast_dropout(module: nn.Module) -> None:
    """Replace every ``nn.Dropout`` inside by a :class:`FastDropout`. Names of parameters stay: dropout has none."""
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if type(child) is nn.Dropout:
            module.set_submodule(name, FastDropout(child.p).train(child.training))


class FastDropout(nn.Dropout):
    """:func:`fast_dropout` as a module: the identity in eval mode."""

    def forward(self, input: Tensor) -> Tensor:
        return fast_dropout(input, self.p) if self.training and self.p else input


def fast_dropout(x: Tensor, p: float) -> Tensor:
    r"""Set elements of ``x`` to 0 with probability ``p``, and scale the others so that the mean stays the same.

    .. math::
        y_i = \frac{256}{256 - c} \, x_i \, [b_i \ge c], \qquad c = \mathrm{round}(256 p)

    On a CPU, eight random bytes :math:`b_i` come from one 64-bit draw of torch's global generator, so ``torch.manual_seed`` makes
    it repeatable. On other devices, and where c would be 0 or 256, it is torch's own dropout.

    Args:
        x: any shape, floating point.
        p: probability of 0; on a CPU rounded to a multiple of 1/256. The scale is exact for the rounded value.

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
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)  # None: up to the largest
    # The mask waits for the backward pass in one byte per element. Comparing in place and multiplying are vectorised for bytes,
    # not for bools.
    keep = draws.view(torch.uint8)[: x.numel()].ge_(cut).view(x.shape)
    return (x * keep).mul_(256 / (256 - cut))
