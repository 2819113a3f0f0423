"""A GPU that a CPU pretends to be: it computes as the CPU, and counts what a GPU would do.

Every tensor "on" it says that its device is ``cuda:0``, so code takes the way that it takes on a
GPU, while the numbers lie on the CPU. Below autograd each operator is seen once: that is where
launches, waits and bytes are counted.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ltr import draws
from ltr.models.encoder import text_encoder

ROOT = Path(__file__).parents[2]
TORCH = Path(torch.__file__).parent
CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0)

# What makes no kernel run, beside views, whose outputs lie in the memory of their inputs.
NO_KERNEL = {
    "_local_scalar_dense",
    "_reshape_alias",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
}
# The size of what they return follows from numbers on the device, or the host reads one.
WAIT_FOR_SIZES = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "bincount",
    "equal",
    "masked_scatter_backward",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
# Matrix products and attention: their bytes are not those of elementwise work.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product", "_varlen_attn", "convolution")

# How torch's kernels over lists of tensors are cut on CUDA (MultiTensorApply.cuh): numbers in a
# chunk, chunks in a launch, and tensors in a launch by the number of lists.
CHUNK = 1 << 16
CHUNKS = 320
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}


@dataclass
class Counts:
    """What a part of the work asks of a device.

    Attributes:
        launches: kernels and copies, by operator.
        waits: of the host for the device, by what waits and the line of code.
        moved: bytes that operators beside matrix products and attention read and write, by
            operator, without what those over lists of tensors write in place.
        busy: seconds that a GPU that is there spent on the launches.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0


class OnDevice(Tensor):
    """A tensor of the pretended GPU. Its numbers lie in ``held``, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        # To torch's C++ it is a tensor of the CPU: a torch without CUDA has no autograd for others.
        tensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=CPU,
        )
        tensor.held = held
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    # With these two ``module.to`` swaps a weight in place.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> "OnDevice":
        return OnDevice(inner["held"])

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return _compute(operator, args, kwargs or {})[0]


def _compute(operator: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """What the operator returns, and whether it ran on the device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    wrapped = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, OnDevice)}
    on_device = bool(wrapped)
    device = kwargs.get("device")
    if device is not None:
        kwargs = kwargs | {"device": CPU}
        on_device = on_device or torch.device(device).type == "cuda"
        # To C++ all is on the CPU: what a gradient is made from nothing there is on the device.
        on_device = on_device or (not tensors and torch._C._current_graph_task_id() != -1)
    args, kwargs = tree_map_only(OnDevice, lambda tensor: tensor.held, (args, kwargs))
    compute = STAND_INS.get(_name(operator), operator)
    outputs = compute(*args, **kwargs)
    if not on_device:
        return outputs, False

    def on(tensor: Tensor) -> Tensor:
        there = wrapped.get(id(tensor))  # of an operator that writes into what it was given
        return OnDevice(tensor) if there is None else there

    if isinstance(outputs, Tensor | tuple | list):
        outputs = tree_map_only(Tensor, on, outputs)
    return outputs, True


def _name(operator: Any) -> str:
    return operator._schema.name.removeprefix("aten::")


def _varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """In the place of torch's attention for texts of varying length: each text attends to all of
    itself. Windows and causality change numbers only, not what is counted.
    """
    output = torch.empty_like(query)
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        q, k, v = (x[begin:end].transpose(0, 1).float() for x in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, enable_gqa=len(k) < len(q))
        output[begin:end] = attended.transpose(0, 1).to(query.dtype)
    return (
        output,
        query.new_zeros(query.shape[1], len(query), dtype=torch.float32),
        query.new_zeros(2),
    )


