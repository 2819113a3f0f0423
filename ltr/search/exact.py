"""Exact search, tile by tile, by faiss or torch; both break ties alike.

Letters of shapes: Q queries, D documents (of all, or of a tile), H dimensions, k documents found
per query.
"""

import numpy as np
import torch
from torch import Tensor

from ltr.data.progress import track
from ltr.search.embeddings import DOCS_AT_ONCE, Embeddings, Prepare
from ltr.search.faiss_index import faiss
from ltr.spans import spans

# A tile has so many queries and DOCS_AT_ONCE documents: 64 MB of scores, whatever D and Q are.
QUERIES_AT_ONCE = 1024
# Tiles of queries that stay prepared while all documents go by: as many numbers as a tile of
# documents has. The queries beyond them are prepared again for each tile of documents, so that
# memory does not grow with them.
TILES_KEPT = DOCS_AT_ONCE // QUERIES_AT_ONCE
# From this number of queries times dimensions, faiss is a quarter to a third faster than torch on a
# CPU. Below it, faiss 1.15 multiplies vector by vector and is 4 to 7 times slower (measured with
# 100,000 documents of 384 dimensions, k = 100 and one thread).
FAISS_PAYS = 128_000


def search_exactly(
    docs: Embeddings,
    queries: np.ndarray,
    k: int,
    prepare: Prepare,
    squared: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Scores and rows of the k best documents of each query; of equal scores the larger rows.

    Args:
        docs: ``[D, H]``, may be a memory map: it is read once, in spans.
        queries: ``[Q, H]``.
        k: documents per query.
        prepare: see :meth:`ltr.similarity.Similarity.prepare`.
        squared: whether the score is minus the squared distance, else the inner product.
        device: where the scores are computed.

    Returns:
        ``[Q, k]`` each, on the CPU; −inf and −1 where there are fewer than k documents.
    """
    # The best so far, as sort keys; at first no document, −1, with the lowest score.
    no_scores = torch.full((len(queries), k), -torch.inf, device=device)
    best_keys = sort_keys(no_scores, torch.tensor(-1, device=device))

    def prepared(query_span: slice) -> Tensor:
        return torch.from_numpy(prepare(queries[query_span])).to(device)

    query_spans = list(spans(len(queries), QUERIES_AT_ONCE))
    kept = [prepared(query_span) for query_span in query_spans[:TILES_KEPT]]
    doc_spans = list(spans(len(docs), DOCS_AT_ONCE))
    for doc_span in track(doc_spans, "searching", f"spans of {DOCS_AT_ONCE} documents"):
        tile_docs = torch.from_numpy(prepare(docs[doc_span])).to(device)
        for number, query_span in enumerate(query_spans):
            tile_queries = kept[number] if number < len(kept) else prepared(query_span)
            scores, rows = _best_of_tile(tile_queries, tile_docs, k, squared)
            tile_keys = sort_keys(scores, rows + doc_span.start)
            both_keys = torch.cat([best_keys[query_span], tile_keys], dim=1)
            best_keys[query_span] = both_keys.topk(k).values
    return scores_and_rows(best_keys.cpu())


def _best_of_tile(queries: Tensor, docs: Tensor, k: int, squared: bool) -> tuple[Tensor, Tensor]:
    """Scores and rows ``[Q, min(k, D)]`` of the best documents of a tile, equal scores in any order.

    Where the k-th score is tied, those with the larger rows are returned.
    """
    n_wanted = min(k + 1, len(docs))  # one more shows whether the k-th score is tied
    if faiss and queries.device.type == "cpu" and queries.numel() >= FAISS_PAYS:
        metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        found = faiss.knn(queries.numpy(), docs.numpy(), n_wanted, metric=metric)
        scores = torch.from_numpy(found[0])
        rows = torch.from_numpy(found[1])
        if squared:
            scores = -scores.clamp(min=0)
    else:
        scores, rows = _scores(queries, docs, squared).topk(n_wanted)
    if n_wanted <= k:
        return scores, rows
    is_tied = scores[:, k - 1] == scores[:, k]
    if is_tied.any():
        every_row = torch.arange(len(docs), device=docs.device)
        every_key = sort_keys(_scores(queries[is_tied], docs, squared), every_row)
        scores[is_tied, :k], rows[is_tied, :k] = scores_and_rows(every_key.topk(k).values)
    return scores[:, :k], rows[:, :k]


def _scores(queries: Tensor, docs: Tensor, squared: bool) -> Tensor:
    """``[Q, D]``: q · d, or −‖q − d‖² = 2 q · d − ‖d‖² − ‖q‖², in the memory of one matrix."""
    if not squared:
        return queries @ docs.T
    scores = torch.addmm(docs.square().sum(dim=1), queries, docs.T, beta=-1, alpha=2)
    return scores.sub_(queries.square().sum(dim=1, keepdim=True)).clamp_(max=0)


def sort_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """One int64 for a score and a row, which sorts by score and then by row: ties are broken the
    same way everywhere.
    """
    # The upper 32 bits have the score, the lower 32 the row + 1: row −1 (no document) becomes 0.
    score_bits = (scores + 0.0).view(torch.int32)  # -0 and 0 are one score
    return (_ordered(score_bits).long() << 32) + (rows + 1)


def scores_and_rows(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and rows from what :func:`sort_keys` made of them."""
    score_bits = _ordered((keys >> 32).int())
    return score_bits.view(torch.float32), (keys & 0xFFFFFFFF) - 1


def _ordered(score_bits: Tensor) -> Tensor:
    """The bits of floats as whole numbers in the order of the floats, or back.

    Read as int32, negative floats come in reverse order. Flipping all their bits but the sign puts
    them right; flipping again gives them back.
    """
    is_negative = score_bits >> 31  # all 32 bits of a negative number are 1, else 0
    return score_bits ^ (is_negative & 0x7FFFFFFF)
