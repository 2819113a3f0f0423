"""Rotary positions in few launches on a GPU: three for queries and three for keys, and as many in the
backward pass, where transformers launches five to eight and up to twelve.

Attention modules of transformers call a function ``apply_rotary_pos_emb`` of their file. Here they
run their own code with another function of that name.

References:
    Su et al. (2021), RoFormer: enhanced transformer with rotary position embedding.
"""

from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ltr.models.encoder.kernels import half_weights

NAME = "apply_rotary_pos_emb"  # transformers' own
TOLERANCE = 1e-5  # of the numbers of a trial, which have size 1


def use_light_rotary(model: nn.Module) -> None:
    """Rotate queries and keys by :func:`rotated` wherever a trial says that it computes the same."""
    for module in model.modules():
        if _with_our_rotation(type(module).forward) is not None:
            module.forward = partial(attend, module)


def attend(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What an attention module makes of these arguments."""
    forward: Callable = type(module).forward
    if not torch.compiler.is_compiling():
        forward = _with_our_rotation(forward) or forward
    return forward(module, *args, **kwargs)


@cache
def _with_our_rotation(forward: Callable) -> Callable | None:
    """A class's ``forward`` with our rotation in it; None where it has none, or another one."""
    if not isinstance(forward, FunctionType) or NAME not in forward.__code__.co_names:
        return None
    theirs = forward.__globals__.get(NAME)
    if theirs is None or not _computes_the_same(theirs):
        return None
    ours = FunctionType(
        forward.__code__,
        forward.__globals__ | {NAME: partial(rotated, otherwise=theirs)},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    ours.__kwdefaults__ = forward.__kwdefaults__
    return ours


@torch.no_grad()
def _computes_the_same(theirs: Callable) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 3, 8, generator=generator)  # [1, h, T, d]
    cos, sin = torch.randn(2, 1, 3, 8, generator=generator)
    try:
        expected = theirs(q, k, cos, sin)
    except Exception:  # an architecture may ask for other arguments
        return False
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    found = [_rotate(x, cos, sin) for x in (q, k)]
    close = partial(torch.allclose, rtol=TOLERANCE, atol=TOLERANCE)
    return len(expected) == 2 and all(map(close, found, expected))


def rotated(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    otherwise: Callable,
) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[1, h, T, d]``, rotated by their positions.

    .. math::
        y_1 = x_1 c_1 - x_2 s_1, \\qquad y_2 = x_2 c_2 + x_1 s_2

    for the two halves of a head.

    Args:
        query, key: of any precision, which the outputs have too.
        cos, sin: ``[1, T, d]``; ours are float32.
        unsqueeze_dim: where these lack the dimension of the heads.
        otherwise: what rotates where launches cost nothing, in another precision, and where ``cos``
            is narrower than a head.
    """
    # Some decoders rotate a part of each head alone.
    whole_heads = query.shape[-1] == key.shape[-1] == cos.shape[-1]
    is_ours = whole_heads and cos.dtype == torch.float32
    if not is_ours or not half_weights.launches_cost(query.device.type):
        both: tuple[Tensor, Tensor] = otherwise(query, key, cos, sin, unsqueeze_dim=unsqueeze_dim)
        return both
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    return _Rotated.apply(query, cos, sin), _Rotated.apply(key, cos, sin)


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """By the transposed matrix: the gradient of x₁ is g₁c₁ + g₂s₂."""
        cos, sin = ctx.saved_tensors
        g1, g2 = gradient.chunk(2, dim=-1)
        s1, s2 = sin.chunk(2, dim=-1)
        gradient_of_x = gradient * cos
        x1, x2 = gradient_of_x.chunk(2, dim=-1)
        x1.addcmul_(g2, s2)
        x2.addcmul_(g1, s1, value=-1)
        return gradient_of_x.to(gradient.dtype), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    s1, s2 = sin.chunk(2, dim=-1)
    output = x * cos  # float32, as cos is
    y1, y2 = output.chunk(2, dim=-1)
    y1.addcmul_(x2, s1, value=-1)
    y2.addcmul_(x1, s2)
    return output.to(x.dtype)
