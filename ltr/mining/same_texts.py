"""What may never be a negative of a query, as it has the text of a relevant document: the same text
may stand in a corpus twice.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
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


class NeverNegative:
    """Tells which documents must not become negatives of a query.

    They are those with the text of a document that is judged relevant for the query, under
    whatever id, and the query itself where queries and documents are the same texts.

    Args:
        collection: holds the texts.
        judgements: say what is relevant; grades above 0 are.
        text_keys: tells which documents have one text. None: the
            texts as they stand, see :func:`keys_of_letters`.
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
        relevant_queries = np.concatenate(query_rows)
        relevant_rows = np.concatenate(doc_rows)
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
        if self._queries_are_documents:  # a text is not its own negative
            is_same |= doc_rows == query_rows
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


def keys_of_letters(collection: Collection) -> TextKeys:
    """What tells which documents of a collection have one text, as it stands in its files. Keys are
    hashes of 64 bits.
    """
    texts = collection.corpus.texts

    def text_keys(doc_rows: np.ndarray) -> np.ndarray:
        keys = np.empty(len(doc_rows), np.int64)
        for place, row in enumerate(doc_rows.tolist()):
            digest = hashlib.blake2b(texts[row].encode(), digest_size=8).digest()
            keys[place] = int.from_bytes(digest, "little", signed=True)
        return keys

    return TextKeys(text_keys, texts.lengths)
