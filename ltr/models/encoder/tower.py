"""A tower of a dual encoder: the modules of a sentence-transformers model around a
:class:`TextEncoder`.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ltr.batch import Texts
from ltr.data.formats import SingleTexts
from ltr.data.template import Side, Template
from ltr.data.windows import Windows
from ltr.dropout import use_keyed_dropout
from ltr.errors import InputError, at_least
from ltr.models.encoder.loading.architecture import (
    EncoderDropout,
    leave_out_dropout,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.cross_modules import read_plain_text
from ltr.models.encoder.loading.model_folder import (
    LOAD_ERRORS,
    SETTINGS_THERE,
    ModelFolder,
    cannot_load,
)
from ltr.models.encoder.loading.pooling import Pooling, name_here, name_there
from ltr.models.encoder.loading.pretrained import (
    check_tokenizer,
    check_vocabulary,
    quiet,
    refuse_misfitting_weights,
    token_limit,
    without_truncation,
)
from ltr.models.encoder.loading.whole_folder import check_is_model
from ltr.models.encoder.text_encoder import TextEncoder

log = logging.getLogger(__name__)

# Importing sentence_transformers takes some ten seconds, and ``import ltr.models`` must not: it is
# imported inside functions.

# Modules of sentence-transformers, called one after the other. Any, as each kind of module has
# attributes of its own that nn.Module does not declare.
Modules = list[Any]


# Of a model that is none of sentence-transformers, where nobody has chosen a pooling.
PLAIN = "backbone %r says nothing of a pooling: its encoder is read without a head, with %s pooling; encoder.pooling sets another"


class LoadedModules(NamedTuple):
    """A sentence-transformers model, by its sides.

    Attributes:
        query_modules: what queries go through, one after the other.
        doc_modules: what documents go through; where the model has one tower, the same list object.
        query_prompt, doc_prompt: the model's prompts.
    """

    query_modules: Modules
    doc_modules: Modules
    query_prompt: str
    doc_prompt: str


def load_modules(
    folder: ModelFolder, new_weights: bool = False, pooling: Pooling | None = None
) -> LoadedModules:
    """Load a sentence-transformers model in float32.

    A plain encoder gets mean pooling, as in sentence-transformers, and a plain decoder its last
    token, which a line says. So does the encoder of a model with a head of its own, as a
    cross-encoder or a classifier; that head is left out with a warning.

    Args:
        folder: of the model.
        new_weights, pooling: see :class:`ltr.models.encoder.text_encoder.TextEncoder.Options`.

    Raises:
        InputError: if it cannot be loaded, its weights or tokenizer do not fit, or it is read in a
            way that is not known here.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    backbone = folder.name
    check_is_model(folder)
    _check_is_dual_encoder(folder)
    try:
        with quiet(), refuse_misfitting_weights(backbone, new_weights):
            model = SentenceTransformer(
                folder.source,
                device="cpu",
                local_files_only=folder.is_local,
                trust_remote_code=False,
                model_kwargs={"dtype": torch.float32},
            )
    except LOAD_ERRORS as error:
        raise cannot_load(folder, error) from None
    if model.truncate_dim is not None:
        raise InputError(
            f"backbone {backbone!r} cuts its embeddings to {model.truncate_dim} dimensions, which "
            "can't be trained; take truncate_dim out of its config_sentence_transformers.json",
            option=folder.option,
        )
    modules = list(model)
    is_plain = not folder.has_modules
    if is_plain:
        read_plain_text(modules[0])
    chosen = pooling or (name_here(modules[1].pooling_mode) if len(modules) > 1 else None)
    head = folder.left_out_head if is_plain else None
    kind = "of another task"
    if folder.is_cross_encoder:
        head = "its head"
        kind = "a cross-encoder"
    if head is not None:
        log.warning(
            "backbone %r is %s: %s is left out, and its encoder, with %s pooling, is only the start of a dual encoder",
            backbone,
            kind,
            head,
            chosen,
        )
    elif is_plain and pooling is None:
        log.info(PLAIN, backbone, chosen)
    if isinstance(model[0], Router):
        routes = model[0].sub_modules
        if not {"query", "document"} <= routes.keys():
            names = ", ".join(routes)
            raise InputError(
                f"a router must have the routes query and document, got {names} in {backbone!r}",
                option=folder.option,
            )
        # What follows the router is shared, and so refused below if it has weights.
        query = [*routes["query"], *modules[1:]]
        doc = [*routes["document"], *modules[1:]]
        if _share_weights(query, doc):
            raise InputError(
                f"backbone {backbone!r}: its routes share weights, but two towers can't; "
                "take another backbone",
                option=folder.option,
            )
    else:
        query = modules
        doc = modules  # the same object, which says that there is one tower
    for side in (query, doc):
        _check_is_tower(side, folder)
    for name, prompt in model.prompts.items():
        if not isinstance(prompt, str | None):
            raise InputError(
                f"backbone {backbone!r}: the prompt {name!r} in its config_sentence_transformers.json must be a text, got {str(prompt)[:40]!r}; take another backbone",
                option=folder.option,
            )
    query_prompt = _first_prompt(model, "query")
    doc_prompt = _first_prompt(model, "document", "passage", "corpus")
    return LoadedModules(query, doc, query_prompt, doc_prompt)


