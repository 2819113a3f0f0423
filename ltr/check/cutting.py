"""What will be cut: texts and tokens beyond ``max_length``, by side and split."""

from dataclasses import dataclass

import numpy as np

from ltr.check.section import Section
from ltr.compare.tables import Table
from ltr.data.collection import Collection
from ltr.data.formats import ApartTexts, JoinedPairs, PairsAndTexts, TextReads
from ltr.data.windows import Windows

WHOLE = 0.99  # of the texts that a length should keep whole
MUCH = 0.25  # of the tokens of a split's documents: cutting as much is severe


@dataclass(frozen=True)
class Cut:
    """What a length does to some texts.

    Attributes:
        side: ``query``, ``document``, or ``pair`` of both.
        where: the split, or ``corpus``.
        n_texts: how many there are.
        max_length: tokens that are read of each, special ones counted.
        cut_texts: the share that is longer.
        cut_tokens: the share of all tokens that is not read.
        keeps_whole: the smallest length that keeps 99 % of the texts whole.
    """

    side: str
    where: str
    n_texts: int
    max_length: int
    cut_texts: float
    cut_tokens: float
    keeps_whole: int


def cut_of(
    lengths: np.ndarray, max_length: int, side: str, where: str, windows: Windows | None = None
) -> Cut:
    """What a length does to texts of these lengths, ``[N]`` with their special tokens; N > 0. In
    windows texts are read whole.
    """
    lost = (lengths - max_length).clip(min=0)
    if windows is not None:
        lost = np.zeros_like(lengths)
    return Cut(
        side,
        where,
        len(lengths),
        max_length,
        float((lost > 0).mean()),
        float(lost.sum() / lengths.sum()),
        int(np.quantile(lengths, WHOLE, method="inverted_cdf")),
    )


def cutting_section(collection: Collection, reads: TextReads) -> Section:
    """What a ranker will not read of the judged queries and documents of each split, and of the
    whole corpus.

    Args:
        collection: the texts.
        reads: how the ranker reads them.
    """
    if isinstance(reads, PairsAndTexts):
        reads = reads.pairs
    cuts = _of_pairs(collection, reads) if isinstance(reads, JoinedPairs) else []
    if isinstance(reads, ApartTexts):
        cuts = _of_texts(collection, reads)
    rows = []
    severe = []
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
        if cut.cut_tokens >= MUCH and cut.where == "train":
            severe.append(
                f"{cut.cut_tokens:.0%} of the tokens of the {_many(cut.side)} of train are cut by max_length {cut.max_length}; {cut.keeps_whole:,} keeps {WHOLE:.0%} of them whole"
            )
    header = ["side", "of", "texts", "max_length", "cut", "tokens cut", f"keeps {WHOLE:.0%} whole"]
    table = Table("texts beyond max_length, special tokens counted", header, rows)
    entries: dict[str, object] = {f"{cut.side}.{cut.where}": vars(cut) for cut in cuts}
    lines = _windows_lines(collection, reads)
    return Section("What will be cut", [table], lines, severe, entries)


def _many(side: str) -> str:
    return "queries" if side == "query" else f"{side}s"


def _of_texts(collection: Collection, reads: ApartTexts) -> list[Cut]:
    """Of queries and documents that are read apart."""
    queries = reads.queries.store(collection.queries)
    docs = reads.docs.store(collection.corpus)
    longest = reads.docs.max_length
    of_queries = []
    of_docs = []
    for split, judged in collection.qrels.items():
        lengths = queries.lengths(judged.query_rows) + reads.queries.n_special
        of_queries.append(cut_of(lengths, reads.queries.max_length, "query", split))
        lengths = docs.lengths(np.unique(judged.doc_rows)) + reads.docs.n_special
        of_docs.append(cut_of(lengths, longest, "document", split, reads.windows))
    lengths = np.diff(docs.offsets) + reads.docs.n_special
    of_docs.append(cut_of(lengths, longest, "document", "corpus", reads.windows))
    return of_queries + of_docs


def _of_pairs(collection: Collection, reads: JoinedPairs) -> list[Cut]:
    """Of each judged document with its query; of the corpus, with the median query of all. The
    document is cut, never the query.
    """
    queries = reads.store(collection.queries, "query")
    docs = reads.store(collection.corpus, "document")
    cuts = []
    for split, judged in collection.qrels.items():
        query_of_doc = np.repeat(judged.query_rows, np.diff(judged.offsets))
        lengths = queries.lengths(query_of_doc) + docs.lengths(judged.doc_rows) + reads.n_special
        cuts.append(cut_of(lengths, reads.max_length, "pair", split, reads.windows))
    median = int(np.median(np.diff(queries.offsets)))
    lengths = np.diff(docs.offsets) + median + reads.n_special
    cuts.append(cut_of(lengths, reads.max_length, "pair", "corpus", reads.windows))
    return cuts


def _windows_lines(collection: Collection, reads: JoinedPairs | ApartTexts) -> list[str]:
    """How many windows the documents of the corpus have; nothing where these are cut."""
    windows = reads.windows
    if windows is None:
        return []
    counts = reads.n_windows(np.diff(reads.store(collection.corpus, "document").offsets))
    return [
        f"documents are read whole, in windows of {windows.size} tokens, one every {windows.stride}: {counts.mean():.1f} of a document of the corpus in the mean, {counts.max():,} of the longest"
    ]
