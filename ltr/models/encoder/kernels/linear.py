"""Linear layers: fewer casts under autocast, and oneDNN where torch's own float32 is slow.

Autocast casts the input of every linear layer, and keeps each copy for the backward pass: query,
key and value cast one tensor three times. :class:`SharedCastLinear` lets them share one copy. On a
GPU it also takes weights that were cast together
(:mod:`ltr.models.encoder.kernels.half_weights`).

In float32 torch multiplies matrices by MKL, which uses half of the vector width of an AMD Zen 5.
oneDNN, which is part of torch too, uses all of it, and is a little faster on a Zen 4
(``benchmarks/attention.py``): :class:`FastLinear` takes it. In bfloat16 torch takes oneDNN by
itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import PreTrainedModel

from ltr.models.encoder.kernels import half_weights
from ltr.models.encoder.kernels.gelu import keep_gelu_input
from ltr.models.encoder.kernels.half_weights import (
    HalfNorm,
    HalfWeights,
    cast_modules,
    half_weights_of_layer,
)
from ltr.models.encoder.loading.architecture import layers_of


def use_fast_linear(module: nn.Module) -> None:
    """Turn every ``nn.Linear`` inside into a :class:`SharedCastLinear`, or a :class:`FastLinear`
    where that is faster.

    Parameters stay as they are.
    """
    new_class = FastLinear if mkl_is_slow() else SharedCastLinear
    for child in module.modules():
        if type(child) in (nn.Linear, SharedCastLinear, FastLinear):
            child.__class__ = new_class


@contextmanager
def cast_once(encoder: PreTrainedModel) -> Iterator[None]:
    """Cast the weights once, for an encoding of many texts.

    Inside the block the weights of linear layers are cast once, on a GPU all of them together with
    those of norms, on a CPU laid out as oneDNN multiplies them (which torch does anew in each
    product). What goes from layer to layer stays in bfloat16. The relative error of
    all-MiniLM-L6-v2's embeddings is a fifth larger than under autocast alone: 0.0066; the way of a
    GPU, which has norms in bfloat16 too, gives 0.0088. There it takes 2 bytes a weight.

    It has an effect only under autocast to bfloat16, without gradients, and for an encoder with
    fast linear layers.
    """
    halves: dict[Any, HalfWeights] = {}
    linears = [module for module in encoder.modules() if isinstance(module, SharedCastLinear)]
    if linears and _encodes_in_bfloat16(linears[0].weight.device.type):
        halves = _half_weights(encoder, linears)
    if not halves:
        yield
        return
    handle = layers_of(encoder)[0].register_forward_pre_hook(_cast_hidden_states)
    try:
        for module, half in halves.items():
            module.half_weights = half
        yield
    finally:
        handle.remove()
        for module in halves:
            module.half_weights = None


def _half_weights(
    encoder: PreTrainedModel, linears: Sequence["SharedCastLinear"]
) -> dict[Any, HalfWeights]:
    """The weights for an encoding, by module; none where casting them once gains nothing."""
    device = linears[0].weight.device.type
    if half_weights.launches_cost(device):
        norms = [module for module in encoder.modules() if isinstance(module, HalfNorm)]
        both: list[nn.Linear | nn.LayerNorm] = [*linears, *norms]
        modules = [module for module in both if module.weight.dtype == torch.float32]
        return dict(zip(modules, cast_modules(modules, torch.bfloat16), strict=True))
    halves: dict[Any, HalfWeights] = {}
    if device != "cpu" or not _onednn_multiplies_bfloat16():
        return halves
    for linear in linears:
        half_weight = linear.weight.detach().bfloat16()
        weight = torch.ops.mkldnn._reorder_linear_weight(half_weight, None)
        bias: Tensor | None = linear.bias
        if bias is not None:
            bias = bias.detach().bfloat16()
        halves[linear] = HalfWeights(weight, bias)
    return halves


def _encodes_in_bfloat16(device: str) -> bool:
    """Whether the caller wants no gradients, and autocast to bfloat16 on this type of device."""
    in_half = torch.is_autocast_enabled(device)
    in_half = in_half and torch.get_autocast_dtype(device) == torch.bfloat16
    return in_half and not torch.is_grad_enabled()


def _onednn_multiplies_bfloat16() -> bool:
    """Whether torch has a oneDNN that multiplies bfloat16 on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _cast_hidden_states(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A forward pre-hook of the first layer: its hidden states, the first argument, in bfloat16.

    None leaves the arguments as they are, where another thread trains, or an architecture passes
    something else first.
    """
    if not (args and isinstance(args[0], Tensor) and args[0].dtype == torch.float32):
        return None
    if not _encodes_in_bfloat16(args[0].device.type):
        return None
    return args[0].bfloat16(), *args[1:]


def mkl_is_slow() -> bool:
    """Whether MKL is slower than oneDNN here: on an AMD CPU with AVX-512, if torch has oneDNN."""
    capabilities = torch.cpu.get_capabilities()
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    has_avx512 = bool(capabilities.get("avx512_f"))
    return is_amd and has_avx512 and torch.backends.mkldnn.is_available()


class _HalfCopy(NamedTuple):
    """A tensor in half precision, and the state of the original when it was copied.

    It stands at the original, as the attribute ``half_of_linear``.
    """

    copy: Tensor
    state: tuple[torch.dtype, bool, int | None]


class SharedCastLinear(nn.Linear):
    """``nn.Linear`` that shares the half-precision copy of its input under autocast.

    The other layers that read the same tensor take that copy: query, key and value do. Behind a
    :class:`ltr.models.encoder.kernels.gelu.LightGelu` it keeps the input of the GELU for the
    backward pass, not the output.
    """

    half_weights: HalfWeights | None = None  # only inside cast_once

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().forward(input)
        device = input.device.type
        if input.dtype == torch.float32 and torch.is_autocast_enabled(device):
            input = _half_copy(input, torch.get_autocast_dtype(device))
        with keep_gelu_input(input):
            return self.product(input)

    def product(self, input: Tensor) -> Tensor:
        """``x Wᵀ + b``."""
        # Read once, as the thread that encodes may leave cast_once meanwhile. They are for that
        # thread only: another one may train with the same layer, or read in float32.
        half = self.half_weights
        if half is None:
            half = half_weights_of_layer(self)
        if half is None or not half.fit(input):
            return super().forward(input)
        if half.weight.is_mkldnn:
            return _onednn_product(input, half.weight, half.bias)
        return F.linear(input, half.weight, half.bias)


def _half_copy(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The copy of ``x`` in half precision. It is kept at ``x``, and lives as long as ``x`` does."""
    # A copy made without gradients has no graph, and one made before ``x`` changed in place has old
    # values: then a new copy is made. Tensors of inference mode do not count their changes.
    version = None if x.is_inference() else x._version
    state = (dtype, torch.is_grad_enabled(), version)
    half: _HalfCopy | None = x.__dict__.get("half_of_linear")
    if half is None or half.state != state:
        half = _HalfCopy(x.to(dtype), state)
        x.__dict__["half_of_linear"] = half
    return half.copy


class FastLinear(SharedCastLinear):
    """Also by oneDNN in float32 on a CPU. Everywhere else, under autocast and ``torch.compile``, it
    is torch's own.
    """

    def product(self, input: Tensor) -> Tensor:
        on_cpu = input.device.type == "cpu"
        in_float32 = input.dtype == self.weight.dtype == torch.float32
        by_onednn = on_cpu and in_float32 and input.numel() > 0
        if not by_onednn or torch.is_autocast_enabled("cpu"):
            return super().product(input)
        output: Tensor = _ByOneDnn.apply(input.flatten(0, -2), self.weight, self.bias)
        return output.unflatten(0, input.shape[:-1])


class _ByOneDnn(torch.autograd.Function):
    """``x Wᵀ + b`` and its gradients: x is ``[M, K]``, W ``[N, K]``, and b ``[N]`` or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # A frozen weight wants no gradient, so its input need not wait for the backward pass.
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return _onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        # The function transposes its second argument: these are gradient @ weight and
        # gradientᵀ @ x.
        grad_x = _onednn_product(gradient, weight.t()) if needs_x else None
        grad_weight = _onednn_product(gradient.t(), x.t()) if needs_weight else None
        grad_bias = gradient.sum(dim=0) if needs_bias else None
        return grad_x, grad_weight, grad_bias


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x Wᵀ + b`` by oneDNN, without an activation after it."""
    # torch.compile takes this operator with packed weights only.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
