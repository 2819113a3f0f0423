"""Where the first token of each text alone is read, the last layer computes no other behind its
attention.

No token meets another there. Of BERT's last layer this saves three quarters of the products with
weights.
"""

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from ltr.models.encoder.loading.layers import layers_of

# Which tokens are read of how many, as attention said last. Not an attribute of the model: another
# thread may read, too.
_first: ContextVar[tuple[Tensor, int] | None] = ContextVar("first", default=None)


def leave_others_out(model: PreTrainedModel) -> RemovableHandle | None:
    """Prepare an encoder to leave out what :func:`attended` allows. None if it is so already, or
    not built as BERT.

    Its hidden states are then ``[1, C, H]``, those of the first tokens of a chunk's C texts.
    """
    behind = _behind_attention(model)
    if behind is None or _leave_out in behind._forward_pre_hooks.values():
        return None
    return behind.register_forward_pre_hook(_leave_out)


def compute_all_tokens(model: nn.Module) -> None:
    """Undo :func:`leave_others_out`."""
    for module in model.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is _leave_out:
                del module._forward_pre_hooks[key]


def attended(first: Tensor | None, n_tokens: int = 0) -> None:
    """Each layer's attention says so: of its ``n_tokens`` those at ``first`` ``[C]`` alone are read
    in the end. None: all.

    Every layer says it again, so that a layer that is computed again in the backward pass finds it,
    too.
    """
    if not torch.compiler.is_compiling():  # what is compiled computes all
        _first.set(None if first is None else (first, n_tokens))


def _behind_attention(model: PreTrainedModel) -> nn.Module | None:
    """The last layer's module that takes the mixed values and the layer's input, each ``[1, T, H]``."""
    attention = getattr(layers_of(model)[-1], "attention", None)
    behind = getattr(attention, "output", None)
    return behind if isinstance(behind, nn.Module) else None


def _leave_out(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A hook: the first tokens' rows of the arguments; None leaves them as they are."""
    read_alone = None if torch.compiler.is_compiling() else _first.get()
    if read_alone is None:
        return None
    _first.set(None)  # it counts once: the next chunk's attention says it anew
    first, n_tokens = read_alone
    # Padded texts are [C, L, H] and pass, even where an implementation that is not ours computed
    # their attention after a packed read was broken off.
    if all(x.shape[:2] == (1, n_tokens) for x in args):
        return tuple(x[:, first] for x in args)
    return None
