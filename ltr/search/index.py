"""The documents nearest to queries, by their embeddings.

Letters of shapes: D documents, Q queries, H dimensions, k documents found per query.
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from ltr.data.files import folder_once, new_array, read_array
from ltr.errors import InputError
from ltr.search.approximate import FaissIndex, one_line
from ltr.search.embeddings import DOCS, Similarity, checked_sum, prepared, spans
from ltr.search.exact import keys, search_exactly, unkeyed


class DenseIndex:
    """Finds the documents with the highest scores, as :mod:`ltr.similarity` defines them: higher is better.

    ``Flat`` is exact: it computes the scores of all documents, tile by tile, on the GPU if there is one, else by the faster of
    faiss and torch. It reads the embeddings where they are, a memory map too, and makes no copy.

    Every other factory is faiss's, and holds what it needs in memory: ``IVF4096,Flat`` searches some of 4096 clusters, ``HNSW32``
    walks a graph, ``IVF4096,PQ48x8`` and ``OPQ…`` also compress: their scores are those of the compressed documents, close to the
    exact ones. faiss with GPU support searches on the GPU where it can.

    Search in the trainer's process, never in a worker of a data loader: forked from a process that has searched, faiss hangs.

    Build one with :meth:`build`, or :meth:`open` one that was saved.

    Attributes:
        similarity, factory, probes: as given to :meth:`build`.
        count: D.
        dimension: H.
    """

    def __init__(
        self, docs: np.ndarray | FaissIndex, similarity: Similarity, factory: str, probes: int | None, centre: np.ndarray | None
    ) -> None:
        self.similarity, self.factory, self.probes = similarity, factory, probes
        self.count, self.dimension = docs.shape
        self._docs, self._centre = docs, centre  # [D, H] for Flat; [H], None unless distances are compared
        self._prepare = partial(prepared, similarity=similarity, centre=centre)

    def __len__(self) -> int:
        return self.count

    @classmethod
    def build(
        cls,
        embeddings: np.ndarray,
        similarity: Similarity,
        factory: str = "Flat",
        *,
        probes: int | None = None,
        seed: int = 0,
        mean: np.ndarray | None = None,
    ) -> "DenseIndex":
        """Index the embeddings of documents.

        Args:
            embeddings: ``[D, H]`` float32, may be a memory map. ``Flat`` reads it at every search, so it must not change.
            similarity: how a query and a document are compared.
            factory: the kind of index, as a faiss factory string.
            probes: how much a search looks at: clusters of an ``IVF`` (None: the square root of their number), candidates of an
                ``HNSW`` (None: 64; never fewer than k). More is slower and closer to exact.
            seed: of the sample from which clusters and codes are learnt.
            mean: ``[H]`` float32, of the embeddings of all processes, where these are a share of them that is checked already.

        Raises:
            InputError: if the embeddings are not finite, faiss can't make such an index, there are too few documents for it, or
                another factory than ``Flat`` is asked for without faiss.
        """
        if similarity not in get_args(Similarity):
            raise InputError(f"similarity must be one of {', '.join(get_args(Similarity))}, got {similarity!r}")
        if embeddings.ndim != 2 or (mean is None and not embeddings.size):
            raise InputError(f"an index needs the embeddings [D, H] of at least one document, got {embeddings.shape}")
        if probes is not None and (probes < 1 or not re.search("IVF|HNSW", factory)):
            raise InputError(f"probes must be at least 1, and with an IVF or HNSW index, got {probes} with {factory!r}")
        if mean is None:
            mean = (checked_sum(embeddings, "embeddings") / len(embeddings)).astype(np.float32)
        centre = mean if similarity.endswith("euclidean") else None
        docs: np.ndarray | FaissIndex = embeddings
        if factory != "Flat":
            prepare, squared = partial(prepared, similarity=similarity, centre=centre), centre is not None
            docs = FaissIndex.build(embeddings, prepare, factory, squared=squared, probes=probes, seed=seed)
        return cls(docs, similarity, factory, probes, centre)

    # Searching

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents of each query, best first; of equal scores the larger row first, as in trec_eval.

        Where the k-th score is tied and there is no room for all of them, ``Flat`` returns the larger rows.

        Args:
            queries: ``[Q, H]``.
            k: documents per query.

        Returns:
            Scores ``[Q, k]`` float32 and rows ``[Q, k]`` int64; −inf and −1 where fewer than k were found.

        Raises:
            InputError: for queries of another dimension or that are not finite, or if k is below 1.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise InputError(f"queries must be [Q, {self.dimension}] as the documents, got {queries.shape}")
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        checked_sum(queries, "queries")
        squared = self._centre is not None
        with torch.no_grad(), torch.autocast("cuda" if torch.cuda.is_available() else "cpu", enabled=False):
            if isinstance(self._docs, FaissIndex):
                scores, rows = self._docs.search(self._prepare(queries), k, squared)
            else:
                scores, rows = search_exactly(self._docs, queries, k, self._prepare, squared)
        return best_first(scores, rows, self.similarity)

    # Saving

    def save(self, folder: Path) -> None:
        """Write the index into a new folder, which is whole or absent; an InputError if the folder exists."""
        if folder.exists():
            raise InputError(f"{folder}: an index is saved into a new folder, but this one exists; remove it, or choose another")
        folder_once(folder, self._write)

    def _write(self, folder: Path) -> None:
        kind = {"similarity": self.similarity, "factory": self.factory, "probes": self.probes}
        manifest = kind | {"count": self.count, "dimension": self.dimension}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        if self._centre is not None:
            np.save(folder / "centre.npy", self._centre)
        if isinstance(self._docs, FaissIndex):
            self._docs.save(folder / "index.faiss")
            return
        copy = new_array(folder / "embeddings.npy", np.float32, self._docs.shape)
        for span in spans(self.count, DOCS):
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
            centre = np.array(read_array(folder / "centre.npy")) if similarity.endswith("euclidean") else None
            flat = factory == "Flat"
            file = folder / ("embeddings.npy" if flat else "index.faiss")
            docs = read_array(file) if flat else FaissIndex.open(file, factory)
            index = cls(docs, similarity, factory, manifest["probes"], centre)
            said, found = (manifest["count"], manifest["dimension"]), (index.count, index.dimension)
        except InputError:
            raise
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:  # too deep JSON is a RuntimeError
            rule = "must hold a whole index, as DenseIndex.save writes it"
            raise InputError(f"{folder} {rule}, got {one_line(error)}; build it again") from None
        if said != found:
            came = f"its manifest says {said} documents and dimensions, its index has {found}"
            raise InputError(f"{folder}: {came}; build it again")
        return index


def best_first(scores: Tensor, rows: Tensor, similarity: Similarity) -> tuple[np.ndarray, np.ndarray]:
    """Found documents ``[Q, k]`` in order, of equal scores the larger row first; ``euclidean`` takes the root of the scores."""
    if similarity == "euclidean":
        scores = -(-scores).sqrt()
    scores, rows = unkeyed(keys(scores, rows).sort(dim=1, descending=True).values)
    return scores.numpy(), rows.numpy()
