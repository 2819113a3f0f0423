"""Documents that have an embedding for each window: the score of a document is that of its best one.

Letters of shapes: D documents, S windows of all of them, Q queries, H dimensions, k documents found
per query.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ltr.data.layouts import SingleTexts
from ltr.data.tokens import Tokens, TokenStore
from ltr.search.embedder import Embedder
from ltr.search.encoding import TextsToEncode
from ltr.spans import spans

DOCS_AT_ONCE = 65_536  # whose windows are counted
# How many windows of each document wanted are looked at before a query is searched deeper.
FIRST_DEPTH = 2

# Queries [Q, H] and a depth → scores and rows [Q, depth], best first; of equal scores the larger
# row. −inf and −1 where fewer are found.
Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


class WindowsOfCorpus:
    """The windows of the documents of a corpus as texts of their own, in the order of the documents.

    Args:
        store: the tokens of the documents.
        form: how they are read, in windows.
        count: D, how many there are: the first ones of the store.

    Attributes:
        n_windows: S.
    """

    def __init__(self, store: TokenStore, form: SingleTexts, count: int) -> None:
        self._store = store
        self._form = form
        counts = [np.zeros(1, dtype=np.int64)]
        for span in spans(count, DOCS_AT_ONCE):
            lengths = store.lengths(np.arange(span.start, span.stop))
            counts.append(form.n_windows(lengths))
        # Those of document d stand from offsets[d] up to offsets[d + 1].
        self._offsets = np.concatenate(counts).cumsum()
        self.n_windows = int(self._offsets[-1])

    def texts(self) -> TextsToEncode:
        """The windows, to be encoded by :meth:`embedder`."""
        n_docs = len(self._offsets) - 1
        key = f"{self._store.read_key} :{n_docs} in windows {self._form.key}"
        return TextsToEncode(self.n_windows, key, self._between)

    def embedder(self, embedder: Embedder) -> Embedder:
        """What embeds a window, of what embeds documents."""
        return replace(embedder, form=self._form.without_windows())

    def docs(self, windows: np.ndarray) -> np.ndarray:
        """The documents of windows, both by row and of any shape; −1 stays."""
        docs = np.searchsorted(self._offsets, windows, side="right") - 1
        return np.where(windows < 0, -1, docs)

    def search(self, search: Search, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k documents whose best windows have the highest scores, best first; of equal scores
        the larger row first.

        The best windows of all come in the order of score and row, so the documents of them, each
        at its first window, are in that order too. A query is searched deeper until its windows are
        of k documents: no other document can then be among the k best.

        Args:
            search: finds windows, as :meth:`ltr.search.shards.Shards.search`.
            queries: ``[Q, H]``.
            k: documents per query.

        Returns:
            As ``search``, of documents: ``[Q, k]`` each.
        """
        scores = np.full((len(queries), k), -np.inf, np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        places = np.arange(len(queries))  # of queries that have not found enough
        n_found = np.zeros(len(queries), np.int64)  # windows, at the depth before
        depth = FIRST_DEPTH * k
        while len(places):
            depth = min(depth, self.n_windows)
            window_scores, windows = search(queries[places], depth)
            docs = self.docs(windows)
            is_first = _are_first(docs)
            number = is_first.cumsum(axis=1) - 1
            query, column = np.nonzero(is_first & (number < k))
            scores[places[query], number[query, column]] = window_scores[query, column]
            rows[places[query], number[query, column]] = docs[query, column]
            if depth == self.n_windows:
                break
            # An approximate index may not reach the depth. Where it then finds no more than before, it
            # has found all that it can.
            n_now = (windows >= 0).sum(axis=1)
            finds_more = (n_now == depth) | (n_now > n_found[places])
            n_found[places] = n_now
            places = places[(is_first.sum(axis=1) < k) & finds_more]
            depth *= 2
        return scores, rows

    def _between(self, first: int, stop: int) -> Tokens:
        """The tokens of the windows from one row up to another one."""
        if first == stop:
            return self._store.between(0, 0)
        docs = self.docs(np.array([first, stop - 1]))
        rows = np.arange(docs[0], docs[1] + 1)
        tokens, _ = self._form.windows_of(self._store, rows)
        begin = first - int(self._offsets[docs[0]])
        return tokens.between(begin, begin + stop - first)


def _are_first(docs: np.ndarray) -> np.ndarray:
    """Where each row has a document for the first time, ``[Q, n]`` bool; never at −1."""
    order = np.argsort(docs, axis=1, kind="stable")
    in_order = np.take_along_axis(docs, order, axis=1)
    is_new = np.ones_like(docs, dtype=bool)
    is_new[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    is_first = np.empty_like(is_new)
    np.put_along_axis(is_first, order, is_new, axis=1)
    return is_first & (docs >= 0)