class Tower(nn.Module):
    """Texts to embeddings: an encoder, a pooling, and the head of a sentence-transformers model.

    Args:
        modules: of a sentence-transformers model, see :func:`load_modules`: its encoder, its
            pooling, and its head.
        projection: dimensions of a new linear map at the end of the head, before a normalisation;
            None: no map is added.
        normalise: whether embeddings have length 1; None: as in the model.
        options: how the encoder reads and trains.

    Attributes:
        dim: H, the size of an embedding.

    Raises:
        InputError: for a pooling that :mod:`ltr.models.encoder.loading.pooling` does not have.
    """

    def __init__(
        self,
        modules: Modules,
        projection: int | None = None,
        normalise: bool | None = None,
        options: TextEncoder.Options = TextEncoder.Options(),
    ) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling

        super().__init__()
        transformer, own_pooling, *head = modules
        pooling = options.pooling or name_here(own_pooling.pooling_mode)
        if pooling not in get_args(Pooling):
            known = ", ".join(get_args(Pooling))
            raise InputError(
                f"pooling must be one of {known}, and the model's own is {pooling!r}; choose one",
                option="pooling",
            )
        self._left_out_dropout = _rebuild_without_dropout(transformer, options.dropout)
        encoder = transformer.model  # after the rebuild, which replaces it
        self.tokenizer = transformer.tokenizer
        if getattr(encoder, "pooler", None) is not None:
            # Nothing uses it, and without a gradient it would break training on several ranks. It
            # stays, so that a saved model has all weights that transformers looks for.
            encoder.pooler.requires_grad_(False)
        self.encoder = TextEncoder(
            encoder, self.tokenizer.pad_token_id, replace(options, pooling=pooling)
        )
        width = encoder.config.hidden_size
        # Two modules of sentence-transformers, for saving. They stand in a tuple, where nn.Module
        # does not look for submodules: the encoder inside is one already, as self.encoder.
        self._encoder_and_pooling = (
            transformer,
            TheirPooling(width, name_there(pooling), include_prompt=own_pooling.include_prompt),
        )
        self.head = nn.ModuleList(_head_modules(head, width, projection, normalise))
        self._draws = use_keyed_dropout(self.head)
        self.dim = _output_width(self.head, width)

    def forward(self, texts: Texts) -> Tensor:
        """Embeddings ``[S, H]`` float32."""
        pooled = self.encoder(texts)
        first_weight = next(self.head.parameters(), None)
        if first_weight is not None:
            pooled = pooled.to(first_weight.dtype)  # not float32 after tower.bfloat16()
        with self._draws.drawing_for(texts.keys):
            return _apply_head(self.head, pooled).float()

    def format_of(
        self,
        side: Side,
        prompt: str,
        max_length: int | None,
        backbone: str,
        template: Template | None = None,
        windows: Windows | None = None,
    ) -> SingleTexts:
        """How the texts of one side are laid out.

        Args:
            side: which one.
            prompt: text in front of each.
            max_length: tokens of a text; None: as in the model.
            backbone: name of the model, for errors.
            template: what is read of each, in the place of the prompt.
            windows: in which a text is read; None: it is cut.

        Raises:
            InputError: for a prompt that the pooling leaves out, more tokens than positions, or a
                window without room.
        """
        transformer, pooling = self._encoder_and_pooling
        if side == "query":
            model_length = transformer.query_length
        else:
            model_length = transformer.document_length
        if model_length is None:  # the model has no length for this side alone
            model_length = transformer.max_seq_length
        longest = token_limit(max_length, model_length, self.encoder.model, backbone)
        form = SingleTexts(self.tokenizer, longest, prompt, template, side, windows)
        if form.rendering.key and not pooling.include_prompt:
            raise InputError(
                f"backbone {backbone!r} leaves the prompt {form.prompt!r} out of its pooling, "
                "which is not possible here; set query_prompt and doc_prompt to ''"
            )
        return form

    @contextmanager
    def as_saved(self, query_length: int, doc_length: int) -> Iterator[Modules]:
        """The modules of this tower as sentence-transformers shall save them, with the longest
        query and document in tokens.

        Inside the block the encoder's config has its own dropout again.
        """
        transformer, _ = self._encoder_and_pooling
        lengths: dict[str, int | None] = {
            "max_seq_length": max(query_length, doc_length),
            "query_length": None,
            "document_length": None,
        }
        if query_length != doc_length:
            lengths["query_length"] = query_length
            lengths["document_length"] = doc_length
        lengths_before = {name: getattr(transformer, name) for name in lengths}
        transformer.config.update(self._left_out_dropout)
        without_truncation(transformer.tokenizer)
        try:
            for name, length in lengths.items():
                setattr(transformer, name, length)
            yield [*self._encoder_and_pooling, *self.head]
        finally:
            for name, length in lengths_before.items():
                setattr(transformer, name, length)
            transformer.config.update(dict.fromkeys(self._left_out_dropout, 0.0))


