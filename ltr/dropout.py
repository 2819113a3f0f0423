"""Dropout whose masks follow from keys: of the step, the text, the token and the layer.

A text gets the masks of its key wherever it is read: in whichever process, batch or chunk, packed
or padded, on a CPU or a GPU, in the forward pass and where a backward pass computes it again. So
what is learnt doesn't depend on how many processes share a batch.

Letters of shapes: S texts, H elements of a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ltr import draws
from ltr.draws import GOLDEN, draw_site, in_one_kernel, keys_at_site, keys_inside, mixed

BYTES = 8  # of an int64, each for an element of a mask


def new_keys(count: int, device: torch.device) -> Tensor:
    """``[S]`` int64, keys for texts of which nobody says any: drawn by torch's global generator."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), device="cpu").to(device)


def keyed_dropout(x: Tensor, p: float, keys: Tensor, site: Tensor | None = None) -> Tensor:
    r"""Set elements of ``x`` to 0 with probability ``p``, and scale the others so that the mean
    stays the same.

    .. math::
        y_{rh} = \frac{256}{256 - c} \, x_{rh} \, [b_{rh} \ge c],
        \qquad c = \min(\max(\mathrm{round}(256 p), 1), 255)

    The byte :math:`b_{rh}` is a function of the row's key and of h.

    Args:
        x: ``[…, H]`` floating point.
        p: probability of 0, above 0 and below 1. It is rounded to a multiple of 1/256, and the scale
            is exact for the rounded value.
        keys: ``[…]`` int64, one for each row.
        site: of the layer that draws, where :func:`ltr.draws.keys_at_site` has not been applied to
            the keys yet.

    References:
        Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting.

    Example:
        >>> keyed_dropout(torch.ones(2, 8), 0.5, torch.tensor([3, 4]))
        tensor([[2., 0., 0., 2., 2., 0., 0., 0.],
                [0., 0., 0., 0., 0., 0., 2., 2.]])
    """
    cut = min(max(round(256 * p), 1), 255)
    if draws.takes_kernel(x):
        return _DrawnAgain.apply(x, keys, site, cut, False)
    # The mask waits for the backward pass in one byte per element.
    return (x * _mask(x, keys, site, cut)).mul_(256 / (256 - cut))


def _mask(x: Tensor, keys: Tensor, site: Tensor | None, cut: int) -> Tensor:
    """``[…, H]`` uint8: 1 where an element stays, 0 elsewhere."""
    n_elements = x.shape[-1]
    if site is not None:
        keys = keys_at_site(keys, site)
    columns = mixed(torch.arange(-(-n_elements // BYTES), device=x.device) * GOLDEN)
    random_bytes = mixed(keys.unsqueeze(-1) ^ columns).view(torch.uint8)[..., :n_elements]
    # Comparing in place and multiplying are vectorised for bytes, not for bools.
    return random_bytes.ge_(cut)


@in_one_kernel
def dropped(x: Tensor, keys: Tensor, site: Tensor | None, cut: int, scaled_first: bool) -> Tensor:
    """:func:`keyed_dropout` with nothing kept, or its gradient.

    Args:
        x, keys, site: as there.
        cut: c.
        scaled_first: the gradient multiplies by the scale before it multiplies by the mask. Both
            round alike, but what overflows by the scale is NaN where the mask is 0.
    """
    keep = _mask(x, keys, site, cut)
    scale = 256 / (256 - cut)
    return (x * scale).mul_(keep) if scaled_first else (x * keep).mul_(scale)


class _DrawnAgain(torch.autograd.Function):
    """:func:`keyed_dropout` whose backward pass draws the mask again from the keys."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, keys: Tensor, site: Tensor | None, cut: int, scaled_first: bool
    ) -> Tensor:
        ctx.save_for_backward(keys, site)
        ctx.cut = cut
        ctx.scaled_first = scaled_first
        return dropped(x, keys, site, cut, scaled_first)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        keys, site = ctx.saved_tensors
        gradient = _DrawnAgain.apply(gradient, keys, site, ctx.cut, not ctx.scaled_first)
        return gradient, None, None, None, None


class Draws:
    """Whose masks the dropout layers of a model draw now: those of the texts that it reads.

    Attributes:
        token_keys: int64, shaped as the tokens that the model reads, padding counted; None where
            it reads no tokens.
        text_keys: ``[S]`` int64, those of the texts; None where nobody says whose masks are drawn.
    """

    def __init__(self) -> None:
        self.token_keys: Tensor | None = None
        self.text_keys: Tensor | None = None

    @contextmanager
    def drawing_for(
        self, text_keys: Tensor | None, token_keys: Tensor | None = None
    ) -> Iterator[None]:
        """Draw for some texts inside the block.

        Args:
            text_keys: ``[S]`` int64; None: by torch's global generator.
            token_keys: those that :func:`keys_inside` gives the tokens of these texts; None where
                no tokens are read.
        """
        self.draw_for(text_keys, token_keys)
        try:
            yield
        finally:
            self.draw_for(None)

    def draw_for(self, text_keys: Tensor | None, token_keys: Tensor | None = None) -> None:
        """Draw for some texts from now on; see :meth:`keys_for`."""
        self.token_keys = token_keys
        self.text_keys = text_keys

    def keys_for(self, x: Tensor) -> Tensor:
        """A key for each row of ``x``, ``[…]`` for ``[…, H]``.

        A row is a token, or what a layer makes of the first token of a text or of all its tokens.
        Where there are other rows, as of a table of relative positions, their keys are those of all
        the texts together.
        """
        rows = x.shape[:-1]
        # First: torch.compile compiles anew for a chunk of one text where it sees how many there are.
        if self.token_keys is not None and rows.numel() == self.token_keys.numel():
            return self.token_keys.view(rows)
        if self.text_keys is None:
            # A backward pass computes again what was drawn by keys; new ones would make other masks.
            assert torch._C._current_graph_task_id() == -1, (
                "layers of padded texts can't be computed again: leave out gradient checkpointing, and set keep_tokens"
            )
            return new_keys(rows.numel(), x.device).view(rows)
        # Of the first token of each text. Made here, as most layers read tokens.
        first_keys = keys_inside(self.text_keys, torch.zeros_like(self.text_keys))
        if rows.numel() == first_keys.numel():
            return first_keys.view(rows)
        numbers = torch.arange(rows.numel(), device=x.device).view(rows)
        return keys_inside(first_keys.sum(), numbers)


class KeyedDropout(nn.Dropout):
    """:func:`keyed_dropout` as a module: the identity in eval mode.

    Attributes:
        draws: of the model.
        draw_site: of this layer, see :func:`ltr.draws.draw_site`.
    """

    draws: Draws
    draw_site: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        if self.p == 1:
            return input * 0
        return keyed_dropout(input, self.p, self.draws.keys_for(input), self.draw_site)


def use_keyed_dropout(model: nn.Module) -> Draws:
    """Turn every ``nn.Dropout`` inside into a :class:`KeyedDropout`. Returns what says whose masks
    they draw; of a model that has been here before, the same object. Every module gets its
    ``draw_site``: attention that drops weights needs one.
    """
    draws = Draws()
    for module in model.modules():
        if type(module) is KeyedDropout:
            draws = module.draws
    for number, module in enumerate(model.modules()):
        module.draw_site = draw_site(number)
        if type(module) in (nn.Dropout, KeyedDropout):
            module.__class__ = KeyedDropout
            module.draws = draws  # type: ignore[assignment]
    return draws
