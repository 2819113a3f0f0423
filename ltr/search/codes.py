"""Search by codes of one bit a dimension: the documents that they find best are scored again, by
their stored embeddings.

Letters of shapes: D documents, Q queries, H dimensions, k documents found per query, C candidates
of a query, P pairs of a query and a candidate.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ltr.data.progress import track
from ltr.errors import InputError
from ltr.search.embeddings import DOCS_AT_ONCE, Embeddings, Prepare
from ltr.search.exact import scores_and_rows, sort_keys
from ltr.search.faiss_index import empty_index, faiss
from ltr.spans import spans

# Of a code beside its bits: two numbers that make a score of them.
BYTES_OF_FACTORS = 8
BYTES_OF_ID = 8  # of a document in a cluster
TRAINED_ON_PER_CENTROID = 64
TRAINED_ON_WITHOUT_CLUSTERS = DOCS_AT_ONCE  # whose mean is taken
ROUNDS_OF_KMEANS = 10
CANDIDATES_AT_ONCE = 2**18  # of all queries that are searched for together: some 20 MB
PAIRS_AT_ONCE = DOCS_AT_ONCE // 4  # each is a document as it is read and prepared, and a query
# faiss's word for the bits of a component of a query. With 4 nothing is lost that counts, and a
# search is a quarter faster than with 8, a hundred times faster than with floats (measured with 10^6
# documents of 384 dimensions and one thread).
BITS_OF_QUERY = 4


class CodedIndex:
    """Codes of faiss's RaBitQ in memory, mapped from a file; the embeddings stay on disk.

    A code holds the signs of an embedding, less the mean of all (with clusters: less the centre of
    its cluster), turned at random. By its codes a search finds C candidates, and gives these the
    scores of their stored embeddings.

    Args:
        index: of faiss, with all documents.
        docs: ``[D, H]``, their embeddings.
        prepare: see :meth:`ltr.similarity.Similarity.prepare`.
        candidates: C for each document that is wanted.
        probes: how many clusters a search looks at, where there are clusters.

    Attributes:
        shape: D, H.
    """

    def __init__(
        self, index: Any, docs: Embeddings, prepare: Prepare, candidates: int = 1, probes: int = 1
    ) -> None:
        self.shape: tuple[int, int] = (index.ntotal, index.d)
        self.candidates = candidates
        self._index = index
        self._docs = docs
        self._prepare = prepare
        codes: Any = faiss.downcast_index(index.index)  # behind the rotation
        codes.qb = BITS_OF_QUERY
        if isinstance(codes, faiss.IndexIVF):
            codes.nprobe = probes

    def search(self, queries: np.ndarray, k: int, squared: bool) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best documents that the index finds, ``[Q, k]`` each; −inf and −1
        where it finds fewer. Of equal scores the larger rows.

        ``queries`` are prepared as the documents are; ``squared``: the scores are minus the squared
        distances, else inner products.
        """
        n_candidates = min(self.shape[0], self.candidates * k)
        keys = sort_keys(torch.full((len(queries), k), -torch.inf), torch.tensor(-1))
        n_kept = min(k, n_candidates)
        query_spans = list(spans(len(queries), max(1, CANDIDATES_AT_ONCE // n_candidates)))
        for span in track(query_spans, "searching", "spans of queries"):
            _, rows = self._index.search(queries[span], n_candidates)
            scores = self._exact_scores(queries[span], rows, squared)
            found = sort_keys(torch.from_numpy(scores), torch.from_numpy(rows))
            keys[span, :n_kept] = found.topk(n_kept).values
        return scores_and_rows(keys)

    def _exact_scores(self, queries: np.ndarray, rows: np.ndarray, squared: bool) -> np.ndarray:
        """``[Q, C]`` float32 of candidates ``[Q, C]``; −inf where there is none."""
        scores = np.full(rows.shape, -np.inf, np.float32)
        query_of_p, place_of_p = np.nonzero(rows >= 0)
        row_of_p = rows[query_of_p, place_of_p]
        order = np.argsort(row_of_p, kind="stable")  # the disk is read from begin to end
        for span in spans(len(order), PAIRS_AT_ONCE):
            pairs = order[span]
            docs = self._prepare(self._docs[row_of_p[pairs]])
            their_queries = queries[query_of_p[pairs]]
            if squared:
                compared = -np.square(their_queries - docs).sum(axis=1)
            else:
                compared = np.einsum("ph,ph->p", their_queries, docs)
            scores[query_of_p[pairs], place_of_p[pairs]] = compared
        return scores


def size_of_codes(count: int, dim: int, clusters: int | None) -> int:
    """The bytes of an index of D documents, but for less than a kilobyte of it."""
    size_of_document = -(-dim // 8) + BYTES_OF_FACTORS
    if clusters is None:
        return count * size_of_document + 4 * dim * (dim + 1)
    return count * (size_of_document + BYTES_OF_ID) + 4 * dim * (dim + clusters) + 16 * clusters


def count_of_sample(count: int, clusters: int | None) -> int:
    """Of how many documents codes are learnt."""
    most = TRAINED_ON_WITHOUT_CLUSTERS
    if clusters is not None:
        most = TRAINED_ON_PER_CENTROID * clusters
    return min(count, most)


def write_codes(
    file: Path, docs: Embeddings, prepare: Prepare, clusters: int | None, *, squared: bool
) -> None:
    """Learn the codes of all documents, which are read once in spans, and write them.

    Args:
        file: the new file.
        docs: ``[D, H]``.
        prepare: see :meth:`ltr.similarity.Similarity.prepare`.
        clusters: how many k-means makes; None: a search looks at all documents.
        squared: whether distances are compared, else inner products.
    """
    count, dim = docs.shape
    kind = "" if clusters is None else f"IVF{clusters},"
    index = empty_index(f"RR{dim},{kind}RaBitQ", docs.shape, squared)
    n_trained_on = TRAINED_ON_WITHOUT_CLUSTERS
    if clusters is not None:
        n_trained_on = TRAINED_ON_PER_CENTROID * clusters
        clustered_index: Any = faiss.try_extract_index_ivf(index)
        kmeans = clustered_index.cp
        kmeans.niter = ROUNDS_OF_KMEANS
        kmeans.min_points_per_centroid = 1
        kmeans.max_points_per_centroid = TRAINED_ON_PER_CENTROID
    rows = np.arange(min(count, n_trained_on))
    if count > n_trained_on:
        rows = np.unique(np.random.default_rng(0).integers(count, size=n_trained_on))
    index.train(prepare(docs[rows]))
    doc_spans = track(
        list(spans(count, DOCS_AT_ONCE)), "indexing", f"spans of {DOCS_AT_ONCE} documents"
    )
    if clusters is not None:
        for span in doc_spans:
            index.add(prepare(docs[span]))
    else:
        # Added one after the other, codes would be copied as they grow, and take twice the memory.
        flat: Any = faiss.downcast_index(index.index)
        flat.codes.resize(count * flat.code_size)
        codes = faiss.rev_swig_ptr(flat.codes.data(), count * flat.code_size)
        codes = codes.reshape(count, flat.code_size)
        for span in doc_spans:
            codes[span] = index.sa_encode(prepare(docs[span]))
        flat.ntotal = count
        index.ntotal = count
    faiss.write_index(index, str(file))


def read_codes(file: Path, shape: tuple[int, int]) -> Any:
    """An index of faiss whose codes are mapped: a search reads what it looks at.

    Args:
        file: as :func:`write_codes` has written it.
        shape: D, H.

    Raises:
        InputError: if the file is damaged, or holds codes of other documents.
    """
    expected = f"an index of faiss of {shape[0]:,} embeddings of {shape[1]} dimensions"
    hint = f"remove {file.parent}, and it is made again"
    try:
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:
        raise InputError(f"{file}: expected {expected}, got another file; {hint}") from None
    if (index.ntotal, index.d) != shape:
        raise InputError(
            f"{file}: expected {expected}, got one of {index.ntotal:,} of {index.d}; {hint}"
        )
    return index
