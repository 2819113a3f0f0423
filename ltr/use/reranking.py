"""Tables of documents ranked for a query, runs ranked again, and searches of many queries."""

from collections.abc import Iterator

import numpy as np

from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.data.tokens import TokenStore
from ltr.data.trec import Ranked
from ltr.use.rankers import RankedDocument, TextRanker
from ltr.use.retriever import SearchableCorpus

QUERIES = 1024  # searched for at once


def ranked(ranker: TextRanker, query: str, documents: TextTable) -> list[RankedDocument]:
    """All documents for a query, best first; of equal scores the later id comes first, as in
    trec_eval.
    """
    rows = np.zeros(len(documents), np.int64), np.arange(len(documents))
    scores = ranker.score_rows(ranker.tokens([query], "query"), ranker.stored(documents), *rows)
    best = QueryLists.from_rows(*rows, scores).best_first()
    found = zip(best.doc_rows.tolist(), best.values.tolist(), strict=True)
    return [
        RankedDocument(row, score, documents.texts[row], documents.ids[row]) for row, score in found
    ]


def reranked(
    ranker: TextRanker, queries: TextTable, documents: TextTable, lists: QueryLists
) -> QueryLists:
    """Lists with the scores of a ranker as their values, best first; of equal scores the later id
    comes first, as in trec_eval.

    Raises:
        InputError: for a query that leaves a cross-encoder no room for a document.
    """
    return lists._replace(values=scores_of(ranker, queries, documents, lists)).best_first()


def scores_of(
    ranker: TextRanker, queries: TextTable, documents: TextTable, lists: QueryLists
) -> np.ndarray:
    """The scores of the documents of lists, in their order; an InputError as :func:`reranked`."""
    asked, found = (
        TokenStore.open(*side)
        for side in zip((queries, documents), ranker.reads.tokenizers, strict=True)
    )
    ranker.reads.check_queries(queries.ids, queries.texts, asked)
    return ranker.score_rows(
        asked, found, np.repeat(lists.query_rows, np.diff(lists.offsets)), lists.doc_rows
    )


def lines(lists: QueryLists, queries: TextTable, documents: TextTable) -> Iterator[Ranked]:
    """The lines of a run file."""
    for query_row in lists.query_rows.tolist():
        for doc, score in zip(*(one.tolist() for one in lists.of(query_row)), strict=True):
            yield Ranked(queries.ids[query_row], documents.ids[doc], score)


def searched_twice(
    corpus: SearchableCorpus, second: TextRanker, query: str, depth: int
) -> list[RankedDocument]:
    """The ``depth`` documents that a search finds, in the order of a second ranker."""
    hits = corpus.search(query, depth)
    return [
        hits[one.place]._replace(score=one.score)
        for one in second.rank(query, [hit.text for hit in hits])
    ]


def lines_of_search(
    corpus: SearchableCorpus,
    queries: TextTable,
    k: int,
    second: TextRanker | None = None,
    depth: int = 100,
) -> Iterator[Ranked]:
    """The lines of a run file: the k best documents for each query of a table.

    Args:
        corpus: what is searched.
        queries: what is asked.
        k: documents per query.
        second: orders again the ``depth`` documents that are found for each; None: nothing does.
        depth: see ``second``.
    """
    for begin in range(0, len(queries), QUERIES):
        rows = list(range(begin, min(begin + QUERIES, len(queries))))
        scores, docs = corpus.search_all(
            [queries.texts[row] for row in rows], k if second is None else depth
        )
        real = docs >= 0
        found = QueryLists.from_rows(np.repeat(rows, real.sum(axis=1)), docs[real], scores[real])
        best = found if second is None else reranked(second, queries, corpus.documents, found)
        yield from lines(best.first(k), queries, corpus.documents)