def _varlen_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in the right shapes; their values are not those of attention."""
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


# Kernels that no CPU has.
STAND_INS: dict[str, Callable] = {
    "torch_attn::_varlen_attn": _varlen_attention,
    "torch_attn::_varlen_attn_backward": _varlen_backward,
}


class PretendedGPU:
    """Inside the block, what is sent to ``cuda`` lands on the pretended GPU, and is counted.

    Attributes:
        counts: where what happens is written; None: nowhere. It may be replaced at any time.

    Example:
        >>> gpu = PretendedGPU()
        >>> with gpu:
        ...     numbers = torch.ones(3).to("cuda", non_blocking=True)
        ...     gpu.counts = Counts()
        ...     is_large = bool((numbers + 1 > 1).all())
        >>> dict(gpu.counts.launches)
        {'add': 1, 'gt': 1, 'all': 1}
        >>> gpu.counts.waits.total()
        1
    """

    def __init__(self) -> None:
        self.counts: Counts | None = None
        self._inside = ExitStack()

    def __enter__(self) -> Self:
        autocast = torch.autocast
        is_enabled = torch.is_autocast_enabled
        dtype_of = torch.get_autocast_dtype
        run_backward = torch.autograd._engine_run_backward

        def cpu(device_type: str | None = None, *_: Any) -> str:
            return "cpu"

        def backward(*args: Any, **options: Any) -> Any:
            # torch has left the mode to call this; gradients written by hand are in it.
            with _Functions(self):
                return run_backward(*args, **options)

        places = (
            # What a torch without CUDA refuses, and autocast, which here is that of the CPU.
            (torch.cuda, "_lazy_init", lambda: None),
            (
                torch,
                "autocast",
                lambda *args, **options: autocast(cpu(*args), *args[1:], **options),
            ),
            (torch, "is_autocast_enabled", lambda *args: is_enabled(cpu(*args))),
            (torch, "get_autocast_dtype", lambda *args: dtype_of(cpu(*args))),
            (torch.autograd, "_engine_run_backward", backward),
            # What torch computes over lists of tensors.
            (optimizer, "_foreach_supported_types", [Tensor, nn.Parameter, OnDevice]),
            # The kernels' definitions run on the CPU; each is one operator.
            (draws, "HAS_TRITON", True),
            # An encoder would compare kernels that are not there.
            (text_encoder, "CHECKS_ITSELF", ()),
        )
        for owner, name, value in places:
            self._inside.enter_context(mock.patch.object(owner, name, value))
        self._inside.enter_context(self.in_thread())
        return self

    def __exit__(self, *_: Any) -> None:
        self._inside.close()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Inside the block of the GPU: the same for another thread."""
        with _Functions(self), _Operators(self):
            yield

    def wait(self, what: str) -> None:
        """Count a wait of the host, at the line of the project that asks for it."""
        if self.counts is not None:
            self.counts.waits[what, _line()] += 1

    def count(self, operator: Any, args: tuple, kwargs: dict[str, Any], outputs: Any) -> None:
        """Count an operator that ran on the device."""
        if self.counts is None:
            return
        name = _name(operator)
        if name in WAIT_FOR_SIZES or _reads_sizes(name, args, kwargs):
            self.wait(name)
        returns = operator._schema.returns
        is_view = bool(returns) and returns[0].alias_info is not None
        is_view = is_view and not returns[0].alias_info.is_write
        if is_view or name in NO_KERNEL:
            return
        kernels = 1
        if name.startswith(("_foreach_", "_fused_")):
            lists = [arg for arg in args if isinstance(arg, list | tuple) and arg]
            # The last list of a fused optimiser has the numbers of steps, which a kernel only reads.
            n_lists = len(lists) - (1 if name.startswith("_fused_") else 0)
            kernels = kernels_over_lists((tensor.numel() for tensor in lists[0]), n_lists)
        self.counts.launches[name] += kernels
        if not name.removeprefix("torch_attn::").startswith(PRODUCTS):
            for leaf in tree_leaves((args, kwargs, outputs)):
                if isinstance(leaf, Tensor):
                    self.counts.moved[name] += leaf.numel() * leaf.element_size()


