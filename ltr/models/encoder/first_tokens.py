"""Where the first token of each text alone is read, the last layer computes no other behind its attention.

No token meets another there. Of BERT's last layer this saves three quarters of the products with weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from ltr.models.encoder.attention import Layout
from ltr.models.encoder.layers import layers_of

_first: ContextVar[Tensor | None] = ContextVar("first", default=None)  # not an attribute: another thread may read, too


def leave_others_out(model: PreTrainedModel) -> RemovableHandle | None:
    """Prepare an encoder for :func:`first_alone`. None if it is so already, or its last layer is not built as BERT's."""
    behind = _behind_attention(model)
    if behind is None or _leave_out in behind._forward_pre_hooks.values():
        return None
    return behind.register_forward_pre_hook(_leave_out)


def leaves_others_out(model: PreTrainedModel) -> bool:
    """Whether :func:`first_alone` has an effect here.

    Not in what is compiled; and transformers' own checkpointing would compute the layer again outside of the block.
    """
    behind, modules = _behind_attention(model), list(model.modules())
    if behind is None or _leave_out not in behind._forward_pre_hooks.values() or torch.compiler.is_compiling():
        return False
    again = any(getattr(module, "gradient_checkpointing", False) for module in modules)
    return not again and all(module._compiled_call_impl is None for module in modules)


@contextmanager
def first_alone(layout: Layout) -> Iterator[None]:
    """Inside the block the encoder returns hidden states ``[1, C, H]`` of the first tokens of a chunk's texts."""
    before = _first.set(layout.offsets[:-1].long())
    try:
        yield
    finally:
        _first.reset(before)


def _leave_out(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    first = None if torch.compiler.is_compiling() else _first.get()
    return None if first is None else tuple(x[:, first] for x in args)


def _behind_attention(model: PreTrainedModel) -> nn.Module | None:
    """What takes the mixed values and the layer's input, each ``[1, T, H]``, in BERT and its kin."""
    behind = getattr(getattr(layers_of(model)[-1], "attention", None), "output", None)
    return behind if isinstance(behind, nn.Module) else None
