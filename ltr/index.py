"""The nearest documents of queries, by embedding.

Letters of shapes: D documents, Q queries, H dimensions, k found per query.
"""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ltr.data.cache import folder_once, take_room
from ltr.errors import InputError
from ltr.exact_search import best_of_tile, keys, unkeyed

try:
    import faiss
except ImportError:
    faiss = None

log = logging.getLogger(__name__)

Similarity = Literal["dot", "cosine", "euclidean", "squared_euclidean"]

# One tile of an exact search: 64 MB of scores, whatever D and Q are.
QUERIES, DOCS = 1024, 16384
GPU_MOST = 2048  # documents per query that faiss finds on a GPU
ADVISED, ENOUGH = 39, 256  # vectors per centroid that faiss's k-means asks for, and the most it makes use of


class DenseIndex:
    """The documents with the highest scores, as :mod:`ltr.similarity` defines them: higher is better.

    ``Flat`` is exact: the scores of all documents, tile by tile, on the GPU if there is one, else by the faster of faiss and
    torch. It keeps the embeddings it was given, a memory map too, and no copy. Every other factory is faiss's, and holds what
    it needs in memory: ``IVF4096,Flat`` searches some of 4096 clusters, ``HNSW32`` walks a graph, ``IVF4096,PQ48x8`` and ``OPQ…``
    also compress: their scores are those of the compressed documents, near the exact ones and not equal to them. faiss with GPU
    support searches on the GPU what it can.

    Search in the trainer's process, never in a worker of a data loader: forked from a process that has searched, faiss hangs.

    Build it with :meth:`build`, or :meth:`open` one that was saved.

    Attributes:
        similarity, factory, probes: as they were given to :meth:`build`.
        count: D.
        dimension: H.
    """

    def __init__(
        self, docs: Any, similarity: Similarity, factory: str, *, probes: int | None = None, centre: np.ndarray | None = None
    ) -> None:
        self.similarity, self.factory, self.probes = similarity, factory, probes
        self.count, self.dimension = docs.shape if factory == "Flat" else (docs.ntotal, docs.d)
        self._docs = docs  # [D, H] for Flat, else an index of faiss
        self._centre = centre  # [H], and None unless distances are compared
        self._on_gpu = None if factory == "Flat" else _on_gpu(docs, factory)

    def __len__(self) -> int:
        return self.count

    @classmethod
    def build(
        cls, embeddings: np.ndarray, similarity: Similarity, factory: str = "Flat", *, probes: int | None = None, seed: int = 0
    ) -> "DenseIndex":
        """Index the embeddings of documents.

        Args:
            embeddings: ``[D, H]`` float32, may be a memory map. ``Flat`` reads it at every search: it must stay as it is.
            similarity: how a query and a document are compared.
            factory: the kind of index, in faiss's words.
            probes: what a search looks at: clusters of an ``IVF`` (None: the square root of their number), candidates of an
                ``HNSW`` (None: 64; never fewer than k). More is slower and nearer to exact.
            seed: of the sample that clusters and codes are learnt from.

        Raises:
            InputError: if the embeddings aren't finite, faiss can't make such an index, documents are too few for it, or another
                factory than ``Flat`` is asked for without faiss.
        """
        if similarity not in get_args(Similarity):
            raise InputError(f"similarity must be one of {', '.join(get_args(Similarity))}, got {similarity!r}")
        if embeddings.ndim != 2 or not embeddings.size:
            raise InputError(f"an index needs the embeddings [D, H] of at least one document, got {embeddings.shape}")
        if probes is not None and (probes < 1 or not re.search("IVF|HNSW", factory)):
            raise InputError(f"probes must be at least 1, and with an IVF or HNSW index, got {probes} with {factory!r}")
        mean = _checked_mean(embeddings, "embeddings")
        # Moved by the mean document, which changes no distance: where embeddings lie close, their products keep more digits.
        centre = mean if similarity.endswith("euclidean") else None
        docs = embeddings if factory == "Flat" else _faiss_index(embeddings, similarity, centre, factory, probes, seed)
        return cls(docs, similarity, factory, probes=probes, centre=centre)

    @staticmethod
    def check(factory: str, dimension: int, count: int, option: str) -> None:
        """Whether such an index can be built of so many documents, before they are encoded.

        Raises:
            InputError: if not; it names the option that says the factory.
        """
        if factory != "Flat":
            try:
                _empty_index(factory, dimension, count, faiss and faiss.METRIC_L2)
            except InputError as error:
                raise InputError(f"{error} (option {option})") from None

    # Searching

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents of each query, best first; of equal scores the larger row first, as in trec_eval.

        Where more documents have the k-th score than there is room for, ``Flat`` gives the larger rows of them.

        Args:
            queries: ``[Q, H]``.
            k: documents per query.

        Returns:
            Scores ``[Q, k]`` float32 and rows ``[Q, k]`` int64; −inf and −1 where fewer than k were found.

        Raises:
            InputError: for queries of another dimension or that aren't finite, or if k is below 1.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise InputError(f"queries must be [Q, {self.dimension}] as the documents, got {queries.shape}")
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        _checked_mean(queries, "queries")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            scores, rows = self._exact(queries, k, device) if self.factory == "Flat" else self._approximate(queries, k)
            if self.similarity == "euclidean":
                scores = -(-scores).sqrt()
            scores, rows = unkeyed(keys(scores, rows).sort(dim=1, descending=True).values)
        return scores.numpy(), rows.numpy()

    def _prepared(self, embeddings: np.ndarray) -> np.ndarray:
        return _prepared(embeddings, self.similarity, self._centre)

    def _exact(self, queries: np.ndarray, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
        best = keys(torch.full((len(queries), k), -torch.inf), torch.tensor(-1))
        for of_docs in _spans(self.count, DOCS):
            docs = torch.from_numpy(self._prepared(self._docs[of_docs])).to(device)
            for of_queries in _spans(len(queries), QUERIES):
                some = torch.from_numpy(self._prepared(queries[of_queries])).to(device)
                scores, rows = best_of_tile(some, docs, k, self._centre is not None)
                found = keys(scores, rows + of_docs.start).cpu()
                best[of_queries] = torch.cat([best[of_queries], found], dim=1).topk(k).values
        return unkeyed(best)

    def _approximate(self, queries: np.ndarray, k: int) -> tuple[Tensor, Tensor]:
        index = self._docs if self._on_gpu is None or k > GPU_MOST else self._on_gpu
        scores, rows = (torch.from_numpy(x) for x in index.search(self._prepared(queries), k))
        if self._centre is not None:  # faiss answers squared distances, smaller is better
            scores = -scores.clamp(min=0)
        return scores.masked_fill(rows < 0, -torch.inf), rows

    # Keeping

    def save(self, folder: Path) -> None:
        """Write the index into a new folder, which is whole or absent.

        Raises:
            InputError: if the folder is there.
        """
        if folder.exists():
            raise InputError(
                f"{folder}: an index is saved into a new folder, and this one is there; remove it, or save elsewhere"
            )
        folder_once(folder, self._write)

    def _write(self, folder: Path) -> None:
        names = ("similarity", "factory", "probes", "count", "dimension")
        (folder / "manifest.json").write_text(json.dumps({name: getattr(self, name) for name in names}, indent=1) + "\n")
        if self._centre is not None:
            np.save(folder / "centre.npy", self._centre)
        if self.factory != "Flat":
            faiss.write_index(self._docs, str(folder / "index.faiss"))
            return
        file = folder / "embeddings.npy"
        copy = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=self._docs.shape)
        take_room(file)
        for span in _spans(self.count, DOCS):
            copy[span] = self._docs[span]
        copy.flush()

    @classmethod
    def open(cls, folder: Path) -> "DenseIndex":
        """Open an index that was saved; the embeddings of ``Flat`` are mapped from their file.

        Raises:
            InputError: if there is none, it is damaged, or it needs faiss and that is missing.
        """
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            similarity, factory = manifest["similarity"], manifest["factory"]
            centre = np.load(folder / "centre.npy") if similarity.endswith("euclidean") else None
            if factory == "Flat":
                docs = np.load(folder / "embeddings.npy", mmap_mode="r")
            else:
                _require_faiss(factory)
                docs = faiss.read_index(str(folder / "index.faiss"))
            index = cls(docs, similarity, factory, probes=manifest["probes"], centre=centre)
            said, found = (manifest["count"], manifest["dimension"]), (index.count, index.dimension)
        except InputError:
            raise
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{folder} must hold a whole index, as DenseIndex.save writes it, got {_reason(error)}; build it again"
            ) from None
        if said != found:
            raise InputError(
                f"{folder}: its manifest says {said} documents and dimensions, its index has {found}; build it again"
            )
        return index