class _Operators(TorchDispatchMode):
    """Sees every operator below autograd, in the forward and the backward pass."""

    def __init__(self, gpu: PretendedGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            # Without autograd above, what is made of other operators comes here whole.
            with self:
                outputs = operator.decompose(*args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        outputs, on_device = _compute(operator, args, kwargs)
        if on_device:
            self.gpu.count(operator, args, kwargs, outputs)
        return outputs


class _Functions(TorchFunctionMode):
    """Sees what is called of torch in Python: copies between host and device, and functions that a
    GPU computes by other operators than a CPU.
    """

    def __init__(self, gpu: PretendedGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        first = args[0] if args else None
        if name == "to" and isinstance(first, Tensor):
            return self._to(function, first, args[1:], kwargs)
        if name in ("tensor", "as_tensor") and _is_cuda(kwargs.get("device")):
            if isinstance(first, OnDevice):
                return function(*args, **kwargs)
            return function(*args, **kwargs | {"device": CPU}).to(DEVICE)
        if kwargs.get("pin_memory"):
            kwargs = kwargs | {"pin_memory": False}  # a torch without CUDA has no such memory
        if not isinstance(first, OnDevice):
            return function(*args, **kwargs)
        if name in ("cpu", "tolist", "numpy", "__array__"):
            self.gpu.wait(name)
            return getattr(first.detach().held, name)(*args[1:], **kwargs)
        if function is F.dropout:
            return _dropout(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            # A GPU's kernel has its dropout inside.
            return function(*args, **kwargs | {"dropout_p": 0.0})
        if function is F.rms_norm:
            # A GPU has a kernel for it, which autocast has compute in float32.
            return rms_norm(*args, **kwargs)
        if function is F.layer_norm and torch.is_autocast_enabled("cuda"):
            # Autocast computes it in float32 on a GPU, and not on a CPU.
            return function(first.float(), *args[1:], **kwargs)
        return function(*args, **kwargs)

    def _to(self, function: Any, tensor: Tensor, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """``tensor.to(…)`` across or along the border of the device."""
        if args and not isinstance(args[0], str | torch.device | int):
            return function(tensor, *args, **kwargs)  # to a dtype, or as another tensor
        options = dict(zip(("device", "dtype", "non_blocking", "copy"), args, strict=False))
        options = {name: value for name, value in (options | kwargs).items() if value is not None}
        device = options.pop("device", None)
        if _is_cuda(device) and not isinstance(tensor, OnDevice):
            return function(tensor, DEVICE, **options)
        if device is not None and not _is_cuda(device) and isinstance(tensor, OnDevice):
            self.gpu.wait("to(cpu)")
            tensor = tensor.detach().held
        return function(tensor, **options)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """By the one kernel that torch has for it on a GPU."""
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, training)[0]


@torch.library.custom_op("pretended::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


@torch.library.custom_op("pretended::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    rate = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    normed = x * rate
    grad_normed = gradient * weight
    along = (grad_normed * normed).mean(-1, keepdim=True)
    return rate * (grad_normed - normed * along), (gradient * normed).flatten(0, -2).sum(0)


class RmsNorm(torch.autograd.Function):
    """RMSNorm by a kernel, and its gradients by another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        output: Tensor = _rms_norm(x, weight, eps)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight = _rms_norm_backward(gradient, *ctx.saved_tensors, ctx.eps)
        return grad_x, grad_weight if ctx.needs_input_grad[1] else None, None


def rms_norm(x: Tensor, shape: torch.Size, weight: Tensor, eps: float) -> Tensor:
    """As :func:`torch.nn.functional.rms_norm` on a GPU."""
    output: Tensor = RmsNorm.apply(x.float(), weight.float(), eps)
    return output


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _reads_sizes(name: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for this operator, by what it is given. A copy that need not block is
    taken to begin in pinned memory, which a torch without CUDA does not have; from pageable memory a
    GPU waits for it all the same.
    """
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        for index in args[1]:
            if index is not None and (
                index.dtype in (torch.bool, torch.uint8) or not isinstance(index, OnDevice)
            ):
                return True
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "segment_reduce":
        return not kwargs.get("unsafe", False)  # it checks the lengths
    if name in ("_to_copy", "copy_"):
        # Between host and device, and not from pinned memory, as a loader's batches are.
        source = args[1] if name == "copy_" else args[0]
        into = args[0] if name == "copy_" else None
        crosses = not isinstance(source, OnDevice) or (
            into is not None and not isinstance(into, OnDevice)
        )
        non_blocking = kwargs.get("non_blocking", name == "copy_" and args[2:] == (True,))
        return crosses and source.ndim > 0 and not non_blocking
    return False


def kernels_over_lists(sizes: Iterable[int], n_lists: int) -> int:
    """The launches of an operator over lists of tensors.

    Args:
        sizes: numbers of each tensor of the first list.
        n_lists: how many lists a kernel reads and writes.
    """
    launches = tensors = chunks = 0
    for size in sizes:
        n_chunks = -(-size // CHUNK)
        tensors += 1
        for chunk in range(n_chunks):
            chunks += 1
            is_last = chunk == n_chunks - 1
            if chunks == CHUNKS or (is_last and tensors == TENSORS[n_lists]):
                launches += 1
                chunks = 0
                tensors = 0 if is_last else 1
    return launches + (1 if chunks else 0)


def _line() -> str:
    """The innermost line outside torch."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and not Path(frame.filename).is_relative_to(TORCH):
            return f"{relative(frame.filename)}:{frame.lineno}"
    return "?"


def relative(file: str) -> Path:
    """A file as it is named in its package, or in this repository."""
    path = Path(file)
    for folder in (TORCH.parent, ROOT):
        if path.is_relative_to(folder):
            return path.relative_to(folder)
    return path
