"""Scores of any pairs of a query and a document, by any ranker that reads texts.

Letters of shapes: P pairs, H the size of an embedding.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ltr.data.collate import Collator, PairCollator, TextCollator
from ltr.data.layouts import ApartTexts, FeatureVectors, JoinedPairs, Reads
from ltr.data.progress import track
from ltr.data.query_lists import LabelledList
from ltr.data.tokens import Tokens
from ltr.errors import InputError
from ltr.models.dual_encoder import DualEncoder
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.ranker import Ranker
from ltr.search.embed_texts import BATCH_TOKENS, batches_of_places, encode_in_memory
from ltr.spans import spans

PAIRS_AT_ONCE = 65536  # of embeddings that are compared


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
        InputError: for a ranker of feature vectors, or one that gives NaN or infinity.
    """
    if isinstance(ranker, DualEncoder):
        scores = _scores_of_embeddings(ranker, queries, docs, query_rows, doc_rows)
    else:
        scores = _scores_of_lists(ranker, queries, docs, query_rows, doc_rows)
    is_finite = np.isfinite(scores)
    if not is_finite.all():
        raise InputError(
            f"scores must be finite numbers, got {scores[~is_finite][0]}; the ranker has diverged: train it again with a lower learning rate"
        )
    return scores


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device: all tensors of a NamedTuple, and of those inside it; arrays stay on the
    host.
    """
    parts: list[Any] = []
    for part in batch:
        if isinstance(part, Tensor):
            parts.append(part.to(device))
        elif isinstance(part, tuple):
            parts.append(to_device(part, device))
        else:
            parts.append(part)
    return type(batch)(*parts)


def _scores_of_lists(
    ranker: Ranker, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
) -> np.ndarray:
    """``[P]``: the ranker scores each pair as a list of one document."""
    reads = ranker.reads
    device = next(ranker.parameters()).device
    collator = _collator(reads, queries, docs)
    query_lengths = queries.lengths(query_rows)
    doc_lengths = docs.lengths(doc_rows)
    if isinstance(reads, JoinedPairs):
        lengths = reads.lengths(query_lengths, doc_lengths)
    else:
        lengths = query_lengths + doc_lengths
    scores = np.empty(len(query_rows), np.float32)
    no_label = np.zeros(1, np.float32)  # a list has labels, which scores do not depend on
    batches = batches_of_places(lengths)
    with torch.inference_mode(), in_eval_mode(ranker):
        for places in track(batches, "scoring", f"batches of {BATCH_TOKENS} tokens"):
            lists = []
            for place in places.tolist():
                query_row = int(query_rows[place])
                lists.append(LabelledList(query_row, doc_rows[place : place + 1], no_label))
            batch = to_device(collator(lists), device)
            scores[places] = ranker(batch).squeeze(1).float().cpu().numpy()
    return scores


def _collator(reads: Reads, queries: Tokens, docs: Tokens) -> Collator:
    if isinstance(reads, JoinedPairs):
        return PairCollator(queries, docs, reads)
    if isinstance(reads, ApartTexts):
        return TextCollator(queries, docs, reads)
    kind = type(reads).__name__
    if isinstance(reads, FeatureVectors):
        kind = "one of feature vectors"
    raise InputError(f"texts are scored by a ranker that reads texts, got {kind}")


def _scores_of_embeddings(
    model: DualEncoder, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
) -> np.ndarray:
    """``[P]``: each text that occurs is embedded once, and pairs of embeddings are compared."""
    distinct_queries, query_places = np.unique(query_rows, return_inverse=True)
    distinct_docs, doc_places = np.unique(doc_rows, return_inverse=True)
    reads = model.reads
    embedded_queries = torch.from_numpy(
        encode_in_memory(model.query_tower, queries, reads.queries, distinct_queries)
    )
    form = reads.docs
    firsts = None  # where the pairs of a query with the windows of its document begin
    if form.has_many_embeddings:
        docs, counts = form.windows_of(docs, distinct_docs)
        form = form.without_windows()
        distinct_docs = np.arange(len(docs))
        counts_of_pairs = counts[doc_places]
        firsts = counts_of_pairs.cumsum() - counts_of_pairs
        query_places = np.repeat(query_places, counts_of_pairs)
        first_windows = (counts.cumsum() - counts)[doc_places]
        doc_places = np.arange(len(query_places)) + np.repeat(
            first_windows - firsts, counts_of_pairs
        )
    embedded_docs = torch.from_numpy(encode_in_memory(model.doc_tower, docs, form, distinct_docs))
    device = next(model.parameters()).device
    scores = np.empty(len(query_places), np.float32)
    with torch.inference_mode():
        pair_spans = list(spans(len(scores), PAIRS_AT_ONCE))
        for span in track(pair_spans, "comparing", f"spans of {PAIRS_AT_ONCE} pairs"):
            # Each pair is a batch of one query and one document: [pairs, 1, H].
            q = embedded_queries[torch.from_numpy(query_places[span])].unsqueeze(1)
            d = embedded_docs[torch.from_numpy(doc_places[span])].unsqueeze(1)
            span_scores = model.score(q.to(device), d.to(device))
            scores[span] = span_scores.flatten().cpu().numpy()
    if firsts is not None and len(firsts):
        scores = np.maximum.reduceat(scores, firsts)
    return scores
