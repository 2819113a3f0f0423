"""Dual encoder: queries and documents are read apart, and the similarity of their embeddings is the score."""

import math
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, Texts
from ltr.data.formats import ApartTexts, SingleTexts
from ltr.errors import InputError
from ltr.models.backbone import Dropouts
from ltr.models.tower import Tower, load_modules, quiet
from ltr.similarity import cosine, dot, euclidean, squared_euclidean

SIMILARITIES = {"dot": dot, "cosine": cosine, "euclidean": euclidean, "squared_euclidean": squared_euclidean}
LOWEST_TEMPERATURE = 0.01  # of a learnt one: CLIP keeps it from scaling logits by more than 100, or training becomes unstable


class DualEncoder(nn.Module):
    r"""Two towers and a similarity: :math:`s(q, d) = \mathrm{sim}(\mathrm{enc}_q(q), \mathrm{enc}_d(d)) \,/\, \tau`.

    Towers are sentence-transformers models: any of an encoder and one pooling loads, and what is trained is saved as one.

    Args:
        backbone: hub id, folder, or ``package:NAME``: a sentence-transformers model, or a plain encoder (then mean pooling).
        doc_backbone: of the documents' tower, with weights of its own also where the name is the same. None: one tower for both
            sides, or the two of a backbone that has two.
        pooling: ``cls``, ``mean`` or ``max``; None: the model's own.
        projection: dimensions of a linear map of the embeddings, to be trained; None: none is added.
        normalise: whether embeddings have length 1; None: as the model comes.
        similarity: ``dot``, ``cosine``, ``euclidean`` or ``squared_euclidean``, see :mod:`ltr.similarity`.
        temperature: :math:`\tau`, above 0.
        learn_temperature: train its logarithm; :math:`\tau` then stays at or above 0.01.
        query_prompt: what stands in front of every query; None: the model's own; empty: nothing.
        doc_prompt: the same for documents.
        max_length: tokens of a text, prompt and special ones counted; None: as the model comes.
        encoder_dropout: ``hidden``: the encoder's own but for that of the attention weights; ``own``: all of it; ``none``.
        max_tokens, keep_tokens, compile: of each tower, see :class:`ltr.models.text_encoder.TextEncoder`.

    Attributes:
        text_format: how texts of queries and of documents are laid out.
        dim: H, the size of an embedding.

    Raises:
        InputError: if a backbone can't be loaded or read so, or options are out of bounds.

    References:
        Reimers & Gurevych (2019), Sentence-BERT: sentence embeddings using Siamese BERT-networks.
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering (a tower for each side).
        Radford et al. (2021), Learning transferable visual models from natural language supervision (learnt temperature).
    """

    gives_embeddings = True

    def __init__(
        self,
        backbone: str,
        doc_backbone: str | None = None,
        pooling: Literal["cls", "mean", "max"] | None = None,
        projection: int | None = None,
        normalise: bool | None = None,
        similarity: Literal["dot", "cosine", "euclidean", "squared_euclidean"] = "cosine",
        temperature: float = 1.0,
        learn_temperature: bool = False,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        max_length: int | None = None,
        encoder_dropout: Dropouts = "hidden",
        max_tokens: int | None = None,
        keep_tokens: int | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if similarity not in SIMILARITIES:
            raise InputError(
                f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r} (option model.init_args.similarity)"
            )
        _check_temperature(temperature, learn_temperature)
        self.similarity, self._temperature = similarity, temperature
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature))) if learn_temperature else None

        loaded = load_modules(backbone)
        docs = loaded if doc_backbone is None else load_modules(doc_backbone, "doc_backbone")
        sides = [loaded.query] if docs.doc is loaded.query else [loaded.query, docs.doc]
        reading = (pooling, projection, normalise, encoder_dropout, max_tokens, keep_tokens, compile)
        # A list, and towers by property: a shared tower has each of its weights in the state once.
        self.towers = nn.ModuleList([Tower(modules, *reading) for modules in sides])
        self.dim = self.query_tower.dim
        if self.doc_tower.dim != self.dim:
            raise InputError(
                f"both towers must give embeddings of one size, got {self.dim} and {self.doc_tower.dim} dimensions; set "
                "model.init_args.projection"
            )
        self.text_format = ApartTexts(
            _form(self.query_tower, loaded.query_prompt if query_prompt is None else query_prompt, max_length, backbone),
            _form(self.doc_tower, docs.doc_prompt if doc_prompt is None else doc_prompt, max_length, doc_backbone or backbone),
        )
        self.train()  # from_pretrained leaves modules in eval mode, and Lightning keeps what it finds: no dropout, silently

    @property
    def query_tower(self) -> Tower:
        """Of the queries."""
        return self.towers[0]

    @property
    def doc_tower(self) -> Tower:
        """Of the documents: the same object where the tower is shared."""
        return self.towers[-1]

    @property
    def temperature(self) -> float | Tensor:
        """By which a similarity is divided."""
        if self.log_temperature is None:
            return self._temperature
        return self.log_temperature.clamp(min=math.log(LOWEST_TEMPERATURE)).exp()

    def forward(self, batch: RankingBatch) -> Tensor:
        """Scores ``[B, N]`` float32 of the lists, 0 at the padding."""
        return self.represent(batch)[0]

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]`` as ``forward`` gives them, and the documents' embeddings ``[B, N, H]``, both 0 at the padding.

        Raises:
            InputError: if the lists have no queries.
        """
        queries, docs = self.embed(batch)
        if queries is None:
            raise InputError("lists must have queries to be scored, got none; rank their texts against each other instead")
        return self.score(queries.unsqueeze(1), docs).squeeze(1).masked_fill(~batch.mask, 0.0), docs

    def embed(self, batch: RankingBatch) -> tuple[Tensor | None, Tensor]:
        """Embeddings of the queries ``[B, H]`` (None where there are none) and documents ``[B, N, H]``, 0 at the padding.

        Float32; one encoder pass where the tower is shared.

        Raises:
            InputError: for lists without queries where there are two towers: one of them would never learn.
        """
        if self.training and self.log_temperature is not None:
            # As CLIP does between steps: below the bound it would get no gradient to come back by.
            self.log_temperature.data.clamp_(min=math.log(LOWEST_TEMPERATURE))
        queries = None
        if batch.queries is None:
            if len(self.towers) > 1:
                raise InputError(
                    "groups of texts without queries train one tower, and the model has two; leave out "
                    "model.init_args.doc_backbone"
                )
            docs = self.doc_tower(batch.docs)
        elif len(self.towers) == 1:
            both = self.query_tower(_end_to_end(batch.queries, batch.docs))
            queries, docs = both.split([len(batch.queries.lengths), len(batch.docs.lengths)])
        else:
            queries, docs = self.query_tower(batch.queries), self.doc_tower(batch.docs)
        return queries, docs.new_zeros(*batch.mask.shape, self.dim).masked_scatter(batch.mask.unsqueeze(2), docs)

    def score(self, queries: Tensor, docs: Tensor) -> Tensor:
        """Similarity over temperature, ``[…, A, D]`` float32.

        Args:
            queries: ``[…, A, H]``.
            docs: ``[…, D, H]``.
        """
        return SIMILARITIES[self.similarity](queries, docs) / self.temperature

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``SentenceTransformer(folder)`` loads, and this class: whole, or not at all.

        Its ``encode_query`` and ``encode_document`` give the embeddings of this model, prompts and ``max_length`` included; two
        towers are the two routes of a router. Similarity is saved by its name (a distance is not squared there), a temperature
        is not.

        Raises:
            InputError: if the folder exists.
        """
        from sentence_transformers import SentenceTransformer  # here, not above: see ltr.models.tower
        from sentence_transformers.sentence_transformer.modules import Router

        folder = Path(folder)
        if folder.exists():
            raise InputError(f"the folder of a saved model must not exist yet, got {str(folder)!r}; remove it, or take another")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.tmp-"))
        try:
            with quiet(), ExitStack() as stack:
                forms = zip(self.towers, self.text_format, strict=False)  # a shared tower's are alike
                sides = [stack.enter_context(tower.as_saved(form.max_length)) for tower, form in forms]
                SentenceTransformer(
                    modules=sides[0] if len(sides) == 1 else [Router.for_query_document(*sides)],
                    device=str(next(self.parameters()).device),
                    # No other prompts of the model, nor a default one: it would stand in for a prompt that is empty.
                    prompts={"query": self.text_format.queries.prompt, "document": self.text_format.docs.prompt},
                    similarity_fn_name=self.similarity.removeprefix("squared_"),
                ).save(str(partial), create_model_card=False)  # it would run the model, and leave it in eval mode
            partial.chmod(0o755)  # a temporary folder is for its owner alone
            os.rename(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _check_temperature(temperature: float, learnt: bool) -> None:
    lowest = LOWEST_TEMPERATURE if learnt else 0
    if not (math.isfinite(temperature) and temperature > 0 and temperature >= lowest):
        bound = f"at least {lowest} where it is learnt" if learnt else "above 0"
        raise InputError(f"temperature must be {bound}, got {temperature} (option model.init_args.temperature)")


def _form(tower: Tower, prompt: str, max_length: int | None, backbone: str) -> SingleTexts:
    """How the texts of a tower are laid out."""
    if prompt and not tower.pools_prompt:
        raise InputError(
            f"backbone {backbone!r} leaves the prompt {prompt!r} out of its pooling, which can't be done here; set "
            "model.init_args.query_prompt and doc_prompt to ''"
        )
    if max_length is not None and tower.max_positions is not None and max_length > tower.max_positions:
        raise InputError(
            f"max_length must be at most {tower.max_positions}, the positions of {backbone!r}, got {max_length} "
            "(option model.init_args.max_length)"
        )
    length = tower.own_max_length if max_length is None else max_length
    if length is None:
        raise InputError(f"backbone {backbone!r} says no longest text; set model.init_args.max_length")
    return SingleTexts(tower.tokenizer, length, prompt)


def _end_to_end(first: Texts, second: Texts) -> Texts:
    """The texts of both, as one tokenizer made them."""
    types = None if first.type_ids is None else torch.cat([first.type_ids, second.type_ids])
    return Texts(torch.cat([first.ids, second.ids]), torch.cat([first.lengths, second.lengths]), types)
