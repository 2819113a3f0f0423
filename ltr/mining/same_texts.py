"""What may never be a negative of a query, as it has the text of a relevant document or of the query:
the same text may stand in a collection more than once.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import numpy as np

from ltr.data.collection import Collection
from ltr.data.own_documents import own_documents
from ltr.data.query_lists import OWN_TEXT, QueryLists, cannot_be_negatives
from ltr.data.texts import TextTable
from ltr.spans import spans

PAIRS_AT_ONCE = 2**20  # of a query and a document; some 50 bytes are needed for each


class TextKeys(NamedTuple):
    """What tells which documents have one text: functions of their rows ``[P]``.

    Attributes:
        keys: ``[P]`` int64, equal where the texts are, and hardly ever where they are not.
        lengths: ``[P]`` int64, equal where the texts are. They cost less than keys.
    """

    keys: Callable[[np.ndarray], np.ndarray]
    lengths: Callable[[np.ndarray], np.ndarray]


class SameTextFilter:
    """Tells which documents must not become negatives of a query: those with the text of a document
    that is relevant for it, or of the query itself, under whatever id.

    Args:
        known: by query, what is relevant for it (values above 0), and what has its text (NaN), see
            :func:`known_documents`.
        text_keys: tells which documents have one text.
    """

    def __init__(self, known: QueryLists, text_keys: TextKeys) -> None:
        self._text_keys = text_keys
        is_excluded = cannot_be_negatives(known.values)
        relevant_queries = known.query_of_doc[is_excluded]
        relevant_rows = known.doc_rows[is_excluded]
        lengths = self._text_keys.lengths(relevant_rows)
        self._length_bound = int(lengths.max(initial=0)) + 1
        self._relevant_lengths = np.unique(relevant_queries * self._length_bound + lengths)
        relevant_keys = self._keys_of(relevant_rows)
        self._relevant_keys, places = np.unique(relevant_keys, return_inverse=True)
        self._relevant_pairs = np.unique(self._pair_numbers(relevant_queries, places))

    def __call__(self, query_rows: np.ndarray, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` bool for P pairs of a query and a document, int64 rows, none of them −1."""
        is_same = np.zeros(len(doc_rows), dtype=bool)
        for span in spans(len(doc_rows), PAIRS_AT_ONCE):
            is_same[span] = self._are_same(query_rows[span], doc_rows[span])
        return is_same

    def _are_same(self, query_rows: np.ndarray, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` bool, whether documents have the text of one that is relevant for their query."""
        # Few have even the length of such a text: no other text is read.
        lengths = self._text_keys.lengths(doc_rows)
        numbers = query_rows * self._length_bound + lengths
        is_same = (lengths < self._length_bound) & _are_among(numbers, self._relevant_lengths)
        pairs = np.flatnonzero(is_same)
        keys = self._keys_of(doc_rows[pairs])
        is_known = _are_among(keys, self._relevant_keys)
        places = np.searchsorted(self._relevant_keys, keys[is_known])
        pair_numbers = self._pair_numbers(query_rows[pairs[is_known]], places)
        is_same[pairs[~is_known]] = False
        is_same[pairs[is_known]] = _are_among(pair_numbers, self._relevant_pairs)
        return is_same

    def _pair_numbers(self, query_rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """``[P]`` int64, one for each pair of a query and a place among the relevant keys. Keys
        themselves may be hashes of 64 bits, too large to be joined with a query.
        """
        return query_rows * len(self._relevant_keys) + places

    def _keys_of(self, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` int64; the text of a document that comes again is read once."""
        distinct_rows, inverse = np.unique(doc_rows, return_inverse=True)
        return self._text_keys.keys(distinct_rows)[inverse]


def _are_among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """``[P]`` bool, whether values are among known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    # A value above all others has no place among them; any place will do, it is unequal.
    places = np.searchsorted(known, values).clip(max=len(known) - 1)
    return known[places] == values


def excluded_documents(collection: Collection, *judgements: QueryLists) -> QueryLists:
    """Documents that must not be negatives of a judged query, though nobody judged them relevant
    for it.

    They have the text of the query, or are its own document
    (:func:`ltr.data.own_documents.own_documents`); or they have the text of a document that is
    relevant for the query, or for another one of the same text and instruction. Texts are equal where
    their letters are.

    Args:
        collection: holds the texts.
        judgements: say what is relevant; grades above 0 are.

    Returns:
        These documents by query. Their values are the largest grade that such a text has for such
        a query, and NaN for the text of the query itself, which is listed even where it is judged
        relevant.
    """
    pairs = [np.empty((2, 0), np.int64)]
    grades = [np.empty(0, np.float32)]
    for judged in judgements:
        pairs.append(np.stack([judged.query_of_doc, judged.doc_rows]))
        grades.append(judged.values)
    all_queries, all_docs = np.concatenate(pairs, axis=1)
    all_grades = np.concatenate(grades)
    query_rows = np.unique(all_queries)
    is_relevant = all_grades > 0
    relevant_queries = all_queries[is_relevant]
    relevant_docs = all_docs[is_relevant]

    # Which texts: a line for each class of equal queries and each text.
    class_of_query = classes_of_queries(collection.queries, query_rows)
    hash_of_doc = collection.corpus.text_hashes()
    own_docs = own_documents(collection.queries, collection.corpus)[query_rows]
    has_own = own_docs >= 0
    own_hashes = collection.queries.text_hashes()[query_rows]
    class_of_relevant = class_of_query[np.searchsorted(query_rows, relevant_queries)]
    classes = np.concatenate([class_of_relevant, class_of_query, class_of_query[has_own]])
    hashes = np.concatenate(
        [hash_of_doc[relevant_docs], own_hashes, hash_of_doc[own_docs[has_own]]]
    )
    own_values = np.full(len(query_rows) + has_own.sum(), np.inf, np.float32)
    values = np.concatenate([all_grades[is_relevant], own_values])
    order = np.lexsort((-values, hashes, classes))  # of equal lines the largest value first
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(classes[order]) != 0) | (np.diff(hashes[order]) != 0)
    lines = order[is_first]

    # Which documents: all that have such a text, for each query of the class.
    docs, line_of_doc = _docs_of_hashes(hashes[lines], hash_of_doc)
    queries = _by_number(class_of_query, query_rows).lists_at(classes[lines][line_of_doc])
    queries_per_doc = np.diff(queries.offsets)
    excluded = QueryLists.from_rows(
        queries.doc_rows,  # rows by number: here those of the queries of a class
        np.repeat(docs, queries_per_doc),
        np.repeat(values[lines][line_of_doc], queries_per_doc),
    )
    # Less what people judged relevant for the query, but for its own text, which is known by inf.
    n_docs = len(collection.corpus)
    known = np.unique(relevant_queries * n_docs + relevant_docs)
    excluded_pairs = excluded.query_of_doc * n_docs + excluded.doc_rows
    is_new = ~_are_among(excluded_pairs, known) | np.isinf(excluded.values)
    values = np.where(np.isinf(excluded.values), OWN_TEXT, excluded.values)
    return QueryLists.from_rows(
        excluded.query_of_doc[is_new], excluded.doc_rows[is_new], values[is_new]
    )


