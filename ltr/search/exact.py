"""Exact search, tile by tile, by faiss or torch; both break ties alike.

Letters of shapes: Q queries, D documents (of all, or of a tile), H dimensions, k documents found
per query.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ltr.search.embeddings import DOCS_AT_ONCE
from ltr.search.faiss_index import faiss
from ltr.search.tiles import Tiles
from ltr.spans import spans
from ltr.tf32 import unrounded_products

# A tile has so many queries and DOCS_AT_ONCE documents: 64 MB of scores, whatever D and Q are.
QUERIES_AT_ONCE = 1024
# Tiles of queries that stay prepared on a CPU while all documents go by: as many numbers as a tile
# of documents has. The queries beyond them are prepared again for each tile of documents, so that
# memory does not grow with them.
TILES_KEPT = DOCS_AT_ONCE // QUERIES_AT_ONCE
# On a GPU all tiles of queries stay, as to send one again is a wait for the GPU: so many numbers at
# most, 256 MB, and for queries beyond them all documents go by again.
NUMBERS_ON_GPU = 2**26
# From this number of queries times dimensions, faiss is a quarter to a third faster than torch on a
# CPU. Below it, faiss 1.15 multiplies vector by vector and is 4 to 7 times slower (measured with
# 100,000 documents of 384 dimensions, k = 100 and one thread).
FAISS_PAYS = 128_000


# Queries and a tile of documents as they are compared, k, and whether by squared distances → scores
# and rows [Q, min(k, n)] of the best documents of the tile, equal scores in any order; and [Q], the
# score of documents that were left out though their score is that of the last one, NaN for none.
BestOfTile = Callable[[Tensor, Tensor, int, bool], tuple[Tensor, Tensor, Tensor]]


def search_exactly(tiles: Tiles, queries: np.ndarray, k: int) -> tuple[Tensor, Tensor]:
    """Scores and rows of the k best documents of each query; of equal scores the larger rows.

    Scores are computed where the documents are, with all digits of float32.

    Args:
        tiles: the D documents.
        queries: ``[Q, H]``.
        k: documents per query.

    Returns:
        ``[Q, k]`` each, on the CPU: inner products or minus squared distances; −inf and −1 where
        there are fewer than k documents.
    """
    n_at_once = max(1, len(queries))
    if tiles.on_gpu:
        n_tiles = NUMBERS_ON_GPU // max(1, QUERIES_AT_ONCE * queries.shape[1])
        n_at_once = max(1, n_tiles) * QUERIES_AT_ONCE
    best_keys = torch.empty(len(queries), k, dtype=torch.int64)
    with unrounded_products():
        for span in spans(len(queries), n_at_once):
            best_keys[span] = _best_keys_of_all(tiles, queries[span], k)
    return scores_and_rows(best_keys)


def _best_keys_of_all(tiles: Tiles, queries: np.ndarray, k: int) -> Tensor:
    """The best documents of each query as sort keys ``[Q, k]`` on the CPU, best first."""
    best_of_tile = best_without_ties if tiles.on_gpu else best_on_cpu
    best_keys, left_out = _best_keys(tiles, queries, k, best_of_tile)
    # A document that was left out matters where its score is the k-th best of all.
    last_scores, _ = scores_and_rows(best_keys[:, -1])
    is_open = (left_out == last_scores).cpu()
    best_keys = best_keys.cpu()
    if is_open.any():
        open_queries = queries[is_open.numpy()]
        best_keys[is_open] = _best_keys(tiles, open_queries, k, best_by_key)[0].cpu()
    return best_keys


def _best_keys(
    tiles: Tiles, queries: np.ndarray, k: int, best_of_tile: BestOfTile
) -> tuple[Tensor, Tensor]:
    """The best documents of each query as sort keys ``[Q, k]``, best first; and the highest score
    with which ``best_of_tile`` left out documents, ``[Q]``, NaN for none.
    """
    squared = tiles.similarity.by_distance
    # At first no document, −1, with the lowest score.
    no_scores = torch.full((len(queries), k), -torch.inf, device=tiles.device)
    best_keys = sort_keys(no_scores, torch.tensor(-1, device=tiles.device))
    left_out = torch.full((len(queries),), torch.nan, device=tiles.device)
    query_spans = list(spans(len(queries), QUERIES_AT_ONCE))
    n_kept = len(query_spans) if tiles.on_gpu else TILES_KEPT
    kept = [tiles.prepared(queries[query_span]) for query_span in query_spans[:n_kept]]
    first_row = 0
    for tile in tiles:
        for number, query_span in enumerate(query_spans):
            is_kept = number < len(kept)
            tile_queries = kept[number] if is_kept else tiles.prepared(queries[query_span])
            scores, rows, left_out_here = best_of_tile(tile_queries, tile, k, squared)
            tile_keys = sort_keys(scores, rows + first_row)
            both_keys = torch.cat([best_keys[query_span], tile_keys], dim=1)
            best_keys[query_span] = both_keys.topk(k).values
            left_out[query_span] = torch.fmax(left_out[query_span], left_out_here)
        first_row += len(tile)
    return best_keys, left_out


def best_on_cpu(
    queries: Tensor, docs: Tensor, k: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A :data:`BestOfTile` that leaves none out: where the k-th score is tied, it looks again."""
    n_wanted = min(k + 1, len(docs))  # one more shows whether the k-th score is tied
    if faiss and queries.numel() >= FAISS_PAYS:
        metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        found = faiss.knn(queries.numpy(), docs.numpy(), n_wanted, metric=metric)
        scores = torch.from_numpy(found[0])
        rows = torch.from_numpy(found[1])
        if squared:
            scores = -scores.clamp(min=0)
    else:
        scores, rows = _scores(queries, docs, squared).topk(n_wanted)
    if n_wanted > k:
        is_tied = scores[:, k - 1] == scores[:, k]
        if is_tied.any():
            best = best_by_key(queries[is_tied], docs, k, squared)
            scores[is_tied, :k], rows[is_tied, :k], _ = best
    return scores[:, :k], rows[:, :k], _none_left_out(queries)


def best_without_ties(
    queries: Tensor, docs: Tensor, k: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A :data:`BestOfTile` for a GPU, for which the host need not wait: it says with which score
    documents were left out. Sort keys of all scores would leave none out, but move 1.58 GB instead
    of 0.16 for 1,024 queries and 16,384 documents of 384 dimensions (counted, each input read once).
    """
    n_wanted = min(k + 1, len(docs))
    scores, rows = _scores(queries, docs, squared).topk(n_wanted)
    left_out = _none_left_out(queries)
    if n_wanted > k:
        is_tied = scores[:, k - 1] == scores[:, k]
        left_out = torch.where(is_tied, scores[:, k], left_out)
    return scores[:, :k], rows[:, :k], left_out


def best_by_key(
    queries: Tensor, docs: Tensor, k: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A :data:`BestOfTile` that leaves none out, by a sort key for each score."""
    every_row = torch.arange(len(docs), device=docs.device)
    every_key = sort_keys(_scores(queries, docs, squared), every_row)
    scores, rows = scores_and_rows(every_key.topk(min(k, len(docs))).values)
    return scores, rows, _none_left_out(queries)


def _none_left_out(queries: Tensor) -> Tensor:
    return queries.new_full((len(queries),), torch.nan)


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
