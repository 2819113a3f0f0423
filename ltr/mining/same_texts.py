"""What may never be a negative of a query, as it has the text of a relevant document: the same text
may stand in a corpus twice.
"""

from collections.abc import Callable, Iterable

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists

# A function from rows of documents [P] to keys [P] int64: documents of one text have one key.
TextKeys = Callable[[np.ndarray], np.ndarray]


class NeverNegative:
    """Tells which documents must not become negatives of a query.

    They are those with the text of a document that is judged relevant for the query, under
    whatever id, and the query itself where queries and documents are the same texts.

    Args:
        collection: holds the texts.
        judgements: say what is relevant; grades above 0 are.
        text_keys: numbers documents by their texts: equal numbers are equal texts. None: texts are
            compared letter by letter.
    """

    def __init__(
        self,
        collection: Collection,
        judgements: Iterable[QueryLists],
        text_keys: TextKeys | None = None,
    ) -> None:
        self._text_keys = keys_of_letters(collection) if text_keys is None else text_keys
        self._queries_are_documents = collection.queries.key == collection.corpus.key
        query_rows = [np.empty(0, np.int64)]  # so that there may be no judgements
        doc_rows = [np.empty(0, np.int64)]
        for judged in judgements:
            relevant = judged.values > 0
            query_rows.append(np.repeat(judged.query_rows, np.diff(judged.offsets))[relevant])
            doc_rows.append(judged.doc_rows[relevant])
        relevant_keys = self._keys_of(np.concatenate(doc_rows))
        self._relevant_keys, places = np.unique(relevant_keys, return_inverse=True)
        self._relevant_pairs = np.unique(self._pair_numbers(np.concatenate(query_rows), places))

    def __call__(self, query_rows: np.ndarray, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` bool for P pairs of a query and a document, int64 rows, none of them −1."""
        is_same = np.zeros(len(doc_rows), dtype=bool)
        if len(self._relevant_keys):
            keys = self._keys_of(doc_rows)
            places = np.searchsorted(self._relevant_keys, keys)
            # A key above all others has no place among them; any place will do, it is unequal.
            places = places.clip(max=len(self._relevant_keys) - 1)
            is_known = self._relevant_keys[places] == keys
            pairs = self._pair_numbers(query_rows, places)
            is_same = is_known & np.isin(pairs, self._relevant_pairs)
        if self._queries_are_documents:  # a text is not its own negative
            is_same |= doc_rows == query_rows
        return is_same

    def _pair_numbers(self, query_rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """``[P]`` int64, one for each pair of a query and a place among the relevant keys. Keys
        themselves may be hashes of 64 bits, too large to be joined with a query.
        """
        return query_rows * len(self._relevant_keys) + places

    def _keys_of(self, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` int64; the text of a document that comes again is read once."""
        distinct_rows, inverse = np.unique(doc_rows, return_inverse=True)
        return self._text_keys(distinct_rows)[inverse]


def keys_of_letters(collection: Collection) -> TextKeys:
    """Number the documents of a collection by their texts, as they stand in its files."""
    numbers: dict[str, int] = {}  # of the texts met so far

    def text_keys(doc_rows: np.ndarray) -> np.ndarray:
        keys = []
        for row in doc_rows.tolist():
            text = collection.corpus.texts[row]
            keys.append(numbers.setdefault(text, len(numbers)))
        return np.array(keys, dtype=np.int64)

    return text_keys
