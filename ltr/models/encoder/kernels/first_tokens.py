"""In the last layer, compute only the first token of each text where no other is read.

Behind a layer's attention no token meets another, so the others can be left out from there on. Of
BERT's last layer this saves three quarters of the products with weights.
"""

from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from ltr.models.encoder.loading.architecture import layers_of


class _FirstTokens(NamedTuple):
    """Where the first token of each text of a packed chunk is, ``[C]`` int64; and its size."""

    places: Tensor
    n_tokens: int


# What the attention of the current layer has announced; None: all tokens are read. A context
# variable and no attribute of the model, as another thread may read with the same model.
_announced: ContextVar[_FirstTokens | None] = ContextVar("announced", default=None)


def leave_out_later_tokens(model: PreTrainedModel) -> RemovableHandle | None:
    """Prepare an encoder to leave out all but first tokens where :func:`announce_first_tokens`
    allows it.

    Its hidden states are then ``[1, C, H]``, those of the first tokens of a chunk's C texts.

    Returns:
        What undoes it. None if the encoder is prepared already, or not built as BERT.
    """
    module = _module_behind_attention(model)
    if module is None or _first_rows in module._forward_pre_hooks.values():
        return None
    return module.register_forward_pre_hook(_first_rows)


def compute_all_tokens(model: nn.Module) -> None:
    """Undo :func:`leave_out_later_tokens`."""
    for module in model.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is _first_rows:
                del module._forward_pre_hooks[key]


def announce_first_tokens(places: Tensor | None, n_tokens: int = 0) -> None:
    """Tell what follows in the layer that of ``n_tokens`` only those at ``places`` ``[C]`` are read
    in the end. None: all are.

    The attention of every layer calls this, not only that of the first: a layer that checkpointing
    computes again in the backward pass runs by itself, without the first.
    """
    if not torch.compiler.is_compiling():  # what is compiled computes all
        _announced.set(None if places is None else _FirstTokens(places, n_tokens))


def _module_behind_attention(model: PreTrainedModel) -> nn.Module | None:
    """BERT's module behind the attention of the last layer; None in other architectures.

    It takes two arguments ``[1, T, H]``: the output of attention, and the layer's input for the
    residual connection.
    """
    attention = getattr(layers_of(model)[-1], "attention", None)
    module = getattr(attention, "output", None)
    return module if isinstance(module, nn.Module) else None


def _first_rows(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A forward pre-hook: the arguments at first tokens only; None leaves them as they are."""
    first_tokens = None if torch.compiler.is_compiling() else _announced.get()
    if first_tokens is None:
        return None
    _announced.set(None)  # for this chunk only: the attention of the next one announces anew
    # Padded texts [C, L, H] stay whole. They can come here if an earlier call failed between its
    # announcement and this hook, and attention is transformers' own since.
    if all(x.shape[:2] == (1, first_tokens.n_tokens) for x in args):
        return tuple(x[:, first_tokens.places] for x in args)
    return None