def _check_is_dual_encoder(folder: ModelFolder) -> None:
    """Refuse a model that sentence-transformers compares otherwise than by one embedding of each
    text: it would convert it, without a word. A CrossEncoder may begin a dual encoder.
    """
    kind = folder.json_object(SETTINGS_THERE).get("model_type")
    if kind not in (None, "SentenceTransformer", "CrossEncoder"):
        raise InputError(
            f"backbone {folder.name!r} is a {kind}, whose texts have no single embedding each; take a SentenceTransformer, or a plain encoder",
            option=folder.option,
        )


def _share_weights(query: Modules, doc: Modules) -> bool:
    """Whether a weight is the same object on both sides."""
    of_query = {id(weight) for module in query for weight in module.parameters()}
    of_doc = {id(weight) for module in doc for weight in module.parameters()}
    return not of_query.isdisjoint(of_doc)


def _first_prompt(model: Any, *names: str) -> str:
    """The first of these prompts of a model that is not empty; empty if all are.

    The model's default prompt does not count: ``encode_query`` and ``encode_document`` of
    sentence-transformers never take it.
    """
    for name in names:
        prompt: str | None = model.prompts.get(name)
        if prompt:
            return prompt
    return ""


def _check_is_tower(modules: Modules, folder: ModelFolder) -> None:
    """Refuse modules that are no tower, and what sentence-transformers would read otherwise than
    :class:`Tower` does.
    """
    from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling
    from sentence_transformers.sentence_transformer.modules import Router, Transformer

    begins_as_tower = (
        len(modules) > 1
        and isinstance(modules[0], Transformer)
        and isinstance(modules[1], TheirPooling)
    )
    encodes_twice = any(
        isinstance(module, Transformer | TheirPooling | Router) for module in modules[2:]
    )
    if not begins_as_tower or encodes_twice:
        names = ", ".join(type(module).__name__ for module in modules)
        raise InputError(
            f"a tower must be an encoder, a pooling, and what follows them, got {names}; "
            "take another backbone",
            option=folder.option,
        )
    transformer = modules[0]
    usual_settings: dict[str, Any] = {
        "query_expansion": None,
        "processing_kwargs": {},
        "transformer_task": "feature-extraction",
    }
    other_settings = {}
    for name, usual in usual_settings.items():
        value = getattr(transformer, name)
        if value != usual:
            other_settings[name] = value
    # Plain text must go in, and the last hidden state come out. Of a tokenizer with a chat template
    # sentence-transformers makes messages of texts; other models give the output of a pooler.
    modality = transformer.modality_config
    output_name = modality.get("text", {}).get("method_output_name")
    if "message" in modality or output_name != "last_hidden_state":
        other_settings["modality_config"] = modality
    if other_settings:
        settings = ", ".join(f"{name} {value!r}" for name, value in other_settings.items())
        raise InputError(
            f"backbone {folder.name!r} can't be trained: sentence-transformers reads its texts with "
            f"{settings}, which is not known here; take it out of the model's files",
            option=folder.option,
        )
    check_tokenizer(transformer.tokenizer, folder)
    check_vocabulary(transformer.tokenizer, transformer.model, folder)


