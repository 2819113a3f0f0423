"""Exact search, tile by tile: the best documents of some for some queries, by faiss or torch, ties broken alike.

Letters of shapes: Q queries, D documents of a tile, k found per query.
"""

import torch
from torch import Tensor

try:
    import faiss
except ImportError:
    faiss = None

# Queries times dimensions from which faiss takes a quarter to a third less time than torch on a CPU. Below, faiss 1.15 multiplies
# vector by vector, at 4 to 7 times the time of torch (100,000 documents, 384 dimensions, k = 100, one thread).
FAISS_PAYS = 128_000


def best_of_tile(queries: Tensor, docs: Tensor, k: int, squared: bool) -> tuple[Tensor, Tensor]:
    """Scores and rows of the k best documents of a tile, or of all if there are fewer; of equal scores the larger rows.

    Args:
        queries: ``[Q, H]`` float32.
        docs: ``[D, H]`` float32, on the same device.
        k: documents per query.
        squared: whether the score is minus the squared distance, else the inner product.

    Returns:
        ``[Q, min(k, D)]`` each, in no certain order of equal scores.
    """
    most = min(k + 1, len(docs))  # one more shows whether the k-th place is shared
    if faiss is not None and queries.device.type == "cpu" and queries.numel() >= FAISS_PAYS:
        metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        scores, rows = (torch.from_numpy(x) for x in faiss.knn(queries.numpy(), docs.numpy(), most, metric=metric))
        scores = -scores.clamp(min=0) if squared else scores
    else:
        scores, rows = _scores(queries, docs, squared).topk(most)
    if most <= k:
        return scores, rows
    shared = scores[:, k - 1] == scores[:, k]
    if shared.any():
        of_all = keys(_scores(queries[shared], docs, squared), torch.arange(len(docs), device=docs.device))
        scores[shared, :k], rows[shared, :k] = unkeyed(of_all.topk(k).values)
    return scores[:, :k], rows[:, :k]


def _scores(queries: Tensor, docs: Tensor, squared: bool) -> Tensor:
    if not squared:
        return queries @ docs.T
    scores = torch.addmm(docs.square().sum(dim=1), queries, docs.T, beta=-1, alpha=2)
    return scores.sub_(queries.square().sum(dim=1, keepdim=True)).clamp_(max=0)


def keys(scores: Tensor, rows: Tensor) -> Tensor:
    """One int64 for a score and a row that sorts by score, then by row: what breaks ties, and the same way everywhere."""
    bits = (scores + 0.0).view(torch.int32)  # -0 and 0 are one score
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the bits of a negative float sort downwards
    return (bits.long() << 32) + (rows + 1)


def unkeyed(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and rows of what :func:`keys` made."""
    bits = (keys >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32), (keys & 0xFFFFFFFF) - 1
