"""Linear layers of an encoder by oneDNN, where torch's own are slow.

In float32 torch multiplies matrices by MKL, which uses half of the vector width of an AMD CPU with AVX-512. oneDNN, which is part
of torch too, uses all of it (``benchmarks/attention.py``). In bfloat16 torch takes oneDNN by itself.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def use_fast_linear(module: nn.Module) -> None:
    """Turn every ``nn.Linear`` inside into a :class:`FastLinear`, if that is faster on this CPU. Parameters stay as they are."""
    if mkl_is_slow():
        for child in module.modules():
            if type(child) is nn.Linear:
                child.__class__ = FastLinear


def use_plain_linear(module: nn.Module) -> None:
    """Undo :func:`use_fast_linear`, for what traces a model."""
    for child in module.modules():
        if isinstance(child, FastLinear):
            child.__class__ = nn.Linear  # type: ignore[assignment]


def mkl_is_slow() -> bool:
    """Whether this is an AMD CPU with AVX-512, and torch has oneDNN."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_f")) and "AMD" in str(able.get("cpu_name")) and torch.backends.mkldnn.is_available()


class FastLinear(nn.Linear):
    """``nn.Linear`` by oneDNN in float32 on a CPU. Everywhere else, under autocast and ``torch.compile``, it is torch's own."""

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
