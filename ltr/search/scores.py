"""Scores of any pairs of a query and a document, by any ranker that reads texts.

Letters of shapes: P pairs, H the size of an embedding.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ltr.data.collate import Collator, PairCollator, TextCollator
from ltr.data.formats import ApartTexts, FeatureVectors, JoinedPairs, Reads
from ltr.data.progress import track
from ltr.data.query_lists import LabelledList
from ltr.data.tokens import Tokens
from ltr.errors import InputError
from ltr.models.dual_encoder import DualEncoder
from ltr.models.encoder.chunks import chunk_spans
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.ranker import Ranker
from ltr.search.encode import BATCH_TOKENS, encode_in_memory
from ltr.spans import spans

BLOCK = 65536  # pairs of embeddings compared at once


def pair_scores(
    ranker: Ranker, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
) -> np.ndarray:
    """Score each query with the document beside it.

    In eval mode and without gradients; for half precision call it under ``torch.autocast``. A dual
    encoder reads each text once.

    Args:
        ranker: a cross-encoder, a dual encoder, or one of your own.
        queries, docs: the tokens of the texts, by the ranker's own tokenizers.
        query_rows, doc_rows: ``[P]`` int64, which texts.

    Returns:
        ``[P]`` float32, higher is better.

    Raises:
        InputError: for a ranker of feature vectors, or one that gives NaN.
    """
    if isinstance(ranker, DualEncoder):
        scores = _compared(ranker, queries, docs, query_rows, doc_rows)
    else:
        scores = _read_together(ranker, queries, docs, query_rows, doc_rows)
    if np.isnan(scores).any():
        raise InputError(
            "scores must be numbers, got NaN; the ranker has diverged: train it again with a lower learning rate"
        )
    return scores


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device, with all its parts."""
    parts: list[Any] = []
    for part in batch:
        if isinstance(part, Tensor):
            parts.append(part.to(device))
        else:
            parts.append(None if part is None else moved(part, device))
    return type(batch)(*parts)


def _read_together(
    ranker: Ranker, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
) -> np.ndarray:
    reads = ranker.reads
    device = next(ranker.parameters()).device
    collator = _collator(reads, queries, docs)
    lengths = docs.lengths(doc_rows) + queries.lengths(query_rows)
    if isinstance(reads, JoinedPairs):
        lengths = reads.lengths(queries.lengths(query_rows), docs.lengths(doc_rows))
    order = np.argsort(-lengths, kind="stable")  # longest first: too little memory shows at once
    scores = np.empty(len(order), np.float32)
    label = np.zeros(1, np.float32)
    batches = [
        order[begin:end] for begin, end in chunk_spans(lengths[order].tolist(), BATCH_TOKENS)
    ]
    with torch.inference_mode(), in_eval_mode(ranker):
        for at in track(batches, "scoring", f"batches of {BATCH_TOKENS} tokens"):
            lists = [
                LabelledList(int(query_rows[i]), doc_rows[i : i + 1], label) for i in at.tolist()
            ]
            scores[at] = ranker(moved(collator(lists), device)).squeeze(1).float().cpu().numpy()
    return scores


def _collator(reads: Reads, queries: Tokens, docs: Tokens) -> Collator:
    if isinstance(reads, JoinedPairs):
        return PairCollator(queries, docs, reads)
    if isinstance(reads, ApartTexts):
        return TextCollator(queries, docs, reads)
    came = "one of feature vectors" if isinstance(reads, FeatureVectors) else type(reads).__name__
    raise InputError(f"texts are scored by a ranker that reads texts, got {came}")


def _compared(
    model: DualEncoder, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
) -> np.ndarray:
    asked, query_at = np.unique(query_rows, return_inverse=True)
    found, doc_at = np.unique(doc_rows, return_inverse=True)
    embedded = []
    device = next(model.parameters()).device
    for tower, tokens, form, rows in (
        (model.query_tower, queries, model.reads.queries, asked),
        (model.doc_tower, docs, model.reads.docs, found),
    ):
        embedded.append(torch.from_numpy(encode_in_memory(tower, tokens, form, rows)))
    scores = np.empty(len(query_rows), np.float32)
    with torch.inference_mode():
        for at in spans(len(scores), BLOCK):
            both = zip(embedded, (query_at, doc_at), strict=True)
            q, d = (side[torch.from_numpy(one[at])].unsqueeze(1).to(device) for side, one in both)
            scores[at] = model.score(q, d).flatten().cpu().numpy()
    return scores
