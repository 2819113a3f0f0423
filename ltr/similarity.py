"""Embeddings to scores: higher is better. A distance becomes a score by one minus sign, here and
nowhere else.

A similarity is one class here: what it computes of tensors, and how a search compares with it. The
functions take queries ``[…, A, H]`` and documents ``[…, D, H]`` and return ``[…, A, D]``, in
float32 or better also under autocast: scores rounded to 16 bits would tie.

Letters of shapes: A queries (or anchors), D documents, H dimensions; ``x_ad`` is ``[…, A, D]``.
"""

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.errors import one_of

# Embeddings on the host, or where a search runs.
Array = TypeVar("Array", np.ndarray, Tensor)


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
    queries, docs = _centred(queries, docs)
    return _minus_squares(queries, docs)


def euclidean(queries: Tensor, docs: Tensor) -> Tensor:
    r"""Minus the distance, :math:`-\lVert q - d \rVert`; where the distance is 0, its gradient is set
    to 0.

    >>> euclidean(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[-5.]])
    """
    queries, docs = _centred(queries, docs)
    return _Euclidean.apply(queries, docs)


def _precise(embeddings: Tensor) -> Tensor:
    """The embeddings in float32 or better."""
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        return embeddings.float()
    return embeddings


def _centred(queries: Tensor, docs: Tensor) -> tuple[Tensor, Tensor]:
    """Both less the mean document. That changes no distance, but where all embeddings lie close
    together, their products keep more digits.
    """
    queries = _precise(queries)
    docs = _precise(docs)
    if not docs.shape[-2]:
        return queries, docs
    centre = docs.detach().mean(dim=-2, keepdim=True)
    return queries - centre, docs - centre


def _minus_squares(queries: Tensor, docs: Tensor) -> Tensor:
    """:func:`squared_euclidean` of embeddings that are centred."""
    squares_a = queries.square().sum(dim=-1).unsqueeze(-1)
    squares_d = docs.square().sum(dim=-1).unsqueeze(-2)
    # −‖q − d‖² = 2 q·d − ‖q‖² − ‖d‖²; rounding could bring it above 0.
    return (2 * dot(queries, docs) - squares_a - squares_d).clamp(max=0)


class _Euclidean(torch.autograd.Function):
    """:func:`euclidean` of embeddings that are centred.

    Its backward pass needs one matrix ``[…, A, D]``, the scores; autograd's own form keeps four.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, docs: Tensor) -> Tensor:
        scores_ad = _minus_squares(queries, docs).neg_().sqrt_().neg_()
        ctx.save_for_backward(queries, docs, scores_ad)
        return scores_ad

    @staticmethod
    def backward(ctx: Any, gradient_ad: Tensor) -> tuple[Tensor, Tensor]:
        queries, docs, scores_ad = ctx.saved_tensors
        # The score is minus the distance, so d score / d query = −(query − doc) / distance
        # = (query − doc) / score, and d score / d doc is minus that. Where the distance is 0, the
        # gradient is set to 0. Plain operations, so that autograd can differentiate them again.
        zero_ad = scores_ad == 0
        weight_ad = (gradient_ad / scores_ad.masked_fill(zero_ad, 1.0)).masked_fill(zero_ad, 0.0)
        weight_a = weight_ad.sum(dim=-1, keepdim=True)
        weight_d = weight_ad.sum(dim=-2).unsqueeze(-1)
        with torch.autocast(queries.device.type, enabled=False):
            gradient_queries = weight_a * queries - weight_ad @ docs
            gradient_docs = weight_d * docs - weight_ad.transpose(-1, -2) @ queries
        return gradient_queries, gradient_docs


class Similarity:
    """How a query and a document are compared, by their embeddings.

    A search compares embeddings, once they went through :meth:`prepare` or
    :meth:`prepare_in_place`, by their inner products or by minus their squared distances.
    :meth:`scores_from_search` makes scores of those numbers, and never changes their order.

    Attributes:
        name: the value of a dual encoder's option ``similarity``.
        by_distance: whether a search compares squared distances, else inner products.
        saved_as: what sentence-transformers calls it.
        unit: the unit of :meth:`distance`.

    Example:
        >>> similarity_of("squared_euclidean").score(torch.tensor([[0.0, 0.0]]), torch.tensor([[[3.0, 4.0]]]))
        tensor([[[-25.]]])
    """

    name: str
    by_distance: bool = False
    saved_as: str
    unit: str = "euclidean"

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Scores ``[…, A, D]``, with gradients."""
        raise NotImplementedError

    def distance(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Distances ``[…, A, D]``, at least 0: those that mined negatives carry."""
        return -euclidean(queries, docs)

    def prepare(self, embeddings: np.ndarray, centre: np.ndarray | None) -> np.ndarray:
        """A copy of embeddings ``[D, H]`` in float32, for a search to compare: see
        :meth:`prepare_in_place`.
        """
        embeddings = np.array(embeddings, dtype=np.float32, order="C")
        self.prepare_in_place(embeddings, centre)
        return embeddings

    def prepare_in_place(self, embeddings: Array, centre: Array | None) -> None:
        """Make embeddings ``[D, H]`` float32 what a search compares.

        Subtracting the ``centre`` ``[H]`` changes no distance, but keeps digits where all
        embeddings lie close together. It is None where inner products are compared: it would
        change those.
        """
        if centre is not None:
            embeddings -= centre

    def scores_from_search(self, compared: Tensor) -> Tensor:
        """Scores from what a search compares: inner products, or minus squared distances."""
        return compared

    def score_pairs(self, queries: np.ndarray, docs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores ``[P]`` and distances ``[P]``, float32, of P queries with one document each; both
        embeddings are ``[P, H]``.
        """
        queries = self.prepare(queries, None)
        docs = self.prepare(docs, None)
        distances = np.linalg.norm(queries - docs, axis=1)
        if self.by_distance:
            compared = -np.square(distances)
        else:
            compared = np.einsum("ph,ph->p", queries, docs)
        scores = self.scores_from_search(torch.from_numpy(compared))
        return scores.numpy(), distances


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

    def prepare_in_place(self, embeddings: Array, centre: Array | None) -> None:
        super().prepare_in_place(embeddings, centre)
        # One form for numpy and torch.
        lengths = (embeddings * embeddings).sum(1) ** 0.5
        embeddings /= lengths[:, None].clip(min=1e-12)


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

    def scores_from_search(self, compared: Tensor) -> Tensor:
        # From minus a squared distance to minus the distance.
        return -torch.sqrt(-compared)


_ALL = (Dot(), Cosine(), Euclidean(), SquaredEuclidean())
SIMILARITIES = {similarity.name: similarity for similarity in _ALL}


def similarity_of(name: str) -> Similarity:
    """The similarity of a name; an InputError for an unknown one."""
    one_of(SIMILARITIES, similarity=name)
    return SIMILARITIES[name]
