"""Evaluation by search: the best documents of the whole corpus for the queries of a split, by the
current weights.

Letters of shapes: Q queries, K documents found per query, B queries of a batch.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ltr.batch import RankingBatch
from ltr.data.layouts import ApartTexts
from ltr.data.query_lists import QueryLists, are_among, values_of
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.models.dual_encoder import DualEncoder
from ltr.processes import gather_objects
from ltr.search.corpus_windows import WindowsOfCorpus
from ltr.search.embedder import Precision, embedder_of
from ltr.search.encoding_places import Encodings, smallest_share, texts_of_store
from ltr.search.faiss_index import empty_index
from ltr.search.shards import Shards, encode_everywhere, query_spans, share_of

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
        own_docs: ``[Q]`` int64, for each query the document that it is itself, which it never
            finds; −1 for none. None: no query is a document.
        first_query, first_doc: the numbers that the first query and the first document have among
            those of all sources.
    """

    queries: TokenStore
    docs: TokenStore
    reads: ApartTexts
    depth: int
    index: str = "Flat"
    own_docs: np.ndarray | None = field(default=None, compare=False)
    first_query: int = 0
    first_doc: int = 0

    def own(self, query_rows: np.ndarray) -> np.ndarray:
        """Those of the queries of all sources that are of this one, by their rows here."""
        rows = query_rows - self.first_query
        return rows[(rows >= 0) & (rows < len(self.queries))]

    def check(self, dim: int, cutoffs: Mapping[str, int | None]) -> None:
        """Check before training what the search after it would fail at, see :func:`check_search`."""
        check_search(self.depth, self.index, (self._n_embeddings(), dim), cutoffs)

    def _n_embeddings(self) -> int:
        """How many embeddings the documents have: one each, or one for each window."""
        if self.reads.docs.has_many_embeddings:
            return WindowsOfCorpus(self.docs, self.reads.docs, len(self.docs)).n_windows
        return len(self.docs)


def check_search(
    depth: int, index: str, shape: tuple[int, int], cutoffs: Mapping[str, int | None]
) -> None:
    """Check what a search would fail at.

    Args:
        depth, index: see :class:`SearchedCorpus`.
        shape: how many embeddings the documents have, and H, the size of each.
        cutoffs: for each metric, by name, how many documents it looks at; None: all.

    Raises:
        InputError: if faiss can't build the index, or a metric looks deeper than the search goes.
    """
    if index != "Flat":
        n_embeddings, dim = shape
        try:
            # Whether it can be built does not depend on the metric: any will do.
            empty_index(index, (smallest_share(n_embeddings), dim), squared=True)
        except InputError as error:
            raise InputError(error.message, option="evaluation.index") from None
    deeper = [name for name, k in cutoffs.items() if k is not None and k > depth]
    if deeper:
        raise InputError(
            f"the search must go as deep as the metrics look, got a depth of {depth} for {', '.join(deeper)}; raise it",
            option="evaluation.depth",
        )


