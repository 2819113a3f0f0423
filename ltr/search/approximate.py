"""Approximate search: the indexes that faiss builds."""

import logging
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ltr.errors import InputError
from ltr.search.embeddings import DOCS, Prepare
from ltr.spans import spans

try:
    import faiss
except ImportError:
    faiss = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

GPU_MOST = 2048  # documents per query that faiss finds on a GPU
# Documents from which an index without centroids learns, at most.
SAMPLE = 65536
# Vectors per centroid that faiss's k-means asks for, and the most that it uses.
ADVISED = 39
ENOUGH = 256


class FaissIndex:
    """An index of faiss that holds its documents. ``on_gpu`` is its copy on a GPU, which is
    searched; None without one.
    """

    def __init__(self, index: Any, factory: str) -> None:
        self.index = index
        self.shape: tuple[int, int] = (index.ntotal, index.d)
        self.on_gpu = _on_gpu(index, factory)

    @classmethod
    def build(
        cls,
        docs: np.ndarray,
        prepare: Prepare,
        factory: str,
        *,
        squared: bool,
        probes: int | None,
        seed: int,
    ) -> "FaissIndex":
        """Train an index on a sample of the documents and add all of them; see
        :meth:`ltr.search.index.DenseIndex.build`.
        """
        index = empty_index(factory, docs.shape, squared=squared)
        clusters = faiss.try_extract_index_ivf(index)
        space = faiss.ParameterSpace()
        try:
            if not index.is_trained:
                index.train(prepare(docs[_sample(index, factory, len(docs), seed)]))
            for span in spans(len(docs), DOCS):
                index.add(prepare(docs[span]))
            if clusters is not None:
                space.set_index_parameter(index, "nprobe", probes or round(clusters.nlist**0.5))
            elif "HNSW" in factory:
                space.set_index_parameter(index, "efSearch", probes or 64)
        except RuntimeError as error:
            raise _cannot_build(factory, docs.shape, error) from None
        return cls(index, factory)

    def search(self, queries: np.ndarray, k: int, squared: bool) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best documents that the index finds, ``[Q, k]`` each; −inf and −1
        where it finds fewer.

        ``queries`` are prepared as the documents were; ``squared``: the index answers squared
        distances, smaller is better.
        """
        index = self.index if self.on_gpu is None or k > GPU_MOST else self.on_gpu
        scores, rows = (torch.from_numpy(x) for x in index.search(queries, k))
        if squared:
            scores = -scores.clamp(min=0)
        return scores.masked_fill(rows < 0, -torch.inf), rows


def empty_index(factory: str, shape: tuple[int, ...], squared: bool) -> Any:
    """An untrained index of faiss of this shape; an InputError if faiss can't make it, or it has
    more clusters than documents.
    """
    _require_faiss(factory)
    count, dim = shape
    try:
        index = faiss.index_factory(
            dim, factory, faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        )
    except RuntimeError as error:
        raise _cannot_build(factory, shape, error) from None
    clusters = faiss.try_extract_index_ivf(index)
    if clusters is not None and clusters.nlist > count:
        rule = f"can't be more than the {count} documents"
        raise InputError(
            f"the {clusters.nlist} clusters of {factory!r} {rule}; ask for fewer clusters"
        )
    return index


def one_line(error: Exception) -> str:
    """What went wrong, without the place in faiss's own source."""
    return re.sub(r"^Error in .*? at \S+:\d+: ", "", str(error), flags=re.DOTALL)


def _cannot_build(factory: str, shape: tuple[int, ...], error: RuntimeError) -> InputError:
    rule = f"one that faiss can build of {shape[0]} embeddings of {shape[1]} dimensions"
    return InputError(f"the index must be {rule}, got {factory!r}: {one_line(error)}")


def _sample(index: Any, factory: str, count: int, seed: int) -> np.ndarray:
    """Rows of the documents to train on: as many as the largest k-means of the index uses."""
    learners = _learners(index)
    if not learners:  # scalar quantizers, rotations: they learn from whatever they get
        return np.sort(np.random.default_rng(seed).choice(count, min(count, SAMPLE), replace=False))
    most = max(n for _, n in learners)
    for learner, _ in learners:
        learner.cp.min_points_per_centroid = (
            1  # otherwise every k-means prints a warning to the screen
        )
    if count < ADVISED * most:
        log.warning(
            "%s: %d documents are few to learn %d centroids from; faiss advises %d",
            factory,
            count,
            most,
            ADVISED * most,
        )
    return np.sort(
        np.random.default_rng(seed).choice(count, min(count, ENOUGH * most), replace=False)
    )


def _learners(index: Any) -> list[tuple[Any, int]]:
    """The parts of an index that run k-means, each with its number of centroids; other slow
    training is turned off.
    """
    found = []
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        chain: Any = index.chain  # typed as a list, which it is not
        for place in range(chain.size()):
            rotation = faiss.downcast_VectorTransform(chain.at(place))
            if isinstance(rotation, faiss.OPQMatrix):
                # Equal to the quantizer that faiss would make for itself, which can't be reached
                # from here.
                rotation.pq = codes = faiss.ProductQuantizer(rotation.d_out, rotation.M, 8)
                found.append((codes, codes.ksub))
        return found + _learners(index.index)
    if hasattr(index, "storage"):
        return _learners(index.storage)
    if hasattr(index, "nlist"):
        found.append((index, index.nlist))
    if hasattr(index, "pq"):
        index.do_polysemous_training = (
            False  # takes seconds per code, for a kind of search that is not used here
        )
        found.append((index.pq, index.pq.ksub))
    return found


def _on_gpu(index: Any, factory: str) -> Any | None:
    """A copy on this process's GPU, or None."""
    if not torch.cuda.is_available() or not hasattr(faiss, "StandardGpuResources"):
        return None
    try:
        return faiss.index_cpu_to_gpu(
            faiss.StandardGpuResources(), torch.cuda.current_device(), index
        )
    except RuntimeError as error:
        log.info("%s is searched on the CPU: %s", factory, one_line(error))
        return None


def _require_faiss(factory: str) -> None:
    if faiss is None:
        raise InputError(
            f"without faiss the index must be 'Flat', got {factory!r}; pip install faiss-cpu"
        )
