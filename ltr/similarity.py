"""Embeddings to scores: higher is better. A distance becomes a score by one minus sign, here and nowhere else.

Each function takes queries ``[…, A, H]`` and documents ``[…, D, H]`` and returns ``[…, A, D]``, in float32 or better also under
autocast: scores rounded to 16 bits would tie. Letters of shapes: a query or anchor, d document, h dimension.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def dot(queries: Tensor, docs: Tensor) -> Tensor:
    """Inner product.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[11.,  2.]])
    """
    queries, docs = _precise(queries), _precise(docs)
    with torch.autocast(queries.device.type, enabled=False):
        return queries @ docs.transpose(-1, -2)


def cosine(queries: Tensor, docs: Tensor) -> Tensor:
    """Cosine of the angle, from −1 to 1; 0 for an embedding of length 0.

    >>> cosine(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]))
    tensor([[0.7071]])
    """
    return dot(F.normalize(_precise(queries), dim=-1), F.normalize(_precise(docs), dim=-1))


def squared_euclidean(queries: Tensor, docs: Tensor) -> Tensor:
    r"""Minus the squared distance, :math:`-\lVert q - d \rVert^2`.

    >>> squared_euclidean(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[-25.]])
    """
    return _squared_euclidean(*_centred(queries, docs))


def euclidean(queries: Tensor, docs: Tensor) -> Tensor:
    r"""Minus the distance, :math:`-\lVert q - d \rVert`; its gradient is 0 where the distance is.

    >>> euclidean(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[-5.]])
    """
    return _Euclidean.apply(*_centred(queries, docs))


def _precise(embeddings: Tensor) -> Tensor:
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings


def _centred(queries: Tensor, docs: Tensor) -> tuple[Tensor, Tensor]:
    """Moved by the mean document, which changes no distance: where all embeddings lie close, products keep more digits."""
    queries, docs = _precise(queries), _precise(docs)
    if not docs.shape[-2]:
        return queries, docs
    centre = docs.detach().mean(dim=-2, keepdim=True)
    return queries - centre, docs - centre


def _squared_euclidean(queries: Tensor, docs: Tensor) -> Tensor:
    squares_a, squares_d = queries.square().sum(dim=-1).unsqueeze(-1), docs.square().sum(dim=-1).unsqueeze(-2)
    return (2 * dot(queries, docs) - squares_a - squares_d).clamp(max=0)


class _Euclidean(torch.autograd.Function):
    """By one matrix product, with the scores as the only matrix kept: autograd's own form keeps four."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, docs: Tensor) -> Tensor:
        scores_ad = _squared_euclidean(queries, docs).neg_().sqrt_().neg_()
        ctx.save_for_backward(queries, docs, scores_ad)
        return scores_ad

    @staticmethod
    def backward(ctx: Any, gradient_ad: Tensor) -> tuple[Tensor, Tensor]:
        queries, docs, scores_ad = ctx.saved_tensors
        # d score / d query = (query − doc) / score, since the score is minus the distance. In operations that autograd can
        # differentiate again, except where the distance is 0.
        zero_ad = scores_ad == 0
        weight_ad = (gradient_ad / scores_ad.masked_fill(zero_ad, 1.0)).masked_fill(zero_ad, 0.0)
        with torch.autocast(queries.device.type, enabled=False):
            of_queries = weight_ad.sum(dim=-1, keepdim=True) * queries - weight_ad @ docs
            of_docs = weight_ad.sum(dim=-2).unsqueeze(-1) * docs - weight_ad.transpose(-1, -2) @ queries
        return of_queries, of_docs