def batch_of_found(found_lists: QueryLists, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
    """The lists that a search has found for the queries of a batch.

    Args:
        found_lists: best first, as :func:`search_corpus` returns them.
        batch: has the queries, with all their judgements.

    Returns:
        Scores ``[B, K]``, 0 where a query has fewer documents; and the batch with these documents
        and their grades.
    """
    assert batch.judged_rows is not None, "text batches carry all judgements"
    assert batch.judged_grades is not None, "text batches carry all judgements"
    lists = [found_lists.of(query_row) for query_row in batch.query_rows.tolist()]
    longest = max((len(docs) for docs, _ in lists), default=0)
    shape = (len(lists), longest)
    doc_rows = np.zeros(shape, np.int64)
    scores = np.zeros(shape, np.float32)
    labels = np.zeros(shape, np.float32)
    mask = np.zeros(shape, bool)
    judged = np.zeros(shape, bool)
    judged_rows = batch.judged_rows.cpu().numpy()
    judged_grades = batch.judged_grades.cpu().numpy()
    for place, (rows_found, scores_found) in enumerate(lists):
        columns = slice(0, len(rows_found))
        doc_rows[place, columns] = rows_found
        scores[place, columns] = scores_found
        labels[place, columns] = values_of(rows_found, judged_rows[place], judged_grades[place])
        mask[place, columns] = True
        judged[place, columns] = are_among(rows_found, judged_rows[place])
    device = batch.mask.device
    ranked = batch._replace(
        doc_rows=torch.from_numpy(doc_rows).to(device),
        mask=torch.from_numpy(mask).to(device),
        labels=torch.from_numpy(labels).to(device),
        judged=torch.from_numpy(judged).to(device),
        places=None,
    )
    return torch.from_numpy(scores).to(device), ranked


def search_corpora(
    model: DualEncoder,
    corpora: Sequence[SearchedCorpus],
    query_rows: np.ndarray,
    encodings_of: Callable[[SearchedCorpus], Encodings],
    *,
    trial: bool = False,
    precision: Precision = nullcontext,
    precision_name: str = "32-true",
) -> QueryLists:
    """Search the corpus of each source for its queries, see :func:`search_corpus`. A corpus that
    several share is encoded once.

    Args:
        model: the dual encoder whose embeddings are compared.
        corpora: of the sources, in the order of their queries.
        query_rows: ``[Q]`` int64, the queries of this process, by their numbers among those of all
            sources.
        encodings_of: where the embeddings of a corpus lie.
        trial, precision, precision_name: as of :func:`search_corpus`.

    Returns:
        The documents by their numbers among those of all sources.
    """
    # Sources of one corpus one after the other: a run keeps the encoding of the last one alone.
    order = sorted(range(len(corpora)), key=lambda number: corpora[number].first_doc)
    lists_of: dict[int, QueryLists] = {}
    for number in order:
        corpus = corpora[number]
        lists = search_corpus(
            model,
            corpus,
            corpus.own(query_rows),
            encodings_of(corpus),
            trial=trial,
            precision=precision,
            precision_name=precision_name,
        )
        lists_of[number] = lists._replace(
            query_rows=lists.query_rows + corpus.first_query,
            doc_rows=lists.doc_rows + corpus.first_doc,
        )
    return QueryLists.end_to_end([lists_of[number] for number in range(len(corpora))])


def search_corpus(
    model: DualEncoder,
    corpus: SearchedCorpus,
    query_rows: np.ndarray,
    encodings: Encodings,
    *,
    trial: bool = False,
    precision: Precision = nullcontext,
    precision_name: str = "32-true",
) -> QueryLists:
    """Find the best documents of a corpus for the queries that this process evaluates, best first.

    Each process encodes its share of the corpus and searches it for the queries of all, see
    ``ltr.search.shards.Shards``. All processes must call it.

    Args:
        model: the dual encoder whose embeddings are compared.
        corpus: what is searched, and how deep.
        query_rows: ``[Q]`` int64, the queries of this process; may be empty.
        encodings: where the embeddings of the documents lie, in float32. What was encoded there under
            these weights is not encoded again.
        trial: to try a run quickly, search only the first 1,000 documents, exactly, where there are
            more.
        precision: makes the context in which texts are encoded, such as ``torch.autocast``; called
            several times. By default models run as they stand.
        precision_name: what ``trainer.precision`` calls it.

    Raises:
        InputError: if the embeddings are not finite, or faiss can't build the index.
    """
    n_docs = len(corpus.docs)
    factory = corpus.index
    if trial and n_docs > TRIAL_DOCS:
        log.info(
            "a trial run searches %d of %d documents: its metrics mean nothing", TRIAL_DOCS, n_docs
        )
        n_docs = TRIAL_DOCS
        factory = "Flat"
    all_query_rows = np.unique(np.concatenate(gather_objects(query_rows)))
    if len(all_query_rows) == 0:
        return QueryLists.from_rows([], [], [])
    reads = corpus.reads
    embedder = embedder_of(model, "document", precision, precision_name)
    texts = texts_of_store(corpus.docs, n_docs)
    windows = None
    if reads.docs.has_many_embeddings:
        windows = WindowsOfCorpus(corpus.docs, reads.docs, n_docs)
        embedder = windows.embedder(embedder)
        texts = windows.texts()
    with encodings.encoding_of(embedder, texts, "float32") as encoding:
        with precision():
            embedded_queries = encode_everywhere(
                model.query_tower, corpus.queries, reads.queries, all_query_rows
            )
        shards = Shards(*share_of(encoding), model.similarity, factory, device=model.device)
        own_docs = np.full(len(all_query_rows), -1)
        if corpus.own_docs is not None:
            own_docs = corpus.own_docs[all_query_rows]
        # One more where a query may find itself, which is left out below.
        depth = corpus.depth + 1 if (own_docs >= 0).any() else corpus.depth
        depth = min(depth, n_docs)
        found = []
        for span in query_spans(len(all_query_rows), depth):
            rows = all_query_rows[span]
            if windows is None:
                scores, doc_rows = shards.search(embedded_queries[span], depth)
            else:
                scores, doc_rows = windows.search(shards.search, embedded_queries[span], depth)
            # A text would mostly find itself first, which says nothing.
            doc_rows = np.where(doc_rows == own_docs[span, None], -1, doc_rows)
            is_of_rank = np.isin(rows, query_rows)
            lists = QueryLists.from_matrix(
                rows[is_of_rank], doc_rows[is_of_rank], scores[is_of_rank]
            )
            found.append(lists.cut(corpus.depth))
    return QueryLists.end_to_end(found)
