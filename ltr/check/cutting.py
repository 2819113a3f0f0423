"""What will be cut: texts and tokens beyond ``max_length``, by side and split."""

from collections.abc import Sequence

import numpy as np

from ltr.check.section import Section
from ltr.compare.tables import Table
from ltr.data.collection import Collection
from ltr.data.cuts import SHARE_KEPT_WHOLE, Cut, corpus_cut, cut_of, limits_in_words
from ltr.data.layouts import ApartTexts, JoinedPairs, PairsAndTexts, TextReads
from ltr.data.template import Side

MUCH = 0.25  # of the tokens of a split's documents: cutting as much is severe


def cutting_section(collection: Collection, reads: TextReads) -> Section:
    """What a ranker will not read of the judged queries and documents of each split, and of the
    whole corpus.
    """
    if isinstance(reads, PairsAndTexts):
        reads = reads.pairs
    cuts = _cuts(collection, reads)
    rows = []
    for cut in cuts:
        rows.append(
            [
                cut.side,
                cut.where,
                f"{cut.n_texts:,}",
                f"{cut.max_length:,}",
                f"{cut.cut_texts:.1%}",
                f"{cut.cut_tokens:.1%}",
                f"{cut.keeps_whole:,}",
            ]
        )
    header = [
        "side",
        "of",
        "texts",
        "max_length",
        "cut",
        "tokens cut",
        f"keeps {SHARE_KEPT_WHOLE:.0%} whole",
    ]
    table = Table("texts that are not read whole; lengths with special tokens", header, rows)
    entries: dict[str, object] = {}
    for cut in cuts:
        entries[f"{cut.side}.{cut.where}"] = {
            "side": cut.side,
            "where": cut.where,
            "n_texts": cut.n_texts,
            "max_length": cut.max_length,
            "cut_texts": cut.cut_texts,
            "cut_tokens": cut.cut_tokens,
            "keeps_whole": cut.keeps_whole,
        }
    lines = _query_lines(collection, reads) + _windows_lines(collection, reads)
    severe = _severe_lines(cuts, reads)
    return Section("What will be cut", [table], lines=lines, severe=severe, entries=entries)


def severe_cuts_of_documents(collection: Collection, reads: TextReads) -> list[str]:
    """What is severe of the documents of ``train``, as a line; arguments as of
    :func:`cutting_section`.
    """
    if isinstance(reads, PairsAndTexts):
        reads = reads.pairs
    return _severe_lines([cut for cut in _cuts(collection, reads) if cut.side != "query"], reads)


def _severe_lines(cuts: Sequence[Cut], reads: JoinedPairs | ApartTexts) -> list[str]:
    """A line for each side of ``train`` of which much is cut."""
    lines = []
    for cut in cuts:
        if cut.cut_tokens >= MUCH and cut.where == "train":
            # A side is query, document or pair, and a pair is cut at its document.
            side: Side = "query" if cut.side == "query" else "document"
            texts = "queries" if side == "query" else "documents"
            lines.append(
                f"{cut.cut_tokens:.0%} of the tokens of the {texts} of train are cut by {limits_in_words(reads.template, side, cut.max_length)}; a length of {cut.keeps_whole:,} keeps {SHARE_KEPT_WHOLE:.0%} of them whole"
            )
    return lines


def _cuts(collection: Collection, reads: JoinedPairs | ApartTexts) -> list[Cut]:
    """Of queries and documents of each split, and of the corpus. A document that is joined with a
    query is counted with each that judges it.
    """
    cut_queries = reads.store(collection.queries, "query")
    cut_docs = reads.store(collection.corpus, "document")
    uncut_queries = reads.uncut(collection.queries, "query")
    uncut_docs = reads.uncut(collection.corpus, "document")
    query_cuts = []
    doc_cuts = []
    for split, judged in collection.qrels.items():
        query_cuts.append(
            cut_of(reads, "query", split, uncut_queries, cut_queries, judged.query_rows)
        )
        doc_rows = np.unique(judged.doc_rows)
        n_query_tokens: np.ndarray | int = 0
        if isinstance(reads, JoinedPairs):
            doc_rows = judged.doc_rows
            n_query_tokens = cut_queries.lengths(judged.query_of_doc)
        doc_cuts.append(
            cut_of(reads, "document", split, uncut_docs, cut_docs, doc_rows, n_query_tokens)
        )
    return [*query_cuts, *doc_cuts, corpus_cut(reads, cut_queries, uncut_docs, cut_docs)]


def _query_lines(collection: Collection, reads: JoinedPairs | ApartTexts) -> list[str]:
    """How many queries are cut, of all; nothing where none is."""
    rows = np.arange(len(collection.queries))
    lengths = reads.uncut(collection.queries, "query").lengths(rows)
    n_read = reads.store(collection.queries, "query").lengths(rows)
    if isinstance(reads, ApartTexts):
        n_read = np.minimum(n_read, reads.queries.max_length - reads.queries.n_special)
    cut_rows = rows[lengths > n_read]
    if not len(cut_rows):
        return []
    return [
        f"{len(cut_rows):,} of {len(rows):,} queries are cut: the longest has {lengths.max():,} tokens, the first is {collection.queries.ids[cut_rows[0]]!r}"
    ]


def _windows_lines(collection: Collection, reads: JoinedPairs | ApartTexts) -> list[str]:
    """How many windows the documents of the corpus have; nothing where these are cut."""
    windows = reads.windows
    if windows is None:
        return []
    counts = reads.n_windows(np.diff(reads.store(collection.corpus, "document").offsets))
    budget = None if reads.template is None else reads.template.document_tokens
    what = "documents are read whole"
    if budget is not None:
        what = f"{budget} tokens of a document are read"
    return [
        f"{what}, in windows of {windows.size} tokens, one every {windows.stride}: {counts.mean():.1f} of a document of the corpus in the mean, {counts.max():,} of the longest"
    ]
