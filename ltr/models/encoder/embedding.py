"""Token embeddings that get one gradient from all chunks of a batch.

The gradient of MiniLM's table takes 47 MB, nearly all of them zeros. One for each chunk took 8 % of a training step on a CPU.

Shapes: V tokens in the vocabulary, H the hidden size.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from ltr.models.encoder.chunks import Chunk


def use_one_gradient(model: PreTrainedModel) -> None:
    """Turn the embedding of the token ids into a :class:`OneGradientEmbedding`."""
    embedding = model.get_input_embeddings()
    other = embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse
    if type(embedding) is nn.Embedding and not other:
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
    """Of a table ``[V, H]``, the sum over the chunks that have been through the backward pass."""

    def __init__(self, table: Tensor) -> None:
        self._table = table.detach()
        self._sum: Tensor | None = None

    def add(self, ids: Tensor, rows: Tensor) -> None:
        some, at = ids.unique(return_inverse=True)
        of_some = rows.new_zeros(len(some), rows.shape[1]).index_add_(0, at, rows)  # fits the cache; the table does not
        if self._sum is None:
            self._sum = torch.zeros_like(self._table)
        self._sum.index_add_(0, some, of_some)

    def take(self) -> Tensor | None:
        whole, self._sum = self._sum, None
        return whole


class _Table:
    """The weights of an embedding as the chunks of one batch look them up."""

    def __init__(self, weight: Tensor) -> None:
        self.of, self.gradient = weight, _Gradient(weight)
        self.whole: Tensor = _Whole.apply(weight, self.gradient)


_table: ContextVar[_Table | None] = ContextVar("table", default=None)


class OneGradientEmbedding(nn.Embedding):
    """``nn.Embedding``; inside :func:`with_one_gradient` its gradients add up before autograd sees one."""

    def forward(self, input: Tensor) -> Tensor:
        table = _table.get()
        if table is None or table.of is not self.weight or torch.compiler.is_compiling():
            return super().forward(input)
        rows: Tensor = _Rows.apply(table.whole, input, self.padding_idx, table.gradient)
        return rows


class _Whole(torch.autograd.Function):
    """The weights as they are. The backward pass comes here once, after all chunks."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gradient: _Gradient) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradient = gradient
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: None) -> tuple[Tensor | None, None]:
        return ctx.gradient.take(), None


class _Rows(torch.autograd.Function):
    """Rows of the weights. Their gradient goes to the sum; autograd gets None."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding_idx: int | None, gradient: _Gradient) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.padding_idx, ctx.gradient = padding_idx, gradient
        return nn.functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: Tensor) -> tuple[None, ...]:
        (ids,) = ctx.saved_tensors
        ids, rows = ids.flatten(), rows.flatten(0, -2)
        if ctx.padding_idx is not None:
            counts = ids != ctx.padding_idx
            ids, rows = ids[counts], rows[counts]
        ctx.gradient.add(ids, rows)
        return None, None, None, None
