"""Dual encoder: queries and documents are read apart, and the similarity of their embeddings is the
score.
"""

import math
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, Texts
from ltr.data.files import write_new_folder
from ltr.data.formats import ApartTexts
from ltr.errors import InputError
from ltr.models.encoder.loading.pretrained import quiet
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.encoder.tower import Tower, load_modules
from ltr.models.ranker import Ranker, in_lists
from ltr.similarity import similarity_of

LOWEST_TEMPERATURE = 0.01  # of a learnt one: as in CLIP, where larger logits make training unstable


class DualEncoder(Ranker):
    r"""Two towers and a similarity: :math:`s(q, d) = \mathrm{sim}(\mathrm{enc}_q(q),
    \mathrm{enc}_d(d)) \,/\, \tau`.

    Towers are sentence-transformers models: any with one encoder and one pooling loads, and
    :meth:`save` writes one.

    Args:
        backbone: Pretrained model: hub id, folder, or ``package:NAME`` (weights inside an installed
            package). A plain encoder gets mean pooling.
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
        max_length: Tokens of a text, prompt and special ones counted; the rest is cut. None: as in
            the model, where queries and documents may differ.
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
    """

    reads: ApartTexts

    def __init__(
        self,
        backbone: str,
        doc_backbone: str | None = None,
        projection: int | None = None,
        normalise: bool | None = None,
        similarity: str = "cosine",
        temperature: float = 1.0,
        learn_temperature: bool = False,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        max_length: int | None = None,
        encoder: TextEncoder.Options = TextEncoder.Options(),
    ) -> None:
        super().__init__()
        lowest = LOWEST_TEMPERATURE if learn_temperature else 0
        if not 0 < temperature < math.inf or temperature < lowest:
            bound = f"at least {lowest} where it is learnt" if learn_temperature else "above 0"
            raise InputError(
                f"temperature must be {bound}, got {temperature}", option="temperature"
            )
        self.similarity = similarity_of(similarity)
        self._temperature = temperature
        self.log_temperature = (
            nn.Parameter(torch.tensor(math.log(temperature))) if learn_temperature else None
        )

        new = encoder.new_weights
        loaded = load_modules(backbone, "backbone", new)
        docs = loaded if doc_backbone is None else load_modules(doc_backbone, "doc_backbone", new)
        sides = [loaded.query] if docs.doc is loaded.query else [loaded.query, docs.doc]
        # A list, and towers by property: the state dict has each weight of a shared tower once.
        self.towers = nn.ModuleList(
            [Tower(modules, projection, normalise, encoder) for modules in sides]
        )
        self.dim = self.query_tower.dim
        if self.doc_tower.dim != self.dim:
            sizes = f"{self.dim} and {self.doc_tower.dim}"
            message = f"both towers must give embeddings of one size, got {sizes} dimensions; set a projection"
            raise InputError(message, option="projection")
        query_prompt = loaded.query_prompt if query_prompt is None else query_prompt
        doc_prompt = docs.doc_prompt if doc_prompt is None else doc_prompt
        self.reads = ApartTexts(
            self.query_tower.form("query", query_prompt, max_length, backbone),
            self.doc_tower.form("document", doc_prompt, max_length, doc_backbone or backbone),
        )
        # from_pretrained leaves modules in eval mode, and Lightning keeps that: there would be no
        # dropout
        self.train()

    @property
    def query_tower(self) -> Tower:
        """The tower of the queries."""
        return cast(Tower, self.towers[0])

    @property
    def doc_tower(self) -> Tower:
        """The tower of the documents: the same object where the tower is shared."""
        return cast(Tower, self.towers[-1])

    @property
    def temperature(self) -> float | Tensor:
        """What a similarity is divided by."""
        if self.log_temperature is None:
            return self._temperature
        log = self.log_temperature
        # With the gradient of the unbounded logarithm, which leads back. That of a clamp at its
        # bound is 0 since torch 2.15.
        return (log + (log.clamp(min=math.log(LOWEST_TEMPERATURE)) - log).detach()).exp()

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
                "lists must have queries to be scored, got none; rank their texts against each other instead"
            )
        return (
            self.score(queries.unsqueeze(1), docs).squeeze(1).masked_fill(~batch.mask, 0.0),
            queries,
            docs,
        )

    def embed(self, batch: RankingBatch) -> tuple[Tensor | None, Tensor]:
        """Embeddings of the queries ``[B, H]`` (None where there are none) and of the documents
        ``[B, N, H]``, 0 at the padding.

        Float32; one encoder pass where the tower is shared.

        Raises:
            InputError: for lists without queries if there are two towers: one of them would never
                learn.
        """
        if self.training and self.log_temperature is not None:
            # As CLIP does between steps, so that it does not wander off below the bound.
            self.log_temperature.data.clamp_(min=math.log(LOWEST_TEMPERATURE))
        queries = None
        one_tower = len(self.towers) == 1
        assert batch.docs is not None, "the data lays out what the ranker reads"
        if batch.queries is None and not one_tower:
            text = "groups of texts without queries train one tower, and the model has two; leave out doc_backbone"
            raise InputError(text, option="doc_backbone")
        if batch.queries is not None and one_tower:
            both = self.query_tower(_end_to_end(batch.queries, batch.docs))
            queries, docs = both.split([len(batch.queries.lengths), len(batch.docs.lengths)])
        else:
            queries = None if batch.queries is None else self.query_tower(batch.queries)
            docs = self.doc_tower(batch.docs)
        return queries, in_lists(docs, batch.mask)

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Similarity over temperature, ``[…, A, D]`` float32, of queries ``[…, A, H]`` and
        documents ``[…, D, H]``.
        """
        return self.similarity.score(queries, docs) / self.temperature

    def distance(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Euclidean distance, of embeddings of length 1 under ``cosine``: the unit of mined
        negatives.

        ``[…, A, D]`` float32, of queries ``[…, A, H]`` and documents ``[…, D, H]``.
        """
        return self.similarity.distance(queries, docs)

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``SentenceTransformer(folder)`` and this class load. A failure leaves
        no folder.

        There ``encode_query`` and ``encode_document`` give the embeddings of this model, prompts
        and ``max_length`` included. Two towers become the two routes of a router. The name of the
        similarity is saved (``euclidean`` for the squared distance too); the temperature is not.

        Raises:
            InputError: if the folder exists.
        """
        from sentence_transformers import SentenceTransformer  # here, not above: see tower.py
        from sentence_transformers.sentence_transformer.modules import Router

        with quiet(), ExitStack() as stack:
            q, d = (form.max_length for form in self.reads)
            lengths = [(q, d)] if len(self.towers) == 1 else [(q, q), (d, d)]
            towers = zip((self.query_tower, self.doc_tower), lengths, strict=False)
            sides = [stack.enter_context(tower.as_saved(*both)) for tower, both in towers]
            model = SentenceTransformer(
                modules=sides[0] if len(sides) == 1 else [Router.for_query_document(*sides)],
                device=str(next(self.parameters()).device),
                # Without the model's default prompt: it would replace an empty one.
                prompts={"query": self.reads.queries.prompt, "document": self.reads.docs.prompt},
                similarity_fn_name=self.similarity.saved_as,
            )
            # Without a card: it would run the model, and leave it in eval mode.
            write_new_folder(
                Path(folder), lambda partial: model.save(str(partial), create_model_card=False)
            )


def _end_to_end(*parts: Texts) -> Texts:
    """The texts of all parts, as one tokenizer made them."""
    ids, lengths, types = zip(*parts, strict=True)
    return Texts(torch.cat(ids), torch.cat(lengths), None if types[0] is None else torch.cat(types))
