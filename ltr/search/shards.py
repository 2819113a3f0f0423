"""A corpus in shares: each process searches its own documents, and none needs the files of others.

Letters of shapes: D documents of all processes, n of this one, Q queries, H dimensions, k documents
found per query, P pairs, W processes. Every process must call these functions, with the same
arguments but for its own documents.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from ltr.data.layouts import SingleTexts
from ltr.data.progress import track
from ltr.data.tokens import TokenStore
from ltr.processes import (
    all_gather,
    by_every_rank,
    exchange_device,
    gather_objects,
    rank,
    sum_over_ranks,
    world_size,
)
from ltr.search.embed_texts import encode_in_memory, places_of_rank
from ltr.search.embeddings import DOCS_AT_ONCE, Embeddings, StoredEmbeddings, checked_sum
from ltr.search.encoding import Encoding
from ltr.search.encoding_places import share_of_rank
from ltr.search.exact import QUERIES_AT_ONCE, scores_and_rows, sort_keys
from ltr.search.index import CPU, DenseIndex, best_first
from ltr.similarity import Similarity
from ltr.spans import RowSpans, spans

# Documents that are found for queries searched together: some 700 MB are needed to merge them. Each block
# of queries reads all documents.
FOUND_AT_ONCE = 2**23


class Shards:
    """The documents with the highest scores for given queries, of a corpus that lies in shares.

    Each process searches its own documents for all queries, and the best of all processes are
    merged. ``Flat`` finds what :class:`ltr.search.index.DenseIndex` finds in the whole corpus; any
    other factory makes an index of each share.

    Args:
        docs: ``[n, H]``, in memory, a memory map or in shards: they are read where they are, so they
            must not change. n may be 0.
        rows: n, their rows among all D documents. Each document is in one share.
        similarity: how a query and a document are compared.
        factory: the kind of index, as a faiss factory string; see
            :class:`ltr.search.index.DenseIndex`.
        device: where this process searches; see :meth:`ltr.search.index.DenseIndex.build`.
        seed: of the sample from which clusters and codes are learnt.

    Attributes:
        count: D.

    Raises:
        InputError: on every process, if the embeddings of any are not finite, or faiss can't make
            the index of any.
    """

    def __init__(
        self,
        docs: Embeddings,
        rows: RowSpans,
        similarity: Similarity,
        factory: str = "Flat",
        *,
        device: torch.device = CPU,
        seed: int = 0,
    ) -> None:
        assert len(docs) == len(rows), "each document has a row"
        self.similarity = similarity
        self._docs = docs
        self._factory = factory
        self._rows = rows
        own_sum = by_every_rank(lambda: checked_sum(docs, "embeddings", rows))
        self.count = sum(gather_objects(len(docs)))
        mean = (np.sum(gather_objects(own_sum), axis=0) / max(1, self.count)).astype(np.float32)
        self._flat = DenseIndex.build(docs, similarity, device=device, mean=mean)

        def build() -> DenseIndex:
            if factory == "Flat" or not len(docs):
                return self._flat
            return DenseIndex.build(docs, similarity, factory, device=device, seed=seed, mean=mean)

        self._index = by_every_rank(build)

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
        """What the indexes of all processes find, see :meth:`search`."""
        scores, places = index.nearest(queries, k)
        keys = sort_keys(scores, torch.from_numpy(self._rows[places.numpy()]))
        for span in spans(len(keys), QUERIES_AT_ONCE):
            # [W, queries of the span, k]
            keys_of_all = all_gather(keys[span].to(exchange_device()))
            keys[span] = keys_of_all.transpose(0, 1).flatten(1).topk(k).values.cpu()
        # Merged by squared distances, and only now turned to scores of the similarity: square
        # roots, rounded, may tie where the squares do not.
        return best_first(*scores_and_rows(keys), self.similarity)

    def scores_of_pairs(
        self, queries: np.ndarray, query_places: np.ndarray, doc_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and distances of pairs of a query and a document.

        Args:
            queries: ``[Q, H]``.
            query_places: ``[P]`` int64, the queries of the pairs: their places in ``queries``.
            doc_rows: ``[P]`` int64, the documents of the pairs: their rows among all D.

        Returns:
            Scores ``[P]`` float32 by the similarity; and distances ``[P]`` float32: Euclidean, of
            the embeddings as they are, or brought to length 1 under ``cosine``. The same on every
            process.
        """
        doc_places = self._rows.places(doc_rows)
        own_pairs = np.flatnonzero(doc_places >= 0)
        n_own = sum(gather_objects(len(own_pairs)))
        assert n_own == len(doc_rows), "every document of a pair is in one share"
        # So that a memory map is read from front to back.
        own_pairs = own_pairs[np.argsort(doc_places[own_pairs], kind="stable")]
        # Pairs of other processes stay 0 here, so that the sum over the processes has all.
        results = np.zeros((len(doc_rows), 2), dtype=np.float32)
        pair_spans = list(spans(len(own_pairs), DOCS_AT_ONCE))
        for span in track(pair_spans, "comparing", f"spans of {DOCS_AT_ONCE} pairs"):
            pairs = own_pairs[span]
            scores, distances = self.similarity.score_pairs(
                queries[query_places[pairs]], self._docs[doc_places[pairs]]
            )
            results[pairs, 0] = scores
            results[pairs, 1] = distances
        results = sum_over_ranks(results)
        return results[:, 0].copy(), results[:, 1].copy()

    def recall(self, queries: np.ndarray, k: int) -> float:
        """Share of the exact k best documents that :meth:`search` finds, from 0 to 1; 1 without a
        search for ``Flat``.
        """
        if self._factory == "Flat":
            return 1.0
        _, rows = self.search(queries, k)
        _, exact_rows = self._merged(self._flat, queries, k)
        # Each pair of a query and a document gets a number of its own: place · D + row.
        first_numbers = np.arange(len(queries))[:, None] * self.count
        pairs = (rows + first_numbers)[rows >= 0]
        exact_pairs = (exact_rows + first_numbers)[exact_rows >= 0]
        return float(np.isin(exact_pairs, pairs).mean())


