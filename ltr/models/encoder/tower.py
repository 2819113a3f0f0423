"""A tower of a dual encoder: the modules of a sentence-transformers model around a
:class:`TextEncoder`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ltr.batch import Texts
from ltr.data.formats import SingleTexts
from ltr.errors import InputError, at_least
from ltr.models.encoder.loading.dropout import (
    EncoderDropout,
    leave_out_dropout,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.pooling import Pooling
from ltr.models.encoder.loading.pretrained import (
    LOAD_ERRORS,
    cannot_load,
    check_tokenizer,
    check_vocabulary,
    longest_text,
    quiet,
    resolve,
    whole_weights,
)
from ltr.models.encoder.text_encoder import TextEncoder

# Importing sentence_transformers takes some ten seconds, and ``import ltr.models`` must not: it is
# imported inside functions.

Modules = list[Any]  # of sentence-transformers: modules that each have attributes of their own


class Loaded(NamedTuple):
    """A sentence-transformers model, by its sides.

    Attributes:
        query: the modules that queries go through, one after the other.
        doc: the modules of documents; the same list where the model has one tower.
        query_prompt, doc_prompt: the model's prompts.
    """

    query: Modules
    doc: Modules
    query_prompt: str
    doc_prompt: str


def load_modules(backbone: str, option: str = "backbone", new_weights: bool = False) -> Loaded:
    """Load a sentence-transformers model in float32. A plain encoder gets mean pooling, as in
    sentence-transformers.

    Args:
        backbone: hub id, folder, or ``package:NAME``.
        option: the option that names the backbone, for errors.
        new_weights: see :class:`ltr.models.encoder.text_encoder.TextEncoder.Options`.

    Raises:
        InputError: if it cannot be loaded, its weights or tokenizer do not fit, or it is read in a
            way that is not known here.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    try:
        source = resolve(backbone)
        with quiet(), whole_weights(backbone, new_weights):
            local = Path(source).is_dir()
            as_float32 = {"dtype": torch.float32}
            model = SentenceTransformer(
                source, device="cpu", local_files_only=local, model_kwargs=as_float32
            )
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error, option) from None
    if model.truncate_dim is not None:
        came = f"cuts its embeddings to {model.truncate_dim} dimensions, which can't be trained"
        hint = "take truncate_dim out of its config_sentence_transformers.json"
        raise InputError(f"backbone {backbone!r} {came}; {hint}", option=option)
    query = doc = list(model)
    if isinstance(model[0], Router):
        routes = model[0].sub_modules
        if not {"query", "document"} <= routes.keys():
            names = ", ".join(routes)
            raise InputError(
                f"a router must have the routes query and document, got {names} in {backbone!r}",
                option=option,
            )
        query, doc = ([*routes[route], *query[1:]] for route in ("query", "document"))
        weights = (
            {id(weight) for module in side for weight in module.parameters()}
            for side in (query, doc)
        )
        if set.intersection(*weights):
            text = f"backbone {backbone!r}: its routes share weights, but two towers can't; take another backbone"
            raise InputError(text, option=option)
    for side in (query, doc):
        _check(side, backbone, option)
    return Loaded(
        query, doc, _prompt(model, "query"), _prompt(model, "document", "passage", "corpus")
    )


