"""Exact search, tile by tile, by faiss or torch; both break ties alike.

Letters of shapes: Q queries, D documents (of all, or of a tile), H dimensions, k documents found
per query.
"""

import numpy as np
import torch
from torch import Tensor

from ltr.search.approximate import faiss
from ltr.search.embeddings import DOCS, Prepare
from ltr.spans import spans

QUERIES = 1024  # of a tile: with DOCS documents, 64 MB of scores, whatever D and Q are
# From this number of queries times dimensions, faiss is a quarter to a third faster than torch on a
# CPU. Below it, faiss 1.15 multiplies vector by vector and is 4 to 7 times slower (100,000
# documents, 384 dimensions, k =
# 100, one thread).
FAISS_PAYS = 128_000


def search_exactly(
    docs: np.ndarray, queries: np.ndarray, k: int, prepare: Prepare, squared: bool
) -> tuple[Tensor, Tensor]:
    """Scores and rows of the k best documents of each query; of equal scores the larger rows.

    Args:
        docs: ``[D, H]``, may be a memory map: it is read once, in spans.
        queries: ``[Q, H]``.
        k: documents per query.
        prepare: see :meth:`ltr.similarity.Similarity.prepare`.
        squared: whether the score is minus the squared distance, else the inner product.

    Returns:
        ``[Q, k]`` each, on the CPU; −inf and −1 where there are fewer than k documents.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    best = keys(torch.full((len(queries), k), -torch.inf), torch.tensor(-1))
    for of_docs in spans(len(docs), DOCS):
        some_docs = torch.from_numpy(prepare(docs[of_docs])).to(device)
        for of_queries in spans(len(queries), QUERIES):
            some_queries = torch.from_numpy(prepare(queries[of_queries])).to(device)
            scores, rows = _best_of_tile(some_queries, some_docs, k, squared)
            found = keys(scores, rows + of_docs.start).cpu()
            best[of_queries] = torch.cat([best[of_queries], found], dim=1).topk(k).values
    return unkeyed(best)


def _best_of_tile(queries: Tensor, docs: Tensor, k: int, squared: bool) -> tuple[Tensor, Tensor]:
    """``[Q, min(k, D)]`` each; equal scores come in no particular order, but the larger rows stay."""
    most = min(k + 1, len(docs))  # one more shows whether the k-th score is tied
    if faiss and queries.device.type == "cpu" and queries.numel() >= FAISS_PAYS:
        metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        scores, rows = (
            torch.from_numpy(x)
            for x in faiss.knn(queries.numpy(), docs.numpy(), most, metric=metric)
        )
        scores = -scores.clamp(min=0) if squared else scores
    else:
        scores, rows = _scores(queries, docs, squared).topk(most)
    if most <= k:
        return scores, rows
    tied = scores[:, k - 1] == scores[:, k]
    if tied.any():
        of_all = keys(
            _scores(queries[tied], docs, squared), torch.arange(len(docs), device=docs.device)
        )
        scores[tied, :k], rows[tied, :k] = unkeyed(of_all.topk(k).values)
    return scores[:, :k], rows[:, :k]


def _scores(queries: Tensor, docs: Tensor, squared: bool) -> Tensor:
    if not squared:
        return queries @ docs.T
    scores = torch.addmm(docs.square().sum(dim=1), queries, docs.T, beta=-1, alpha=2)
    return scores.sub_(queries.square().sum(dim=1, keepdim=True)).clamp_(max=0)


def keys(scores: Tensor, rows: Tensor) -> Tensor:
    """One int64 for a score and a row, which sorts by score and then by row: ties are broken the
    same way everywhere.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0 and 0 are one score
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the bits of a negative float sort downwards
    return (bits.long() << 32) + (rows + 1)


def unkeyed(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and rows from what :func:`keys` made."""
    bits = (keys >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32), (keys & 0xFFFFFFFF) - 1
