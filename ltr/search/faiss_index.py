"""Approximate search: the indexes that faiss builds."""

import logging
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ltr.data.progress import track
from ltr.errors import InputError
from ltr.search.embeddings import DOCS_AT_ONCE, Embeddings, Prepare
from ltr.spans import spans

try:
    import faiss
except ImportError:
    faiss = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

QUERIES_AT_ONCE = 8192  # that faiss is given, so that a long search can say how far it is
MAX_K_ON_GPU = 2048  # faiss finds no more documents per query on a GPU
# An index without k-means is trained on at most so many documents.
MOST_WITHOUT_KMEANS = 65536
# faiss's k-means warns below the first number of vectors per centroid, and uses no more than the
# second.
ADVISED_PER_CENTROID = 39
MOST_PER_CENTROID = 256
DEFAULT_HNSW_CANDIDATES = 64  # faiss's efSearch, where build() gets no probes


class FaissIndex:
    """An index of faiss that holds its documents.

    Attributes:
        index: faiss's own, in the memory of the CPU.
        shape: D documents, H dimensions.
        on_gpu: a copy on the given GPU, which is searched instead; None on a CPU, or where faiss has
            no such index on a GPU.
    """

    def __init__(self, index: Any, factory: str, device: torch.device) -> None:
        self.index = index
        self.shape: tuple[int, int] = (index.ntotal, index.d)
        self.on_gpu = _on_gpu(index, factory, device)

    @classmethod
    def build(
        cls,
        docs: Embeddings,
        prepare: Prepare,
        factory: str,
        *,
        device: torch.device,
        squared: bool,
        probes: int | None,
        seed: int,
    ) -> "FaissIndex":
        """Train an index on a sample of the documents and add all of them; see
        :meth:`ltr.search.index.DenseIndex.build`.
        """
        index = empty_index(factory, docs.shape, squared=squared)
        ivf = faiss.try_extract_index_ivf(index)  # the part that has clusters, or None
        parameters = faiss.ParameterSpace()
        try:
            if not index.is_trained:
                n_centroids = _prepare_training(index)
                sampled_rows = _rows_to_train_on(n_centroids, factory, len(docs), seed)
                index.train(prepare(docs[sampled_rows]))
            doc_spans = list(spans(len(docs), DOCS_AT_ONCE))
            for span in track(doc_spans, "indexing", f"spans of {DOCS_AT_ONCE} documents"):
                index.add(prepare(docs[span]))
            if ivf is not None:
                default_probes = round(ivf.nlist**0.5)
                parameters.set_index_parameter(index, "nprobe", probes or default_probes)
            elif "HNSW" in factory:
                candidates = probes or DEFAULT_HNSW_CANDIDATES
                parameters.set_index_parameter(index, "efSearch", candidates)
        except RuntimeError as error:
            raise _cannot_build(factory, docs.shape, error) from None
        return cls(index, factory, device)

    def search(self, queries: np.ndarray, k: int, squared: bool) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best documents that the index finds, ``[Q, k]`` each; −inf and −1
        where it finds fewer.

        ``queries`` are prepared as the documents were; ``squared``: the index answers squared
        distances, smaller is better.
        """
        index = self.index
        if self.on_gpu is not None and k <= MAX_K_ON_GPU:
            index = self.on_gpu
        found_scores = np.empty((len(queries), k), np.float32)
        found_rows = np.empty((len(queries), k), np.int64)
        query_spans = list(spans(len(queries), QUERIES_AT_ONCE))
        for span in track(query_spans, "searching", f"spans of {QUERIES_AT_ONCE} queries"):
            found_scores[span], found_rows[span] = index.search(queries[span], k)
        scores = torch.from_numpy(found_scores)
        rows = torch.from_numpy(found_rows)
        if squared:
            scores = -scores.clamp(min=0)  # rounding may bring a distance below 0
        return scores.masked_fill(rows < 0, -torch.inf), rows


def empty_index(factory: str, shape: tuple[int, ...], squared: bool) -> Any:
    """An untrained index of faiss of this shape; an InputError if faiss can't make it, or it has
    more clusters than documents.
    """
    _require_faiss(factory)
    count, dim = shape
    metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
    try:
        index = faiss.index_factory(dim, factory, metric)
    except RuntimeError as error:
        raise _cannot_build(factory, shape, error) from None
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None and ivf.nlist > count:
        raise InputError(
            f"the {ivf.nlist} clusters of {factory!r} can't be more than the {count} documents; ask for fewer clusters"
        )
    return index


def _faiss_message(error: Exception) -> str:
    """What went wrong, without the place in faiss's own source."""
    return re.sub(r"^Error in .*? at \S+:\d+: ", "", str(error), flags=re.DOTALL)


