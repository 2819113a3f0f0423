"""Tables of documents ranked for a query, runs ranked again, and searches of many queries."""

from collections.abc import Iterator

import numpy as np

from ltr.data.own_documents import own_documents, without_own
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.data.trec import RunLine
from ltr.spans import spans
from ltr.use.calibration.conformal import Kept
from ltr.use.rankers import RankedDocument, TextRanker, with_probabilities
from ltr.use.retriever import SearchableCorpus

QUERIES_AT_ONCE = 1024
DOCS_AT_ONCE = 65_536  # that are scored together for one query


def rank_table(
    ranker: TextRanker,
    query: str,
    documents: TextTable,
    k: int | None,
    instruction: str | None = None,
    *,
    keep: float | None = None,
    kept: Kept = "all",
) -> list[RankedDocument]:
    """The k best of all documents for a query (None: all), best first; of equal scores the later id comes first,
    as in trec_eval. ``keep`` and ``kept`` are those of :meth:`ltr.use.rankers.TextRanker.rank`.
    """
    calibration = ranker.calibration_for(keep, kept)
    query_tokens = ranker.reads.tokens([query], "query", ranker.instructions(instruction, 1))
    doc_tokens = ranker.reads.store(documents, "document")
    scores = np.empty(len(documents), np.float32)
    for span in spans(len(documents), DOCS_AT_ONCE):
        doc_rows = np.arange(span.start, span.stop)
        query_rows = np.zeros(len(doc_rows), np.int64)
        scores[span] = ranker.score_rows(query_tokens, doc_tokens, query_rows, doc_rows)
    # The last document comes first, so that it does so among equal scores.
    best_first = len(scores) - 1 - np.argsort(-scores[::-1], kind="stable")
    if calibration is not None and keep is not None:
        best_first = best_first[calibration.keeps(scores[best_first], keep, kept)]
    ranking = []
    for row in best_first[:k].tolist():
        score = float(scores[row])
        ranking.append(RankedDocument(row, score, documents.texts[row], documents.ids[row]))
    return ranking if calibration is None else with_probabilities(ranking, calibration)


def rerank(
    ranker: TextRanker, queries: TextTable, documents: TextTable, lists: QueryLists
) -> QueryLists:
    """Lists with the scores of a ranker as their values, best first; of equal scores the later id
    comes first, as in trec_eval.

    Raises:
        InputError: for an instruction that leaves no room for a text.
    """
    return lists._replace(values=scores_of(ranker, queries, documents, lists)).best_first()


def scores_of(
    ranker: TextRanker, queries: TextTable, documents: TextTable, lists: QueryLists
) -> np.ndarray:
    """The scores of the documents of lists, in their order; an InputError as :func:`rerank`."""
    query_tokens = ranker.reads.store(queries, "query")
    doc_tokens = ranker.reads.store(documents, "document")
    return ranker.score_rows(query_tokens, doc_tokens, lists.query_of_doc, lists.doc_rows)


def run_lines(lists: QueryLists, queries: TextTable, documents: TextTable) -> Iterator[RunLine]:
    """The lines of a run file."""
    for query_row in lists.query_rows.tolist():
        doc_rows, scores = lists.of(query_row)
        for doc_row, score in zip(doc_rows.tolist(), scores.tolist(), strict=True):
            yield RunLine(queries.ids[query_row], documents.ids[doc_row], score)


def search_and_rerank(
    corpus: SearchableCorpus,
    second: TextRanker,
    query: str,
    depth: int,
    instruction: str | None = None,
) -> list[RankedDocument]:
    """The ``depth`` documents that a search finds, in the order of a second ranker. An instruction
    is read by those of the two that read any.
    """
    first_reads = corpus.retriever.reads_instructions or not second.reads_instructions
    hits = corpus.search(query, depth, instruction if first_reads else None)
    own = instruction if second.reads_instructions else None
    ranking = []
    for ranked in second.rank(query, [hit.text for hit in hits], instruction=own):
        hit = hits[ranked.place]
        ranking.append(hit._replace(score=ranked.score))
    return ranking


def search_run_lines(
    corpus: SearchableCorpus,
    queries: TextTable,
    k: int,
    second: TextRanker | None = None,
    depth: int = 100,
    own_docs: np.ndarray | None = None,
) -> Iterator[RunLine]:
    """The lines of a run file: the k best documents for each query of a table, without the one that
    the query is itself (:func:`ltr.data.own_documents.own_documents`).

    Args:
        corpus: what is searched.
        queries: what is asked.
        k: documents per query.
        second: orders again the ``depth`` documents that are found for each; None: nothing does.
        depth: see ``second``.
        own_docs: ``[Q]`` int64, the documents that the queries are and that are left out, by row; −1
            for none. None: all that they are.
    """
    n_found = k if second is None else depth
    if own_docs is None:
        own_docs = own_documents(queries, corpus.documents)
    # One more where a query may find itself.
    n_searched = n_found + 1 if (own_docs >= 0).any() else n_found
    begins = range(0, len(queries), QUERIES_AT_ONCE)
    for begin in track(begins, "searching for", f"blocks of {QUERIES_AT_ONCE} queries"):
        rows = list(range(begin, min(begin + QUERIES_AT_ONCE, len(queries))))
        texts = [queries.texts[row] for row in rows]
        instructions = None
        if queries.instructions is not None and corpus.retriever.reads_instructions:
            instructions = [queries.instructions[row] for row in rows]
        scores, docs = corpus.search_all(texts, n_searched, instructions)
        is_found = docs >= 0  # not -1, which stands where fewer were found
        query_rows = np.repeat(rows, is_found.sum(axis=1))
        lists = QueryLists.from_rows(query_rows, docs[is_found], scores[is_found])
        lists = without_own(lists, own_docs).cut(n_found)
        if second is not None:
            lists = rerank(second, queries, corpus.documents, lists)
        yield from run_lines(lists.cut(k), queries, corpus.documents)
