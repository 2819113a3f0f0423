"""What a ranker will not read of long documents, said once."""

import logging

import numpy as np

from ltr.data.formats import ApartTexts, JoinedPairs
from ltr.data.tokens import Tokens
from ltr.spans import spans

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 1_000_000  # whose lengths are compared


def say_what_is_cut(reads: JoinedPairs | ApartTexts, queries: Tokens, docs: Tokens) -> None:
    """Say which share of the documents, and of their tokens, is cut at ``max_length``; nothing where
    none is. Beside a query, it is the median one.

    Args:
        reads: how the ranker reads texts.
        queries, docs: the tokens of all texts.
    """
    if reads.windows is not None:
        return
    form = reads if isinstance(reads, JoinedPairs) else reads.docs
    room = form.max_length - form.n_special
    beside = ""
    if isinstance(reads, JoinedPairs) and len(queries):
        room -= int(np.median(queries.lengths(np.arange(len(queries)))))
        beside = " beside a query"
    n_cut = 0
    n_lost = 0
    n_tokens = 0
    for span in spans(len(docs), TEXTS_AT_ONCE):
        lengths = docs.lengths(np.arange(span.start, span.stop))
        beyond = lengths - room
        n_tokens += int(lengths.sum())
        n_cut += int((beyond > 0).sum())
        n_lost += int(beyond.clip(min=0).sum())
    if n_cut == 0:
        return
    log.info(
        "max_length %d cuts %.1f%% of the documents%s, and leaves %.1f%% of all their tokens unread; windows would read them",
        form.max_length,
        100 * n_cut / len(docs),
        beside,
        100 * n_lost / n_tokens,
    )
