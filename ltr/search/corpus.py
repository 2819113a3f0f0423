"""Evaluation by search: the best documents of the whole corpus for the queries of a split, by the current weights.

Letters of shapes: Q queries of this process, K documents found per query, B queries of a batch.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ltr.batch import RankingBatch
from ltr.data.formats import ApartTexts
from ltr.data.query_lists import grades_of
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.models.dual_encoder import DualEncoder
from ltr.search.approximate import empty_index
from ltr.search.encode import encode, encode_batches
from ltr.search.index import DenseIndex
from ltr.search.ranks import barrier, by_rank_0, shared_folder, world_size

log = logging.getLogger(__name__)

TRIAL_DOCS = 1000  # that a trial run searches


@dataclass(frozen=True)
class SearchedCorpus:
    """A corpus to be searched, as a data module hands it over.

    Attributes:
        queries, docs: the tokens of all queries and of all documents.
        reads: how both are laid out for the towers.
        depth: K, how many documents are found per query.
        index: a faiss factory string; ``Flat`` is exact. See :class:`ltr.search.index.DenseIndex`.
        own_texts: whether the queries are the documents themselves; a query then never finds itself.
    """

    queries: TokenStore
    docs: TokenStore
    reads: ApartTexts
    depth: int
    index: str = "Flat"
    own_texts: bool = False

    def check(self, dim: int, cutoffs: Mapping[str, int | None]) -> None:
        """Check before training what the search after it would fail at.

        Args:
            dim: H, the size of an embedding.
            cutoffs: for each metric, by name, how many documents it looks at; None: all.

        Raises:
            InputError: if faiss can't build the index, or a metric looks deeper than the search goes.
        """
        if self.index != "Flat":
            try:
                empty_index(self.index, (len(self.docs), dim), squared=True)
            except InputError as error:
                raise InputError(error.message, option="index") from None
        deeper = ", ".join(name for name, k in cutoffs.items() if k is not None and k > self.depth)
        if deeper:
            message = f"the search must go as deep as the metrics look, got a depth of {self.depth} for {deeper}; raise it"
            raise InputError(message, option="depth")


class FoundLists(NamedTuple):
    """What a search has found for the queries of this process, best first.

    Attributes:
        query_rows: ``[Q]`` int64, ascending.
        scores: ``[Q, K]`` float32; −inf where fewer than K were found.
        doc_rows: ``[Q, K]`` int64; −1 where fewer than K were found.
    """

    query_rows: np.ndarray
    scores: np.ndarray
    doc_rows: np.ndarray

    def of(self, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
        """The lists found for the queries of a batch: scores ``[B, K]``, and the batch with these documents and their grades."""
        rows = batch.query_rows.cpu().numpy()
        at = np.searchsorted(self.query_rows, rows)
        assert (self.query_rows[at] == rows).all(), "every query of the batch was searched for"
        assert batch.judged_rows is not None and batch.judged_grades is not None, "text batches carry all judgements"
        doc_rows = self.doc_rows[at]
        judged = zip(doc_rows, batch.judged_rows.cpu().numpy(), batch.judged_grades.cpu().numpy(), strict=True)
        grades = np.array([grades_of(*one) for one in judged], dtype=np.float32).reshape(doc_rows.shape)
        found, labels, scores = (torch.from_numpy(x).to(batch.mask.device) for x in (doc_rows, grades, self.scores[at]))
        mask = found >= 0
        return scores.masked_fill(~mask, 0.0), batch._replace(doc_rows=found.clamp(min=0), mask=mask, labels=labels)


def search_corpus(
    model: DualEncoder,
    corpus: SearchedCorpus,
    query_rows: np.ndarray,
    folder: Path,
    *,
    trial: bool = False,
    precision: AbstractContextManager | None = None,
) -> FoundLists:
    """Find the best documents of a corpus for the queries that this process evaluates.

    Each process encodes its share of the corpus into one memory map, and searches all of it for its own queries: ``Flat`` in
    the map itself, any other index in one that rank 0 builds and every process loads. All processes must call it.

    Args:
        model: the dual encoder whose embeddings are compared.
        corpus: what is searched, and how deep.
        query_rows: ``[Q]`` int64, the queries of this process; may be empty.
        folder: where the memory map lies for as long as the search takes, in a folder ``corpus-*``; every process must reach it.
            What killed searches have left there is removed.
        trial: search only the first 1,000 documents, exactly, to try a run quickly.
        precision: the context in which texts are encoded, such as ``torch.autocast``; None: as the model stands.

    Raises:
        InputError: if the embeddings are not finite, or faiss can't build the index.
    """
    n_docs, factory, query_rows = len(corpus.docs), corpus.index, np.sort(query_rows)
    if trial and n_docs > TRIAL_DOCS:
        log.info("a trial run searches %d of %d documents: its metrics mean nothing", TRIAL_DOCS, n_docs)
        n_docs, factory = TRIAL_DOCS, "Flat"
    with shared_folder(folder, "corpus") as shared:
        with precision or nullcontext():
            docs = encode(model.doc_tower, corpus.docs, corpus.reads.docs, shared / "embeddings.npy", np.arange(n_docs))
            queries = np.empty((len(query_rows), model.dim), np.float32)
            for places, found in encode_batches(model.query_tower, corpus.queries, corpus.reads.queries, query_rows):
                queries[places] = found
        if factory == "Flat" or world_size() == 1:
            index = DenseIndex.build(docs, model.similarity, factory)
        else:  # building one of faiss takes long, so rank 0 alone does it
            by_rank_0(lambda: DenseIndex.build(docs, model.similarity, factory).save(shared / "index"))
            index = DenseIndex.open(shared / "index")
        scores, doc_rows = index.search(queries, min(corpus.depth + corpus.own_texts, n_docs))
        barrier()  # others may still read the map
    if corpus.own_texts:  # a text would always find itself first, which says nothing
        scores, doc_rows = _without_itself(query_rows, scores, doc_rows)
    return FoundLists(query_rows, scores, doc_rows)


def _without_itself(query_rows: np.ndarray, scores: np.ndarray, doc_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave each query's own text out: one column less."""
    own = doc_rows == query_rows[:, None]
    own[~own.any(axis=1), -1] = True  # it is not among the best, so the last one goes
    kept = (len(doc_rows), doc_rows.shape[1] - 1)
    return scores[~own].reshape(kept), doc_rows[~own].reshape(kept)