def _rebuild_without_dropout(transformer: Any, dropout: EncoderDropout) -> dict[str, float]:
    """Turn off the unwanted dropout of an encoder that is built already; returns what is off.

    The encoder's layers read the config when they were built. So it is built again, with the same
    weights.
    """
    left_out_dropout = leave_out_dropout(transformer.config, dropout)
    if left_out_dropout:
        settings = {
            "config": transformer.config,
            "state_dict": transformer.model.state_dict(),
            "dtype": torch.float32,
        }
        name = transformer.model.name_or_path
        with quiet():
            transformer.model = type(transformer.model).from_pretrained(None, **settings)
        transformer.model.name_or_path = (
            name  # else "None", which adapters would name as their base
        )
    turn_off_fixed_dropout(transformer.model, dropout)
    return left_out_dropout


def _head_modules(
    own_head: Modules, width: int, projection: int | None, normalise: bool | None
) -> Modules:
    """The modules behind the pooling, with a new projection and another normalisation where these
    are set; ``width`` is that of the pooled vectors.
    """
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    head = list(own_head)
    # The normalisation stays the last module, behind the projection.
    normalisation = []
    if head and isinstance(head[-1], Normalize):
        normalisation = [head.pop()]
    if projection is not None:
        at_least(1, projection=projection)
        in_width = _output_width(head, width)
        head.append(Dense(in_width, projection, activation_function=nn.Identity()))
    if normalise is True:
        normalisation = [Normalize()]
    elif normalise is False:
        normalisation = []
    return head + normalisation


def _apply_head(head: Iterable[nn.Module], pooled: Tensor) -> Tensor:
    """Embeddings ``[S, H]`` of pooled vectors, in the precision of these."""
    # Not under autocast: embeddings rounded to bfloat16 would make scores that tie.
    with torch.autocast(pooled.device.type, enabled=False):
        features = {"sentence_embedding": pooled}
        for module in head:
            features = module(features)
    return features["sentence_embedding"]


def _output_width(head: Iterable[nn.Module], width: int) -> int:
    """The number of dimensions that a head makes of ``width``: found by running it on no text."""
    try:
        return _apply_head(head, torch.zeros(0, width)).shape[1]
    except (RuntimeError, KeyError):
        raise InputError(
            f"the modules behind the model's pooling can't read {width} dimensions; "
            "leave the pooling as it is in the model, or take another backbone",
            option="pooling",
        ) from None