def _docs_of_hashes(hashes: np.ndarray, hash_of_doc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The documents ``[P]`` of these hashes ``[L]``, and of each the place of its hash."""
    rows_with_text = np.flatnonzero(_are_among(hash_of_doc, np.unique(hashes)))
    docs_of_hash = _by_number(hash_of_doc[rows_with_text], rows_with_text)
    lines = np.flatnonzero(_are_among(hashes, docs_of_hash.query_rows))  # whose text a document has
    docs = docs_of_hash.lists_at(np.searchsorted(docs_of_hash.query_rows, hashes[lines]))
    return docs.doc_rows, np.repeat(lines, np.diff(docs.offsets))


def known_documents(collection: Collection, judged: QueryLists) -> QueryLists:
    """The judgements, and with them the documents that must not be negatives either, see
    :func:`excluded_documents`: what has a value above 0 or NaN here is no negative of the query.
    """
    excluded = excluded_documents(collection, judged)
    return excluded.joined(judged) if len(excluded.doc_rows) else judged


def classes_of_queries(queries: TextTable, query_rows: np.ndarray) -> np.ndarray:
    """``[n]`` int64, numbers from 0: equal for queries of one text and one instruction."""
    number_of: defaultdict[tuple[str, str], int] = defaultdict(
        count().__next__
    )  # a new one: the next
    numbers = np.empty(len(query_rows), np.int64)
    for place, query_row in enumerate(query_rows.tolist()):
        numbers[place] = number_of[queries.texts[query_row], queries.instruction(query_row)]
    return numbers


def _by_number(numbers: np.ndarray, rows: np.ndarray) -> QueryLists:
    """The rows of each number; the values mean nothing."""
    return QueryLists.from_rows(numbers, rows, np.zeros(len(rows)))
