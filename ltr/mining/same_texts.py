"""Whether a document has the text of a relevant one: the same text may stand in a corpus twice."""

from collections.abc import Callable, Iterable

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists

Keys = Callable[[np.ndarray], np.ndarray]  # rows of documents [P] to keys [P] int64


class SameTexts:
    """Tells which documents must not become negatives of a query.

    They are those with the text of a document that is judged relevant for the query, under
    whatever id, and the query itself where queries and documents are the same texts.

    Args:
        collection: holds the texts.
        judgements: say what is relevant; grades above 0 are.
        keys: numbers documents by their texts: equal numbers are equal texts. None: texts are
            compared letter by letter.
    """

    def __init__(
        self, collection: Collection, judgements: Iterable[QueryLists], keys: Keys | None = None
    ) -> None:
        self._keys = text_numbers(collection) if keys is None else keys
        self._queries_are_documents = collection.queries.key == collection.corpus.key
        query_rows = []
        doc_rows = []
        for judged in judgements:
            relevant = judged.values > 0
            query_rows.append(np.repeat(judged.query_rows, np.diff(judged.offsets))[relevant])
            doc_rows.append(judged.doc_rows[relevant])
        relevant_keys = self._keys_of(np.concatenate(doc_rows))
        # Keys may be hashes of 64 bits. Their places among the relevant texts are small enough to
        # be put into one number with the query.
        self._texts, places = np.unique(relevant_keys, return_inverse=True)
        self._pairs = np.unique(np.concatenate(query_rows) * len(self._texts) + places)

    def __call__(self, query_rows: np.ndarray, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` bool for P pairs of a query and a document, int64 rows; no row is −1."""
        same = np.zeros(len(doc_rows), dtype=bool)
        if len(self._texts):
            keys = self._keys_of(doc_rows)
            places = np.searchsorted(self._texts, keys).clip(max=len(self._texts) - 1)
            is_known = self._texts[places] == keys
            same = is_known & np.isin(query_rows * len(self._texts) + places, self._pairs)
        if self._queries_are_documents:  # a text is not its own negative
            same |= doc_rows == query_rows
        return same

    def _keys_of(self, doc_rows: np.ndarray) -> np.ndarray:
        """``[P]`` int64; the text of a document that comes again is read once."""
        rows, inverse = np.unique(doc_rows, return_inverse=True)
        return self._keys(rows)[inverse]


def text_numbers(collection: Collection) -> Keys:
    """Number the documents of a collection by their texts, as they stand in its files."""
    numbers: dict[str, int] = {}

    def keys(doc_rows: np.ndarray) -> np.ndarray:
        texts = (collection.corpus.texts[row] for row in doc_rows.tolist())
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)

    return keys
