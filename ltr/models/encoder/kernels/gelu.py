"""GELU whose output is computed again in the backward pass, by the linear layer behind it.

GELU keeps its input for the backward pass, and that layer GELU's output: both are the widest
activations of an encoder. The second takes a hundredth of a training step to compute.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

_plain: ContextVar[bool] = ContextVar("plain", default=False)


class _Kept(NamedTuple):
    """What waits for the backward pass.

    Attributes:
        held: the tensor.
        version: how often it had been changed in place.
        shape: where ``held`` is the input of GELU: the shape of the output that is wanted; else
            None.
    """

    held: Tensor
    version: int
    shape: torch.Size | None


def use_light_gelu(module: nn.Module) -> None:
    """Turn every GELU of transformers inside into a :class:`LightGelu`."""
    for child in module.modules():
        if type(child) is GELUActivation:
            child.__class__ = LightGelu


def use_plain_gelu(module: nn.Module) -> None:
    """Undo :func:`use_light_gelu`."""
    for child in module.modules():
        if type(child) is LightGelu:
            child.__class__ = GELUActivation


@contextmanager
def plain_gelu() -> Iterator[None]:
    """Inside the block outputs are kept.

    For ``checkpoint``, which drops what autograd keeps, but not what other hooks keep.
    """
    before = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(before)


class LightGelu(GELUActivation):
    """GELU that tells the layer behind it, see :func:`kept_lightly`, what it was made of."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input)
        if torch.is_grad_enabled() and not (_plain.get() or torch.compiler.is_compiling()):
            output.__dict__["gelu_of"] = self.act, input.detach(), output._version
        return output


def kept_lightly(x: Tensor) -> AbstractContextManager[Any]:
    """Inside the block, autograd keeps the input of the GELU that made ``x`` in place of ``x``.

    Where no GELU made it, or it has changed since, nothing is different.
    """
    made: tuple[Any, Tensor, int] | None = x.__dict__.get("gelu_of")
    if made is None or made[2] != x._version:  # changed in place since
        return nullcontext()
    gelu, before, _ = made
    address = x.data_ptr()  # not x: autograd holds what these functions see

    def pack(kept: Tensor) -> _Kept:
        if kept.data_ptr() == address:
            return _Kept(before, before._version, kept.shape)
        return _Kept(kept, kept._version, None)

    def unpack(kept: _Kept) -> Tensor:
        if kept.held._version != kept.version:  # autograd looks after this where there are no hooks
            raise RuntimeError(
                "a tensor that the backward pass needs was changed in place after the forward pass"
            )
        return kept.held if kept.shape is None else gelu(kept.held).view(kept.shape)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
