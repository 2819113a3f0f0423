"""Weights in half precision, cast together.

Under autocast each linear layer casts its weight and its bias, and the backward pass casts the
gradient of each: four launches, where a GPU that runs a small encoder is busy with launching. There
the linear layers of one transformer layer are cast together, in one launch, and their gradients in
another. A layer at a time, so that the gradients of the last layers are ready, and sent to other
processes, while the first ones are computed.

The values of a chunk are those of autocast. Each chunk has copies of its own, which its graph keeps:
the gradients of several chunks add up in float32, where those of autocast add up in half precision.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def launches_cost(device: str) -> bool:
    """Whether a kernel takes longer to launch than to run on this type of device, so that few of
    them are better than many.
    """
    return device == "cuda"


class HalfWeights(NamedTuple):
    """The weight and the bias of a module in half precision.

    Attributes:
        weight: on a CPU as oneDNN lays it out.
        bias: None where the module has none.
        have_graph: whether they were made with gradients enabled.
    """

    weight: Tensor
    bias: Tensor | None
    have_graph: bool = False

    def fit(self, input: Tensor) -> bool:
        """Whether the module may take them for this input, here and now."""
        if torch.is_grad_enabled() and not self.have_graph:
            return False
        return input.dtype == self.weight.dtype


# Of the transformer layer that runs now, by module. A context variable and no attribute of the
# modules, as another thread may read with the same encoder.
_running: ContextVar[Mapping[nn.Module, HalfWeights] | None] = ContextVar("running", default=None)


def half_weights_of_layer(module: nn.Module) -> HalfWeights | None:
    """What was cast for a linear layer when the transformer layer around it began."""
    running = _running.get()
    return None if running is None else running.get(module)


def cast_each_layer_together(layers: Iterable[nn.Module], kind: type[nn.Linear]) -> None:
    """Let each transformer layer cast its linear layers of this kind together, on devices where
    :func:`launches_cost`.
    """
    for layer in layers:
        linears = tuple(module for module in layer.modules() if isinstance(module, kind))
        layer.__dict__["linears"] = linears
        if _cast_layer not in layer._forward_pre_hooks.values():  # it may be prepared already
            layer.register_forward_pre_hook(_cast_layer)
            layer.register_forward_hook(_forget_layer, always_call=True)


def cast_each_alone(model: nn.Module) -> None:
    """Undo :func:`cast_each_layer_together`."""
    for module in model.modules():
        module.__dict__.pop("linears", None)
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if hook in (_cast_layer, _forget_layer):
                    del hooks[key]
                    module._forward_hooks_always_called.pop(key, None)


def _cast_layer(layer: nn.Module, _: Any) -> None:
    """A forward pre-hook of a transformer layer."""
    _forget_layer()  # what an interrupt from the keyboard may have left, which calls no hook
    linears = layer.__dict__["linears"]
    if torch.compiler.is_compiling() or not linears:  # what is compiled casts in its own kernels
        return
    device = linears[0].weight.device.type
    if not (launches_cost(device) and torch.is_autocast_enabled(device)):
        return
    if linears[0].half_weights is not None and not torch.is_grad_enabled():
        return  # many texts are encoded, and all weights are cast already
    # What is in another precision, as a frozen base may be, is left to autocast.
    in_float32 = [linear for linear in linears if linear.weight.dtype == torch.float32]
    halves = cast_modules(in_float32, torch.get_autocast_dtype(device))
    _running.set(dict(zip(in_float32, halves, strict=True)))


def _forget_layer(*_: Any) -> None:
    """A forward hook of a transformer layer: the graph alone keeps what it needs."""
    if not torch.compiler.is_compiling():
        _running.set(None)


def cast_modules(
    modules: Sequence[nn.Linear | nn.LayerNorm], dtype: torch.dtype
) -> list[HalfWeights]:
    """The weights and the biases of modules, cast in one launch, or in a few where they are large."""
    if not modules:  # of a layer in another precision: torch takes no empty list
        return []
    biases: list[Tensor | None] = [module.bias for module in modules]
    tensors: list[Tensor] = [module.weight for module in modules]
    tensors += [bias for bias in biases if bias is not None]
    copies = iter(_CastTogether.apply(dtype, *tensors))
    weights = [next(copies) for _ in modules]
    have_graph = torch.is_grad_enabled()
    halves = []
    for weight, bias in zip(weights, biases, strict=True):
        half_bias = None if bias is None else next(copies)
        halves.append(HalfWeights(weight, half_bias, have_graph))
    return halves


class HalfNorm(nn.LayerNorm):
    """``nn.LayerNorm`` that stays in half precision while a GPU encodes. CUDA's autocast computes
    norms in float32, with a cast before it and another one behind.
    """

    half_weights: HalfWeights | None = None  # only while many texts are encoded

    def forward(self, input: Tensor) -> Tensor:
        half = self.half_weights
        if half is None or not half.fit(input):
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return F.layer_norm(input, self.normalized_shape, half.weight, half.bias, self.eps)


def use_half_norm(layers: nn.Module) -> None:
    """Turn every ``nn.LayerNorm`` of transformer layers into a :class:`HalfNorm`."""
    for child in layers.modules():
        if type(child) is nn.LayerNorm:
            child.__class__ = HalfNorm


class _CastTogether(torch.autograd.Function):
    """Copies of tensors in another type; those of frozen ones are frozen."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
        trained = ctx.needs_input_grad[1:]
        frozen = [copy for copy, is_trained in zip(copies, trained, strict=True) if not is_trained]
        ctx.mark_non_differentiable(*frozen)
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = []
        casts = []
        found: list[Tensor | None] = [None]
        for gradient, dtype in zip(gradients, ctx.dtypes, strict=True):
            cast = None
            if gradient is not None:
                cast = torch.empty_like(gradient, dtype=dtype)
                given.append(gradient)
                casts.append(cast)
            found.append(cast)
        if casts:
            torch._foreach_copy_(casts, given)
        return tuple(found)
