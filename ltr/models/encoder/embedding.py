"""Token embeddings that get one gradient from all chunks of a batch.

The gradient of MiniLM's table takes 47 MB, nearly all of it zeros. On a CPU one for each chunk took some 25 ms a chunk.

Shapes: V tokens in the vocabulary, H the hidden size.
"""

from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ltr.models.encoder.chunks import Chunk


def use_one_gradient(model: PreTrainedModel) -> None:
    """Turn the embedding of the token ids into a :class:`OneGradientEmbedding`, if it is a plain one."""
    embedding = model.get_input_embeddings()
    plain = type(embedding) is nn.Embedding and embedding.max_norm is None
    if plain and not (embedding.scale_grad_by_freq or embedding.sparse):
        embedding.__class__ = OneGradientEmbedding


def with_one_gradient(model: PreTrainedModel, read: Callable[[Chunk], Tensor]) -> Callable[[Chunk], Tensor]:
    """``read``, whose calls together make one gradient of the token embeddings. On a CPU only; elsewhere each makes its own."""
    embedding = model.get_input_embeddings()
    trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not (trains and isinstance(embedding, OneGradientEmbedding) and embedding.weight.device.type == "cpu"):
        return read
    table = _Table(embedding.weight)

    def read_from_table(chunk: Chunk) -> Tensor:
        before = _table.set(table)
        try:
            return read(chunk)
        finally:
            _table.reset(before)

    return read_from_table


class _Gradient:
    """The sum over the chunks that a backward pass has been through, ``[V, H]``; one for each pass that is on its way."""

    def __init__(self, weight: Tensor) -> None:
        self._sums = defaultdict[int, Tensor](partial(torch.zeros_like, weight.detach()))

    def add(self, ids: Tensor, rows: Tensor) -> None:
        some, at = ids.unique(return_inverse=True)
        of_some = rows.new_zeros(len(some), rows.shape[1]).index_add_(0, at, rows)  # fits the cache; the table does not
        self._sums[torch._C._current_graph_task_id()].index_add_(0, some, of_some)

    def take(self) -> Tensor | None:
        return self._sums.pop(torch._C._current_graph_task_id(), None)


class _Table:
    """The weights of an embedding as the chunks of one batch look them up."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.gradient = weight, _Gradient(weight)
        self.whole: Tensor = _Whole.apply(weight, self.gradient)


_table: ContextVar[_Table | None] = ContextVar("table", default=None)


class OneGradientEmbedding(nn.Embedding):
    """``nn.Embedding``; inside :func:`with_one_gradient` its gradients add up before autograd sees one."""

    def forward(self, input: Tensor) -> Tensor:
        table = None if torch.compiler.is_compiling() else _table.get()
        if table is None or table.weight is not self.weight:
            return super().forward(input)
        rows: Tensor = _Rows.apply(table.whole, input, self.padding_idx, table.gradient)
        return rows


class _Whole(torch.autograd.Function):
    """The weights as they are. A backward pass comes here once, after all chunks."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gradient: _Gradient) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradient = gradient
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, _: None) -> tuple[Tensor | None, None]:
        return ctx.gradient.take(), None


class _Rows(torch.autograd.Function):
    """Rows of the weights. Their gradient goes to the sum, and autograd gets None."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding_idx: int | None, gradient: _Gradient) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.padding_idx, ctx.gradient = padding_idx, gradient
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> tuple[None, ...]:
        (ids,) = ctx.saved_tensors
        counts = ids != (-1 if ctx.padding_idx is None else ctx.padding_idx)
        ctx.gradient.add(ids[counts], rows[counts])
        return None, None, None, None