def _prepared(embeddings: np.ndarray, similarity: Similarity, centre: np.ndarray | None) -> np.ndarray:
    """A copy whose inner products or distances are the scores."""
    embeddings = np.array(embeddings, dtype=np.float32, order="C")
    if similarity == "cosine":
        embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    elif centre is not None:
        embeddings -= centre
    return embeddings


def _checked_mean(embeddings: np.ndarray, name: str) -> np.ndarray:
    """``[H]`` float32, read block by block.

    Raises:
        InputError: naming the first row that isn't finite.
    """
    total = np.zeros(embeddings.shape[1])
    for span in _spans(len(embeddings), DOCS):
        finite = np.isfinite(embeddings[span]).all(axis=1)
        if not finite.all():
            bad = span.start + int(finite.argmin())
            raise InputError(f"{name} must be finite, got NaN or infinity in row {bad}; look at the model that made them")
        total += embeddings[span].sum(axis=0, dtype=np.float64)
    return (total / max(1, len(embeddings))).astype(np.float32)


def _spans(n: int, size: int) -> Iterator[slice]:
    return (slice(begin, min(begin + size, n)) for begin in range(0, n, size))


# faiss


def _faiss_index(
    embeddings: np.ndarray, similarity: Similarity, centre: np.ndarray | None, factory: str, probes: int | None, seed: int
) -> Any:
    """A trained index of faiss that holds the documents."""
    count, dimension = embeddings.shape
    metric = faiss and (faiss.METRIC_INNER_PRODUCT if centre is None else faiss.METRIC_L2)
    index = _empty_index(factory, dimension, count, metric)
    clusters = faiss.try_extract_index_ivf(index)
    try:
        if not index.is_trained:
            learners = _learners(index)
            most = max((n for _, n in learners), default=1)
            for learner, _ in learners:
                learner.cp.min_points_per_centroid = 1  # else it warns on the screen, as often as it learns
            if count < ADVISED * most:
                log.warning(
                    "%s: %d documents are few to learn %d centroids from; faiss advises %d", factory, count, most, ADVISED * most
                )
            sample = np.random.default_rng(seed).choice(count, min(count, ENOUGH * most), replace=False)
            index.train(_prepared(embeddings[np.sort(sample)], similarity, centre))
        for span in _spans(count, DOCS):
            index.add(_prepared(embeddings[span], similarity, centre))
        if clusters is not None:
            faiss.ParameterSpace().set_index_parameter(index, "nprobe", probes or round(clusters.nlist**0.5))
        elif "HNSW" in factory:
            faiss.ParameterSpace().set_index_parameter(index, "efSearch", probes or 64)
    except RuntimeError as error:
        raise _cannot_build(factory, dimension, count, error) from None
    return index