def _cannot_build(factory: str, shape: tuple[int, ...], error: RuntimeError) -> InputError:
    count, dim = shape
    return InputError(
        f"the index must be one that faiss can build of {count} embeddings of {dim} dimensions, got {factory!r}: {_faiss_message(error)}"
    )


def _prepare_training(index: Any) -> int:
    """Set what training needs on the parts of an index: no k-means prints a warning of its own to
    the screen, and none does slow work of no use here. Returns the number of centroids of the
    largest; 0 where there is none.
    """
    parts = _parts_with_kmeans(index)
    for part, _ in parts:
        part.cp.min_points_per_centroid = 1
    return max((n_centroids for _, n_centroids in parts), default=0)


def _rows_to_train_on(n_centroids: int, factory: str, count: int, seed: int) -> np.ndarray:
    """Rows of the documents to train on: as many as the largest k-means of the index uses."""
    n_wanted = MOST_WITHOUT_KMEANS  # for scalar quantizers and rotations
    if n_centroids:
        n_wanted = MOST_PER_CENTROID * n_centroids
        n_advised = ADVISED_PER_CENTROID * n_centroids
        if count < n_advised:
            log.warning(
                "%s: %d documents are few to learn %d centroids from; faiss advises %d",
                factory,
                count,
                n_centroids,
                n_advised,
            )
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, min(count, n_wanted), replace=False))


def _parts_with_kmeans(index: Any) -> list[tuple[Any, int]]:
    """The parts of an index that run k-means, each with its number of centroids.

    Also turns off the polysemous training of product quantizers: it is slow, and no search here
    uses it.
    """
    parts = []
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        chain: Any = index.chain  # typed as a list, which it is not
        for number in range(chain.size()):
            rotation = faiss.downcast_VectorTransform(chain.at(number))
            if isinstance(rotation, faiss.OPQMatrix):
                # OPQ trains with a product quantizer that faiss creates only inside train(). We
                # give it the same one now, so that its k-means can be set beforehand.
                codes = faiss.ProductQuantizer(rotation.d_out, rotation.M, 8)
                rotation.pq = codes
                parts.append((codes, codes.ksub))
        return parts + _parts_with_kmeans(index.index)
    if hasattr(index, "storage"):  # a graph, whose vectors lie in an index of their own
        return _parts_with_kmeans(index.storage)
    if hasattr(index, "nlist"):
        parts.append((index, index.nlist))
    if hasattr(index, "pq"):
        # It would take seconds per code.
        index.do_polysemous_training = False
        parts.append((index.pq, index.pq.ksub))
    return parts


def _on_gpu(index: Any, factory: str, device: torch.device) -> Any | None:
    """A copy on this GPU; None on a CPU, or where faiss has no such index on a GPU."""
    if device.type != "cuda" or not hasattr(faiss, "StandardGpuResources"):
        return None
    resources = faiss.StandardGpuResources()
    try:
        return faiss.index_cpu_to_gpu(resources, device.index, index)
    except RuntimeError as error:
        log.info("%s is searched on the CPU: %s", factory, _faiss_message(error))
        return None


def _require_faiss(factory: str) -> None:
    if faiss is None:
        raise InputError(
            f"without faiss the index must be 'Flat', got {factory!r}; pip install faiss-cpu"
        )
