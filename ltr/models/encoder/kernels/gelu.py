"""GELU whose output is not kept for the backward pass, but computed again there.

Two tensors are kept as a rule: GELU keeps its input, and the linear layer behind it keeps GELU's
output. Both are the widest activations of an encoder. Here the linear layer keeps GELU's input,
too, which is the same tensor, and computes the output from it when it is needed: that takes a
hundredth of a training step.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

# Whether GELUs keep their outputs for now, see gelu_keeps_output.
_keeps_outputs: ContextVar[bool] = ContextVar("keeps_outputs", default=False)


class _Origin(NamedTuple):
    """What the output of a GELU was made of. It stands at that output, as the attribute
    ``gelu_origin``.

    Attributes:
        activation: the function.
        input: of the function, without its graph.
        output_version: torch's counter of changes in place (``_version``) when the output was made.
    """

    activation: Callable[[Tensor], Tensor]
    input: Tensor
    output_version: int


class _Saved(NamedTuple):
    """What waits for the backward pass.

    Attributes:
        tensor: the tensor itself, or the input of the GELU that made it.
        version: the same counter of ``tensor``, when it was kept.
        gelu_shape: the shape of the output that GELU shall compute again from ``tensor``; None:
            ``tensor`` is what is wanted.
    """

    tensor: Tensor
    version: int
    gelu_shape: torch.Size | None


def use_light_gelu(module: nn.Module) -> None:
    """Turn every GELU of transformers inside into a :class:`LightGelu`."""
    for child in module.modules():
        if type(child) is GELUActivation:
            child.__class__ = LightGelu


@contextmanager
def gelu_keeps_output() -> Iterator[None]:
    """Inside the block GELUs keep their outputs, as torch's do.

    For ``checkpoint``: it drops what autograd keeps, but not what our hooks keep.
    """
    token = _keeps_outputs.set(True)
    try:
        yield
    finally:
        _keeps_outputs.reset(token)


class LightGelu(GELUActivation):
    """GELU that notes at its output what it was made of, for :func:`keep_gelu_input`."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input)
        # In this order: torch.compile would break its graph at the variable.
        keeps_output = torch.compiler.is_compiling() or _keeps_outputs.get()
        if torch.is_grad_enabled() and not keeps_output:
            output.__dict__["gelu_origin"] = _Origin(self.act, input.detach(), output._version)
        return output


def keep_gelu_input(x: Tensor) -> AbstractContextManager[Any]:
    """Inside the block, where autograd would keep ``x``, it keeps the input of the GELU that made
    ``x``.

    Where no GELU made it, or it has been changed in place since, nothing is different.
    """
    origin: _Origin | None = x.__dict__.get("gelu_origin")
    if origin is None or origin.output_version != x._version:
        return nullcontext()
    gelu = origin.activation
    gelu_input = origin.input
    # x is known by its address: a function that refers to x itself would keep it in memory.
    address = x.data_ptr()

    def pack(tensor: Tensor) -> _Saved:
        if tensor.data_ptr() == address:
            return _Saved(gelu_input, gelu_input._version, tensor.shape)
        return _Saved(tensor, tensor._version, None)

    def unpack(saved: _Saved) -> Tensor:
        # Autograd checks this itself, but only where there are no hooks.
        if saved.tensor._version != saved.version:
            raise RuntimeError(
                "a tensor that the backward pass needs was changed in place after the forward pass"
            )
        if saved.gelu_shape is None:
            return saved.tensor
        return gelu(saved.tensor).view(saved.gelu_shape)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
