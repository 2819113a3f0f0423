"""Embeddings to scores: higher is better. A distance becomes a score by one minus sign, here and
nowhere else.

A similarity is one class here: what it computes of tensors, and how a search compares with it. The
functions take queries ``[…, A, H]`` and documents ``[…, D, H]`` and return ``[…, A, D]``, in
float32 or better also under autocast: scores rounded to 16 bits would tie. Letters of shapes: a
query or anchor, d document, h dimension.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import one_of


def dot(queries: Tensor, docs: Tensor) -> Tensor:
    """Inner product.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[11.,  2.]])
    """
    queries = _precise(queries)
    docs = _precise(docs)
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
    """Moved by the mean document, which changes no distance: where all embeddings lie close,
    products keep more digits.
    """
    queries = _precise(queries)
    docs = _precise(docs)
    if not docs.shape[-2]:
        return queries, docs
    centre = docs.detach().mean(dim=-2, keepdim=True)
    return queries - centre, docs - centre


def _squared_euclidean(queries: Tensor, docs: Tensor) -> Tensor:
    squares_a = queries.square().sum(dim=-1).unsqueeze(-1)
    squares_d = docs.square().sum(dim=-1).unsqueeze(-2)
    return (2 * dot(queries, docs) - squares_a - squares_d).clamp(max=0)


class _Euclidean(torch.autograd.Function):
    """By one matrix product, with the scores as the only matrix kept: autograd's own form keeps
    four.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, docs: Tensor) -> Tensor:
        scores_ad = _squared_euclidean(queries, docs).neg_().sqrt_().neg_()
        ctx.save_for_backward(queries, docs, scores_ad)
        return scores_ad

    @staticmethod
    def backward(ctx: Any, gradient_ad: Tensor) -> tuple[Tensor, Tensor]:
        queries, docs, scores_ad = ctx.saved_tensors
        # d score / d query = (query − doc) / score, since the score is minus the distance. In
        # operations that autograd can differentiate again, except where the distance is 0.
        zero_ad = scores_ad == 0
        weight_ad = (gradient_ad / scores_ad.masked_fill(zero_ad, 1.0)).masked_fill(zero_ad, 0.0)
        with torch.autocast(queries.device.type, enabled=False):
            of_queries = weight_ad.sum(dim=-1, keepdim=True) * queries - weight_ad @ docs
            of_docs = (
                weight_ad.sum(dim=-2).unsqueeze(-1) * docs - weight_ad.transpose(-1, -2) @ queries
            )
        return of_queries, of_docs


class Similarity:
    """How a query and a document are compared, by their embeddings.

    A search compares prepared embeddings by their inner products, or by their squared distances;
    its scores become those of the similarity by a function that does not decrease.

    Attributes:
        name: the option of a dual encoder.
        by_distance: whether a search compares squared distances, else inner products.
        saved_as: what sentence-transformers calls it.
        unit: of :meth:`distance`.
    """

    name: str
    by_distance: bool = False
    saved_as: str
    unit: str = "euclidean"

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Scores ``[…, A, D]``, with gradients."""
        raise NotImplementedError

    def distance(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Distances ``[…, A, D]``, at least 0, as negatives are mined with them."""
        return -euclidean(queries, docs)

    def prepared(self, embeddings: np.ndarray, centre: np.ndarray | None) -> np.ndarray:
        """A copy of embeddings ``[D, H]`` as a search compares them.

        Subtracting the ``centre`` ``[H]`` changes no distance, but keeps digits where all
        embeddings lie close together. None where products are compared.
        """
        embeddings = np.array(embeddings, dtype=np.float32, order="C")
        if centre is not None:
            embeddings -= centre
        return embeddings

    def of_search(self, scores: Tensor) -> Tensor:
        """The scores of what a search has found: of inner products, or of minus squared
        distances.
        """
        return scores

    def of_pairs(self, queries: np.ndarray, docs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores ``[P]`` and distances ``[P]`` float32 of pairs of embeddings ``[P, H]``."""
        queries = self.prepared(queries, None)
        docs = self.prepared(docs, None)
        distances = np.linalg.norm(queries - docs, axis=1)
        if self.by_distance:
            scores = -np.square(distances)
        else:
            scores = np.einsum("ph,ph->p", queries, docs)
        return self.of_search(torch.from_numpy(scores)).numpy(), distances


class Dot(Similarity):
    """See :func:`dot`."""

    name = "dot"
    saved_as = "dot"

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        return dot(queries, docs)


class Cosine(Similarity):
    """See :func:`cosine`; distances are of embeddings of length 1."""

    name = "cosine"
    saved_as = "cosine"
    unit = "euclidean, of embeddings of length 1"

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        return cosine(queries, docs)

    def distance(self, queries: Tensor, docs: Tensor) -> Tensor:
        queries = F.normalize(_precise(queries), dim=-1)
        docs = F.normalize(_precise(docs), dim=-1)
        return -euclidean(queries, docs)

    def prepared(self, embeddings: np.ndarray, centre: np.ndarray | None) -> np.ndarray:
        embeddings = super().prepared(embeddings, centre)
        embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        return embeddings


class SquaredEuclidean(Similarity):
    """See :func:`squared_euclidean`."""

    name = "squared_euclidean"
    saved_as = "euclidean"
    by_distance = True

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        return squared_euclidean(queries, docs)


class Euclidean(Similarity):
    """See :func:`euclidean`."""

    name = "euclidean"
    saved_as = "euclidean"
    by_distance = True

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        return euclidean(queries, docs)

    def of_search(self, scores: Tensor) -> Tensor:
        return -(-scores).sqrt()


SIMILARITIES = {known.name: known for known in (Dot(), Cosine(), Euclidean(), SquaredEuclidean())}


def similarity_of(name: str) -> Similarity:
    """The similarity of a name; an InputError for an unknown one."""
    one_of(SIMILARITIES, similarity=name)
    return SIMILARITIES[name]
