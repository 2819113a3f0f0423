"""What a ranker will not read of its texts: counted here for what a run says and for what ``ltr check``
shows.
"""

import logging
from dataclasses import dataclass

import numpy as np

from ltr.data.layouts import ApartTexts, JoinedPairs
from ltr.data.template import Side, Template
from ltr.data.tokens import Tokens
from ltr.spans import spans

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 1_000_000  # whose lengths are compared
SHARE_KEPT_WHOLE = 0.99  # of the texts, for the length that is proposed


@dataclass(frozen=True)
class Cut:
    """What is not read of some texts, because of ``max_length`` or of a budget of the template. The
    report of ``ltr check`` has the attributes by their names.

    Attributes:
        side: ``query``, ``document``, or ``pair`` of both, of which the document is cut.
        where: the split, or ``corpus`` for all texts.
        n_texts: how many there are.
        max_length: tokens that are read of each, special ones counted.
        cut_texts: the share that is not read whole.
        cut_tokens: the share of all tokens that is not read, special ones and queries beside a
            document not counted.
        keeps_whole: the smallest length that would keep 99 % of the texts whole.
    """

    side: str
    where: str
    n_texts: int
    max_length: int
    cut_texts: float
    cut_tokens: float
    keeps_whole: int


def cut_of(
    layout: JoinedPairs | ApartTexts,
    side: Side,
    where: str,
    uncut: Tokens,
    kept: Tokens,
    rows: np.ndarray | None = None,
    n_beside: np.ndarray | int = 0,
) -> Cut:
    """What is not read of texts.

    Args:
        layout: how the ranker reads texts.
        side: whose texts these are.
        where: the split, or ``corpus`` for all texts.
        uncut: the tokens of all texts, as ``layout.uncut`` gives them.
        kept: those that ``layout.store`` gives.
        rows: which of the texts; None: all.
        n_beside: tokens of the query beside each document, where both are joined.
    """
    is_pair = isinstance(layout, JoinedPairs)
    of_side = layout if isinstance(layout, JoinedPairs) else layout.layout_of(side)
    n_texts = len(uncut) if rows is None else len(rows)
    n_cut = 0
    n_lost = 0
    n_tokens = 0
    counts = np.zeros(1, np.int64)  # of texts, by the length that would keep them whole
    for span in spans(n_texts, TEXTS_AT_ONCE):
        places = np.arange(span.start, span.stop) if rows is None else rows[span]
        beside = n_beside[span] if isinstance(n_beside, np.ndarray) else n_beside
        n_around = of_side.n_special + beside
        lengths = uncut.lengths(places)
        n_read = kept.lengths(places)
        if layout.windows is None or side == "query":
            n_read = np.minimum(n_read, of_side.max_length - n_around)
        lost = np.maximum(lengths - n_read, 0)
        n_cut += int((lost > 0).sum())
        n_lost += int(lost.sum())
        n_tokens += int(lengths.sum())
        n_needed = lengths + n_around
        if isinstance(layout, JoinedPairs) and side == "query":
            n_needed = n_needed + layout.least_beside_query
        more = np.bincount(n_needed, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return Cut(
        side="pair" if is_pair and side == "document" else side,
        where=where,
        n_texts=n_texts,
        max_length=of_side.max_length,
        cut_texts=n_cut / max(1, n_texts),
        cut_tokens=n_lost / max(1, n_tokens),
        keeps_whole=int(np.searchsorted(counts.cumsum(), SHARE_KEPT_WHOLE * n_texts)),
    )


def corpus_cut(
    layout: JoinedPairs | ApartTexts, queries: Tokens, uncut: Tokens, kept: Tokens
) -> Cut:
    """What is not read of all documents, beside a query of median length where both are joined."""
    n_beside = 0
    if isinstance(layout, JoinedPairs) and len(queries):
        n_beside = int(np.median(queries.lengths(np.arange(len(queries)))))
    return cut_of(layout, "document", "corpus", uncut, kept, n_beside=n_beside)


def limits_in_words(template: Template | None, side: Side, max_length: int) -> str:
    """What bounds the texts of a side, by the names of the options."""
    budget = None
    if template is not None:
        budget = template.query_tokens if side == "query" else template.document_tokens
    bound = f"max_length {max_length}"
    return bound if budget is None else f"template.{side}_tokens {budget} (with {bound})"


def say_what_is_cut(
    layout: JoinedPairs | ApartTexts,
    uncut_queries: Tokens,
    queries: Tokens,
    uncut_docs: Tokens,
    docs: Tokens,
) -> None:
    """Say which share of the documents, and of their tokens, is cut; nothing where none is. Of
    documents that are joined with a query, beside one of median length. Likewise of the queries where
    a template has a budget for them: those that ``max_length`` cuts the layout has counted.

    Args:
        layout: how the ranker reads texts.
        uncut_queries, uncut_docs: the tokens of all texts.
        queries, docs: those that are read.
    """
    query_cut = cut_of(layout, "query", "corpus", uncut_queries, queries)
    document_cut = corpus_cut(layout, queries, uncut_docs, docs)
    beside = " beside a query" if isinstance(layout, JoinedPairs) else ""
    mend = "; windows would read them" if layout.windows is None else ""
    has_budget = layout.template is not None and layout.template.query_tokens is not None
    sides: tuple[tuple[Side, bool, str, Cut, str], ...] = (
        ("query", has_budget, "queries", query_cut, ""),
        ("document", True, f"documents{beside}", document_cut, mend),
    )
    for side, is_said, texts, cut, how in sides:
        if is_said and cut.cut_texts > 0:
            log.info(
                "%s cuts %.1f%% of the %s, and leaves %.1f%% of all their tokens unread%s",
                limits_in_words(layout.template, side, cut.max_length),
                100 * cut.cut_texts,
                texts,
                100 * cut.cut_tokens,
                how,
            )
