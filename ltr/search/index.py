"""The documents nearest to queries, by their embeddings.

Letters of shapes: D documents, Q queries, H dimensions, k documents found per query.
"""

import re
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ltr.errors import InputError
from ltr.search.codes import CodedIndex
from ltr.search.embeddings import Embeddings, checked_sum
from ltr.search.exact import scores_and_rows, search_exactly, sort_keys
from ltr.search.faiss_index import FaissIndex
from ltr.search.tiles import Tiles, tiles_of
from ltr.similarity import Similarity

CPU = torch.device("cpu")


class DenseIndex:
    """Finds the documents with the highest scores, as :mod:`ltr.similarity` defines them: higher is
    better.

    ``Flat`` is exact: it computes the scores of all documents, tile by tile, on the GPU that it is
    given, else by the faster of faiss and torch. It reads the embeddings where they are, a memory map
    too, and makes no copy, but on a GPU where they are to stay.

    Every other factory is faiss's, and holds what it needs in memory: ``IVF4096,Flat`` searches
    some of 4096 clusters, ``HNSW32`` walks a graph, ``IVF4096,PQ48x8`` and ``OPQ…`` also compress:
    their scores are those of the compressed documents, close to the exact ones. faiss with GPU
    support searches on the given GPU where it can.

    Search in the trainer's process, never in a worker of a data loader: forked from a process that
    has searched, faiss hangs.

    Build one with :meth:`build`.

    Attributes:
        similarity: as given to :meth:`build`.
        device: where it searches.
        count: D.
        dimension: H.
        centre: ``[H]``, which is taken from queries and documents where distances are compared.

    Example:
        >>> from ltr.similarity import similarity_of
        >>> docs = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], np.float32)
        >>> index = DenseIndex.build(docs, similarity_of("dot"))
        >>> scores, rows = index.search(np.array([[0.0, 1.0]], np.float32), 2)
        >>> rows  # of the two best documents of each query
        array([[1, 2]])
    """

    def __init__(
        self,
        docs_or_index: Tiles | FaissIndex | CodedIndex,
        similarity: Similarity,
        centre: np.ndarray | None,
        device: torch.device = CPU,
    ) -> None:
        self.similarity = similarity
        self.device = device if device.type == "cuda" else CPU
        self.count, self.dimension = docs_or_index.shape
        self._docs_or_index = docs_or_index  # for Flat the documents themselves
        self.centre = centre
        self._prepare = partial(similarity.prepare, centre=centre)

    def __len__(self) -> int:
        return self.count

    @classmethod
    def build(
        cls,
        embeddings: Embeddings,
        similarity: Similarity,
        factory: str = "Flat",
        *,
        device: torch.device = CPU,
        probes: int | None = None,
        seed: int = 0,
        mean: np.ndarray | None = None,
        stay: bool = False,
    ) -> "DenseIndex":
        """Index the embeddings of documents.

        Args:
            embeddings: ``[D, H]`` float32, may be a memory map. ``Flat`` reads it at every search,
                so it must not change.
            similarity: how a query and a document are compared.
            factory: the kind of index, as a faiss factory string.
            device: where it searches, if it is a GPU of CUDA; else it searches on the CPU.
            probes: how much a search looks at: clusters of an ``IVF`` (None: the square root of
                their number), candidates of an ``HNSW`` (None: 64; never fewer than k). More is
                slower and closer to exact.
            seed: of the sample from which clusters and codes are learnt.
            mean: ``[H]`` float32, of the embeddings of all processes, where ``embeddings`` are one
                process's share. The share may then be empty, and is taken to be finite. None: the
                embeddings are checked, and their mean is computed.
            stay: whether ``Flat`` leaves the documents on a GPU from one search to the next, if they
                take at most a quarter of its free memory. For many searches of few queries, where
                nothing trains there: a search of many queries hides the way to the GPU.

        Raises:
            InputError: if the embeddings are not finite, faiss can't make such an index, there are
                too few documents for it, or another factory than ``Flat`` is asked for without
                faiss.
        """
        if embeddings.ndim != 2 or (mean is None and not embeddings.size):
            raise InputError(
                f"an index needs the embeddings [D, H] of at least one document, got {embeddings.shape}"
            )
        if probes is not None and (probes < 1 or not re.search("IVF|HNSW", factory)):
            raise InputError(
                f"probes must be at least 1, and with an IVF or HNSW index, got {probes} with {factory!r}"
            )
        if mean is None:
            total = checked_sum(embeddings, "embeddings")
            mean = (total / len(embeddings)).astype(np.float32)
        # Distances stay the same when all is moved, and keep more digits near the origin.
        centre = mean if similarity.by_distance else None
        if factory == "Flat":
            tiles = tiles_of(embeddings, similarity, centre, device, stay=stay)
            return cls(tiles, similarity, centre, device)
        index = FaissIndex.build(
            embeddings,
            partial(similarity.prepare, centre=centre),
            factory,
            device=device,
            squared=similarity.by_distance,
            probes=probes,
            seed=seed,
        )
        return cls(index, similarity, centre, device)

    # Searching

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents of each query, best first; of equal scores the larger row first, as
        in trec_eval.

        Where the k-th score is tied and there is no room for all of them, ``Flat`` returns the
        larger rows.

        Args:
            queries: ``[Q, H]``.
            k: documents per query.

        Returns:
            Scores ``[Q, k]`` float32 and rows ``[Q, k]`` int64; −inf and −1 where fewer than k were
            found.

        Raises:
            InputError: for queries of another dimension or that are not finite, or if k is below 1.
        """
        return best_first(*self.nearest(queries, k), self.similarity)

    def nearest(self, queries: np.ndarray, k: int) -> tuple[Tensor, Tensor]:
        """The documents that :meth:`search` finds, in any order. Scores are those that the index
        compares: inner products, or minus squared distances.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise InputError(
                f"queries must be [Q, {self.dimension}] as the documents, got {queries.shape}"
            )
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        checked_sum(queries, "queries")  # for the check alone
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if isinstance(self._docs_or_index, Tiles):
                return search_exactly(self._docs_or_index, queries, k)
            squared = self.similarity.by_distance
            return self._docs_or_index.search(self._prepare(queries), k, squared)


def best_first(
    scores: Tensor, rows: Tensor, similarity: Similarity
) -> tuple[np.ndarray, np.ndarray]:
    """Found documents ``[Q, k]`` in order, by the scores of the similarity; of equal ones the
    larger row first.
    """
    keys = sort_keys(similarity.scores_from_search(scores), rows)
    scores, rows = scores_and_rows(keys.sort(dim=1, descending=True).values)
    return scores.numpy(), rows.numpy()
