"""Linear layers of an encoder: fewer casts under autocast, and oneDNN where torch's own float32 is slow.

Autocast casts the input of every linear layer, and keeps each copy for the backward pass: query, key and value cast one tensor
three times. Here they share one copy. In float32 torch multiplies matrices by MKL, which uses half of the vector width of an AMD
CPU with AVX-512. oneDNN, which is part of torch too, uses all of it (``benchmarks/attention.py``). In bfloat16 torch takes it by
itself.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def use_fast_linear(module: nn.Module) -> None:
    """Turn every ``nn.Linear`` inside into a :class:`SharedCastLinear`, or a :class:`FastLinear` where that is faster.

    Parameters stay as they are.
    """
    kind = FastLinear if mkl_is_slow() else SharedCastLinear
    for child in module.modules():
        if type(child) in (nn.Linear, SharedCastLinear, FastLinear):
            child.__class__ = kind


def use_plain_linear(module: nn.Module) -> None:
    """Undo :func:`use_fast_linear`, for what traces a model."""
    for child in module.modules():
        if isinstance(child, SharedCastLinear):
            child.__class__ = nn.Linear  # type: ignore[assignment]


def mkl_is_slow() -> bool:
    """Whether this is an AMD CPU with AVX-512, and torch has oneDNN."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_f")) and "AMD" in str(able.get("cpu_name")) and torch.backends.mkldnn.is_available()


class SharedCastLinear(nn.Linear):
    """``nn.Linear`` that under autocast shares the half-precision copy of its input with others that read the same tensor."""

    def forward(self, input: Tensor) -> Tensor:
        device = input.device.type
        if input.dtype == torch.float32 and torch.is_autocast_enabled(device) and not torch.compiler.is_compiling():
            return super().forward(_half(input, torch.get_autocast_dtype(device)))
        return super().forward(input)


def _half(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The copy of ``x`` in half precision. It lives as long as ``x`` does, on which it is kept."""
    state = (dtype, torch.is_grad_enabled(), None if x.is_inference() else x._version)
    kept: tuple[Any, Tensor] | None = x.__dict__.get("half_of_linear")
    if kept is None or kept[0] != state:
        kept = x.__dict__["half_of_linear"] = state, x.to(dtype)
    return kept[1]


class FastLinear(SharedCastLinear):
    """Also by oneDNN in float32 on a CPU. Everywhere else, under autocast and ``torch.compile``, it is torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        plain = input.device.type == "cpu" and input.dtype == self.weight.dtype == torch.float32 and input.numel()
        if not plain or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return super().forward(input)
        output: Tensor = _ByOneDnn.apply(input.flatten(0, -2), self.weight, self.bias)
        return output.unflatten(0, input.shape[:-1])


class _ByOneDnn(torch.autograd.Function):
    """``x Wᵀ + b`` and its gradients: ``[M, K]``, ``[N, K]`` and ``[N]`` or None make ``[M, N]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_x else None,
            _product(gradient.t(), x.t()) if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x Wᵀ + b``, without an activation after it. ``torch.compile`` takes this operator with packed weights only."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
