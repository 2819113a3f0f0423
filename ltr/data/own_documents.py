"""Queries that are documents of their corpus themselves, as in ArguAna, Quora or a forum."""

from pathlib import Path

import numpy as np

from ltr.data.cache_folder import cached, origin_of
from ltr.data.files import map_array
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable, in_one_line


def own_documents(queries: TextTable, corpus: TextTable) -> np.ndarray:
    """``[Q]`` int64: for each query the row of the document that it is itself; −1 where there is
    none. Cached on disk.

    That is the document with the query's id and text; white space does not count. Where at least half
    of the queries that have the id of a document begin or end its text, beginning or ending it is
    enough: documents have titles that queries have not, or queries are the titles. An id alone says
    nothing: queries and documents are often both numbered.
    """

    def write(folder: Path) -> None:
        np.save(folder / "doc_rows.npy", _find(queries, corpus))

    def load(folder: Path) -> np.ndarray:
        return np.asarray(map_array(folder / "doc_rows.npy"))

    content = f"own-documents-1 {queries.key} {corpus.key}"
    return cached("own-documents", content, write, load, origin_of(queries.folder, corpus.folder))


def _find(queries: TextTable, corpus: TextTable) -> np.ndarray:
    doc_rows = corpus.rows(queries.ids)
    has_same_text = np.zeros(len(doc_rows), dtype=bool)
    begins_or_ends = np.zeros(len(doc_rows), dtype=bool)
    rows_with_same_id = np.flatnonzero(doc_rows >= 0)
    for query_row in rows_with_same_id.tolist():
        query = in_one_line(queries.texts[query_row])
        doc = in_one_line(corpus.texts[int(doc_rows[query_row])])
        has_same_text[query_row] = doc == query
        begins_or_ends[query_row] = f"{doc} ".startswith(f"{query} ") or f" {doc}".endswith(
            f" {query}"
        )
    is_own = begins_or_ends if 2 * begins_or_ends.sum() >= len(rows_with_same_id) else has_same_text
    return np.where(is_own, doc_rows, -1)


def without_own(lists: QueryLists, own_docs: np.ndarray) -> QueryLists:
    """The lists without each query's own document.

    Args:
        lists: of some queries.
        own_docs: ``[Q]`` int64, of all queries, by row; −1 for none.

    >>> lists = QueryLists.from_rows([0, 0, 1], [4, 7, 4], [2.0, 1.0, 3.0])
    >>> without_own(lists, np.array([4, -1])).doc_rows
    array([7, 4])
    """
    counts = np.diff(lists.offsets)
    is_other = lists.doc_rows != np.repeat(own_docs[lists.query_rows], counts)
    if is_other.all():
        return lists
    n_before = np.concatenate([[0], np.cumsum(is_other)])
    return QueryLists(
        lists.query_rows,
        n_before[lists.offsets],
        lists.doc_rows[is_other],
        lists.values[is_other],
    )


def own_documents_line(
    queries: TextTable, corpus: TextTable, query_rows: np.ndarray, left_out: np.ndarray
) -> str:
    """What is told of the queries that are documents themselves; empty where none is.

    Args:
        queries, corpus: the texts.
        query_rows: ``[n]`` int64, the queries that are ranked for.
        left_out: ``[Q]`` int64, by row of a query the document that its ranking leaves out.
    """
    n_own = int((own_documents(queries, corpus)[query_rows] >= 0).sum())
    n_left_out = int((left_out[query_rows] >= 0).sum())
    if not n_own:
        return ""
    line = f"{n_own} of {len(query_rows)} queries are documents of the corpus, by id and text; their rankings leave their own document out, as BEIR's do"
    if n_left_out < n_own:
        line += f", but for {n_own - n_left_out} that are judged relevant for themselves"
    return line