def _empty_index(factory: str, dimension: int, count: int, metric: int) -> Any:
    """An index of faiss for so many documents, not trained."""
    _require_faiss(factory)
    try:
        index = faiss.index_factory(dimension, factory, metric)
    except RuntimeError as error:
        raise _cannot_build(factory, dimension, count, error) from None
    clusters = faiss.try_extract_index_ivf(index)
    if clusters is not None and clusters.nlist > count:
        raise InputError(
            f"the {clusters.nlist} clusters of {factory!r} can't be more than the documents, got {count}; take fewer"
        )
    return index


def _cannot_build(factory: str, dimension: int, count: int, error: RuntimeError) -> InputError:
    return InputError(
        f"the index must be one that faiss can build of {count} embeddings of {dimension} dimensions, got {factory!r}: "
        f"{_reason(error)}"
    )


def _learners(index: Any) -> list[tuple[Any, int]]:
    """What in an index of faiss runs k-means, and for how many centroids; what else takes long to learn is turned off."""
    found, index = [], faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        for place in range(index.chain.size()):
            rotation = faiss.downcast_VectorTransform(index.chain.at(place))
            if isinstance(rotation, faiss.OPQMatrix):
                rotation.pq = codes = faiss.ProductQuantizer(rotation.d_out, rotation.M, 8)  # as its own, which can't be reached
                found.append((codes, codes.ksub))
        return found + _learners(index.index)
    if hasattr(index, "storage"):
        return _learners(index.storage)
    if hasattr(index, "nlist"):
        found.append((index, index.nlist))
    if hasattr(index, "pq"):
        index.do_polysemous_training = False  # seconds per code for a kind of search that is not ours
        found.append((index.pq, index.pq.ksub))
    return found


def _on_gpu(index: Any, factory: str) -> Any | None:
    """A copy on this process's GPU, or None."""
    if not torch.cuda.is_available() or not hasattr(faiss, "StandardGpuResources"):
        return None
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), torch.cuda.current_device(), index)
    except RuntimeError as error:
        log.info("%s is searched on the CPU: %s", factory, _reason(error))
        return None


def _require_faiss(factory: str) -> None:
    if faiss is None:
        raise InputError(f"without faiss the index must be 'Flat', got {factory!r}; pip install faiss-cpu")


def _reason(error: Exception) -> str:
    """What went wrong, without the place in faiss's own source."""
    return re.sub(r"^Error in .*? at \S+:\d+: ", "", str(error), flags=re.DOTALL)
