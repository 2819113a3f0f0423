"""A corpus embedded in shares: each process has the embeddings of its own documents, and none needs
the files of others.

Letters of shapes: D documents of all processes, n of this one, Q queries, H dimensions, k documents
found per query, P pairs, W processes. Every process must call these functions, with the same
arguments but for its own documents.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ltr.data.formats import SingleTexts
from ltr.data.tokens import TokenStore
from ltr.processes import all_gather, device, of_all, rank, summed, together, world_size
from ltr.search.embeddings import DOCS, checked_sum
from ltr.search.encode import encode, encode_in_memory, share
from ltr.search.exact import QUERIES, keys, unkeyed
from ltr.search.index import DenseIndex, best_first
from ltr.similarity import Similarity
from ltr.spans import spans


class Shards:
    """The documents with the highest scores for given queries, of a corpus that lies in shares.

    Each process searches its own documents for all queries, and the best of all processes are
    merged. ``Flat`` finds what :class:`ltr.search.index.DenseIndex` finds in the whole corpus; any
    other factory makes an index of each share.

    Args:
        docs: ``[n, H]`` float32, may be a memory map: it is read where it is, so it must not
            change. n may be 0.
        rows: ``[n]`` int64, ascending: their numbers among the D documents. Each document is in one
            share.
        similarity: how a query and a document are compared.
        factory: the kind of index, as a faiss factory string; see
            :class:`ltr.search.index.DenseIndex`.
        seed: of the sample from which clusters and codes are learnt.

    Attributes:
        count: D.

    Raises:
        InputError: on every process, if the embeddings of any are not finite, or faiss can't make
            the index of any.
    """

    def __init__(
        self,
        docs: np.ndarray,
        rows: np.ndarray,
        similarity: Similarity,
        factory: str = "Flat",
        *,
        seed: int = 0,
    ) -> None:
        assert len(docs) == len(rows) and (np.diff(rows) > 0).all(), (
            "the documents have numbers, which ascend"
        )
        self.similarity = similarity
        self._docs = docs
        self._factory = factory
        self._numbers = np.append(rows, -1)  # so that a document that was not found, -1, stays -1
        own_sum = together(lambda: checked_sum(docs, "embeddings", rows))
        shares = of_all((len(docs), own_sum))
        self.count = sum(count for count, _ in shares)
        total = np.sum([share_sum for _, share_sum in shares], axis=0)
        mean = (total / max(1, self.count)).astype(np.float32)
        build = partial(DenseIndex.build, docs, similarity, seed=seed, mean=mean)
        self._flat = build()
        self._index = self._flat
        if factory != "Flat":
            self._index = together(lambda: build(factory) if len(docs) else self._flat)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents of each query, best first; of equal scores the larger row first.

        Args:
            queries: ``[Q, H]``.
            k: documents per query.

        Returns:
            Scores ``[Q, k]`` float32 and rows ``[Q, k]`` int64 among all D documents, the same on
            every process; −inf and −1 where fewer than k were found.

        Raises:
            InputError: for queries of another dimension or that are not finite, or if k is below 1.
        """
        return self._merged(self._index, queries, k)

    def _merged(
        self, index: DenseIndex, queries: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        # Scores of the similarity come after the merge: of two distances they may be equal where
        # the squares are not.
        scores, places = index.nearest(queries, k)
        best = keys(scores, torch.from_numpy(self._numbers)[places])
        for span in spans(len(best), QUERIES):
            of_ranks = all_gather(best[span].to(device()))  # [W, q, k]
            best[span] = of_ranks.transpose(0, 1).flatten(1).topk(k).values.cpu()
        return best_first(*unkeyed(best), self.similarity)

    def pairs(
        self, queries: np.ndarray, at: np.ndarray, doc_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and distances of pairs of a query and a document.

        Args:
            queries: ``[Q, H]``.
            at: ``[P]`` int64, the queries of the pairs: their places in ``queries``.
            doc_rows: ``[P]`` int64, the documents of the pairs: their numbers among all D.

        Returns:
            Scores ``[P]`` float32 by the similarity; and distances ``[P]`` float32: Euclidean, of
            the embeddings as they are, or brought to length 1 under ``cosine``. The same on every
            process.
        """
        places = np.searchsorted(self._numbers[:-1], doc_rows)
        own = np.flatnonzero(self._numbers[places] == doc_rows)
        own = own[np.argsort(places[own], kind="stable")]  # a memory map is read from front to back
        both = np.zeros((len(doc_rows), 2), dtype=np.float32)
        for span in spans(len(own), DOCS):
            some = own[span]
            both[some] = np.stack(
                self.similarity.score_pairs(queries[at[some]], self._docs[places[some]]), axis=1
            )
        assert sum(of_all(len(own))) == len(doc_rows), "every document of a pair is in one share"
        scores, distances = summed(both).T.copy()
        return scores, distances

    def recall(self, queries: np.ndarray, k: int) -> float:
        """Share of the exact k best documents that :meth:`search` finds, from 0 to 1; 1 without a
        search for ``Flat``.
        """
        if self._factory == "Flat":
            return 1.0
        _, rows = self.search(queries, k)
        _, exact_rows = self._merged(self._flat, queries, k)
        # A number for each pair of a query and a document.
        firsts = np.arange(len(queries))[:, None] * self.count
        pairs = (rows + firsts)[rows >= 0]
        exact_pairs = (exact_rows + firsts)[exact_rows >= 0]
        return float(np.isin(exact_pairs, pairs).mean())


def encode_shard(
    encoder: nn.Module,
    store: TokenStore,
    form: SingleTexts,
    file: Path,
    count: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Embed this process's share of texts into a file of its own.

    Args:
        encoder, store, form, file: see :func:`ltr.search.encode.encode`.
        count: only the first so many texts of the store; None: all.

    Returns:
        ``[n, H]`` float32, read-only, mapped from the file (there is none without a text); and
        ``[n]`` int64, their rows in the store, ascending.

    Raises:
        OSError: on every process, if the folder of any is missing or its disk has no room.
    """
    whole = np.arange(len(store) if count is None else count)
    rows = np.sort(share(store, form, whole, rank(), world_size()))
    docs = together(lambda: encode(encoder, store, form, file, rows) if len(rows) else None)
    dim = max(of_all(0 if docs is None else docs.shape[1]))
    return np.empty((0, dim), dtype=np.float32) if docs is None else docs, rows


def encode_everywhere(
    encoder: nn.Module, store: TokenStore, form: SingleTexts, rows: np.ndarray
) -> np.ndarray:
    """Embed texts on every process: each embeds its share, and shares are exchanged.

    Args:
        encoder, store, form: see :func:`ltr.search.encode.encode`.
        rows: ``[R]`` int64, which texts, in the order of the result.

    Returns:
        ``[R, H]`` float32, the same on every process.

    Raises:
        ValueError: if there is no text.
    """
    if not len(rows):
        raise ValueError("there must be at least one text to encode, got none")
    places = share(store, form, rows, rank(), world_size())
    own = encode_in_memory(encoder, store, form, rows[places]) if len(places) else None
    dim = max(of_all(0 if own is None else own.shape[1]))
    whole = np.zeros((len(rows), dim), dtype=np.float32)
    if own is not None:
        whole[places] = own
    return summed(whole)