def query_spans(n_queries: int, k: int) -> Iterator[slice]:
    """The spans in which so many queries are searched for, so that memory does not grow with them.

    Args:
        n_queries: how many there are.
        k: documents found for each.
    """
    size = max(1, FOUND_AT_ONCE // max(1, k))
    # Whole tiles: what is found is bit by bit the same as without spans.
    return spans(n_queries, size - size % QUERIES_AT_ONCE if size > QUERIES_AT_ONCE else size)


def share_of(encoding: Encoding) -> tuple[StoredEmbeddings, RowSpans]:
    """This process's share of an encoding.

    Returns:
        The embeddings ``[n, H]`` of every W-th shard; and their rows in the corpus.

    Raises:
        InputError: on every process, if a shard of any is missing or damaged.
    """
    plan = encoding.plan
    numbers = range(plan.n_shards)[share_of_rank()]
    docs = by_every_rank(lambda: encoding.open_shards(numbers))
    # A process without shards learns the size of an embedding from the others.
    docs = StoredEmbeddings(docs.shards, max(gather_objects(docs.shape[1])))
    return docs, RowSpans(map(plan.span, numbers))


def encode_everywhere(
    encoder: nn.Module, store: TokenStore, form: SingleTexts, rows: np.ndarray
) -> np.ndarray:
    """Embed texts on every process: each embeds its share, and shares are exchanged.

    Args:
        encoder, store, form: see :func:`ltr.search.embed_texts.encode_in_memory`.
        rows: ``[R]`` int64, which texts, in the order of the result.

    Returns:
        ``[R, H]`` float32, the same on every process.

    Raises:
        ValueError: if there is no text.
    """
    if not len(rows):
        raise ValueError("there must be at least one text to encode, got none")
    places = places_of_rank(store, form, rows, rank(), world_size())

    def encode_own() -> np.ndarray | None:
        return encode_in_memory(encoder, store, form, rows[places]) if len(places) else None

    own = by_every_rank(encode_own)
    dim = max(gather_objects(0 if own is None else own.shape[1]))
    # The texts of other processes stay 0 here, so that the sum over the processes has all.
    embeddings = np.zeros((len(rows), dim), dtype=np.float32)
    if own is not None:
        embeddings[places] = own
    return sum_over_ranks(embeddings)