class Tower(nn.Module):
    """Texts to embeddings: an encoder, a pooling, and the head of a sentence-transformers model.

    Args:
        modules: of a sentence-transformers model, see :func:`load_modules`: its encoder, its
            pooling, and its head.
        projection: dimensions of a new linear map, the last module but for a normalisation; None:
            no map is added.
        normalise: whether embeddings have length 1; None: as in the model.
        options: how the encoder reads and trains.

    Attributes:
        dim: H, the size of an embedding.

    Raises:
        InputError: for a pooling that is not ours.
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
        transformer, own, *head = modules
        pooling = options.pooling or own.pooling_mode
        if pooling not in get_args(Pooling):
            known = ", ".join(get_args(Pooling))
            raise InputError(
                f"pooling must be one of {known}, and the model's own is {pooling!r}; choose one",
                option="pooling",
            )
        self._left_out = _leave_out_dropout(transformer, options.dropout)
        encoder = transformer.model
        self.tokenizer = transformer.tokenizer
        if getattr(encoder, "pooler", None) is not None:
            # Nothing uses it, and without a gradient it would break training on several ranks. It
            # stays, so that a saved model has all weights that transformers looks for.
            encoder.pooler.requires_grad_(False)
        self.encoder = TextEncoder(
            encoder, self.tokenizer.pad_token_id, replace(options, pooling=pooling)
        )
        width = encoder.config.hidden_size
        # In a tuple, and so not registered: the encoder is a submodule already.
        self._in_front = (
            transformer,
            TheirPooling(width, pooling, include_prompt=own.include_prompt),
        )
        self.head = nn.ModuleList(_head(head, width, projection, normalise))
        self.dim = _width(self.head, width)

    def forward(self, texts: Texts) -> Tensor:
        """Embeddings ``[S, H]`` float32."""
        pooled = self.encoder(texts)
        weights = next(self.head.parameters(), pooled)  # of another precision after .bfloat16()
        return _through(self.head, pooled.to(weights.dtype)).float()

    def form(
        self, task: Literal["query", "document"], prompt: str, max_length: int | None, backbone: str
    ) -> SingleTexts:
        """How queries or documents are laid out. ``max_length`` of None: as in the model;
        ``backbone`` names it in errors.
        """
        transformer, pooled = self._in_front
        if prompt and not pooled.include_prompt:
            text = f"backbone {backbone!r} leaves the prompt {prompt!r} out of its pooling, which is not possible here"
            raise InputError(f"{text}; set query_prompt and doc_prompt to ''")
        own = transformer.query_length if task == "query" else transformer.document_length
        own = transformer.max_seq_length if own is None else own
        return SingleTexts(
            self.tokenizer, longest_text(max_length, own, self.encoder.model, backbone), prompt
        )

    @contextmanager
    def as_saved(self, query_length: int, doc_length: int) -> Iterator[Modules]:
        """The modules of this tower as sentence-transformers shall save them, with the longest
        query and document in tokens.

        The encoder's config has its own dropout again.
        """
        transformer, _ = self._in_front
        by_task = (None, None) if query_length == doc_length else (query_length, doc_length)
        lengths = {
            "max_seq_length": max(query_length, doc_length),
            "query_length": by_task[0],
            "document_length": by_task[1],
        }
        before = {name: getattr(transformer, name) for name in lengths}
        transformer.config.update(self._left_out)
        try:
            for name, length in lengths.items():
                setattr(transformer, name, length)
            yield [*self._in_front, *self.head]
        finally:
            for name, length in before.items():
                setattr(transformer, name, length)
            transformer.config.update(dict.fromkeys(self._left_out, 0.0))


def _prompt(model: Any, *names: str) -> str:
    """The first of these prompts that is not empty. ``encode_query`` and ``encode_document`` never
    take the default one.
    """
    return next((found for name in names if (found := model.prompts.get(name))), "")


def _check(modules: Modules, backbone: str, option: str) -> None:
    """Refuse modules that are no tower, and what sentence-transformers would read otherwise than
    :class:`Tower` does.
    """
    from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer

    fits = (
        len(modules) > 1 and isinstance(modules[0], Transformer) and isinstance(modules[1], Pooling)
    )
    if not fits or any(
        isinstance(module, (Transformer, Pooling, Router)) for module in modules[2:]
    ):
        names = ", ".join(type(module).__name__ for module in modules)
        must = "a tower must be an encoder, a pooling, and what follows them"
        raise InputError(f"{must}, got {names}; take another backbone", option=option)
    transformer = modules[0]
    usual: dict[str, Any] = {
        "query_expansion": None,
        "processing_kwargs": {},
        "transformer_task": "feature-extraction",
    }
    other = {
        name: value
        for name, plain in usual.items()
        if (value := getattr(transformer, name)) != plain
    }
    reads = transformer.modality_config
    if "message" in reads or reads.get("text", {}).get("method_output_name") != "last_hidden_state":
        other["modality_config"] = reads
    if other:
        settings = ", ".join(f"{name} {value!r}" for name, value in other.items())
        text = f"backbone {backbone!r} can't be trained: sentence-transformers reads its texts with {settings}"
        raise InputError(
            f"{text}, which is not known here; take it out of the model's files", option=option
        )
    check_tokenizer(transformer.tokenizer, backbone, option)
    check_vocabulary(transformer.tokenizer, transformer.model, backbone, option)


def _leave_out_dropout(transformer: Any, dropout: EncoderDropout) -> dict[str, float]:
    """Build the encoder again with the same weights: its layers have read the config when they were
    built.
    """
    left_out = leave_out_dropout(transformer.config, dropout)
    if left_out:
        settings = {
            "config": transformer.config,
            "state_dict": transformer.model.state_dict(),
            "dtype": torch.float32,
        }
        with quiet():
            transformer.model = type(transformer.model).from_pretrained(None, **settings)
    turn_off_fixed_dropout(transformer.model, dropout)
    return left_out


def _head(modules: Modules, width: int, projection: int | None, normalise: bool | None) -> Modules:
    """The modules behind the pooling, with the projection and the normalisation that are asked for."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    last = [modules.pop()] if modules and isinstance(modules[-1], Normalize) else []
    if projection is not None:
        at_least(1, projection=projection)
        modules.append(Dense(_width(modules, width), projection, activation_function=nn.Identity()))
    if normalise is not None:
        last = [Normalize()] if normalise else []
    return modules + last


def _through(head: Iterable[nn.Module], pooled: Tensor) -> Tensor:
    # Not under autocast: embeddings rounded to bfloat16 would make scores that tie.
    with torch.autocast(pooled.device.type, enabled=False):
        features = {"sentence_embedding": pooled}
        for module in head:
            features = module(features)
    return features["sentence_embedding"]


def _width(head: Iterable[nn.Module], width: int) -> int:
    """The number of dimensions that a head makes of ``width``."""
    try:
        return _through(head, torch.zeros(0, width)).shape[1]
    except (RuntimeError, KeyError):
        hint = "leave the pooling as it is in the model, or take another backbone"
        text = f"the modules behind the model's pooling can't read {width} dimensions; {hint}"
        raise InputError(text, option="pooling") from None
