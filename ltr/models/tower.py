"""A tower of a dual encoder: the modules of a sentence-transformers model, its encoder reading texts end to end."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.backbone import (
    LOAD_ERRORS,
    Dropouts,
    cannot_load,
    check_tokenizer,
    leave_out_dropout,
    max_positions,
    resolve,
    use_dropout,
)
from ltr.models.text_encoder import TextEncoder

# Importing sentence_transformers takes some ten seconds, which ``import ltr.models`` must not: it is imported inside functions.


class Loaded(NamedTuple):
    """A sentence-transformers model, by its sides.

    Attributes:
        query: the modules that texts of queries go through, one after the other.
        doc: those of documents; the same list where the model has one tower.
        query_prompt, doc_prompt: what the model wants in front of them.
    """

    query: list[nn.Module]
    doc: list[nn.Module]
    query_prompt: str
    doc_prompt: str


def load_modules(backbone: str, option: str = "backbone") -> Loaded:
    """Load a sentence-transformers model in float32; a plain encoder gets mean pooling, as sentence-transformers does.

    Args:
        backbone: hub id, folder, or ``package:NAME``.
        option: the module's option that names it, for errors.

    Raises:
        InputError: if it can't be loaded, or is no model of one tower or two, or has no tokenizer.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    try:
        source = resolve(backbone)
        with quiet():
            local, as_float32 = Path(source).is_dir(), {"dtype": torch.float32}
            model = SentenceTransformer(source, device="cpu", local_files_only=local, model_kwargs=as_float32)
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error, option) from None
    if model.truncate_dim is not None:
        raise InputError(
            f"backbone {backbone!r} cuts its embeddings to {model.truncate_dim} dimensions, which can't be trained; take "
            "truncate_dim out of its config_sentence_transformers.json"
        )
    query = doc = list(model)
    if isinstance(model[0], Router):
        routes = model[0].sub_modules
        if not {"query", "document"} <= routes.keys():
            raise InputError(f"a router must have the routes query and document, got {', '.join(routes)} in {backbone!r}")
        query, doc = ([*routes[route], *query[1:]] for route in ("query", "document"))
        if _parameters(query) & _parameters(doc):
            raise InputError(f"backbone {backbone!r}: its routes share weights, and two towers can't; take another backbone")
    for side in (query, doc):
        if hasattr(side[0], "tokenizer"):
            check_tokenizer(side[0].tokenizer, backbone, option)
    return Loaded(query, doc, _prompt(model, "query"), _prompt(model, "document", "passage", "corpus"))


class Tower(nn.Module):
    """Texts to embeddings: an encoder, a pooling, and what a sentence-transformers model has behind it.

    Args:
        modules: of a sentence-transformers model, see :func:`load_modules`: its encoder, its pooling, and any others behind.
        pooling: ``cls``, ``mean`` or ``max``; None: the model's own.
        projection: dimensions of a linear map behind all of it but a normalisation at the end; None: no map is added.
        normalise: whether embeddings have length 1; None: as the model comes.
        encoder_dropout: see :func:`ltr.models.backbone.load_encoder`.
        max_tokens, keep_tokens, compile: see :class:`ltr.models.text_encoder.TextEncoder`.

    Attributes:
        dim: H, the size of an embedding.
        tokenizer: the model's.
        own_max_length: tokens of a text that the model reads, special ones counted, or None if it has no limit.
        max_positions: the longest text that the encoder has positions for, or None if it has no limit.
        pools_prompt: whether the tokens of a prompt are pooled as others are.

    Raises:
        InputError: for a model of other modules, another pooling, or more than one.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        pooling: Literal["cls", "mean", "max"] | None = None,
        projection: int | None = None,
        normalise: bool | None = None,
        encoder_dropout: Dropouts = "hidden",
        max_tokens: int | None = None,
        keep_tokens: int | None = None,
        compile: bool = False,
    ) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        super().__init__()
        transformer, own, *head = _checked(modules)
        if pooling is None and own.pooling_mode not in ("cls", "mean", "max"):
            raise InputError(
                f"pooling must be cls, mean or max, and the model's own is {own.pooling_mode!r}; set model.init_args.pooling"
            )
        self._left_out = _leave_out_dropout(transformer, encoder_dropout)
        encoder, self.tokenizer = transformer.model, transformer.tokenizer
        if encoder.config.pad_token_id is None:
            encoder.config.pad_token_id = self.tokenizer.pad_token_id
        if getattr(encoder, "pooler", None) is not None:
            # It is not used, and without a gradient it would break training on several ranks. It stays, so that what is saved
            # has all the weights that transformers looks for.
            encoder.pooler.requires_grad_(False)
        how = pooling or own.pooling_mode
        self.encoder = TextEncoder(encoder, self.tokenizer.pad_token_id or 0, how, max_tokens, keep_tokens, compile)
        pooled = Pooling(encoder.config.hidden_size, how, include_prompt=own.include_prompt)
        # In a tuple, and so not registered: the encoder is a part of this module once.
        self._in_front = (transformer, pooled)
        self.pools_prompt = pooled.include_prompt
        self.head = nn.ModuleList(_head(head, encoder.config.hidden_size, projection, normalise))
        self.dim = _width(self.head, encoder.config.hidden_size)
        self.max_positions = max_positions(encoder)
        known = [n for n in (transformer.max_seq_length, self.max_positions) if n is not None and n < NO_LIMIT]
        self.own_max_length = min(known, default=None)

    def forward(self, texts: Texts) -> Tensor:
        """Embeddings ``[S, H]`` float32."""
        return _through(self.head, self.encoder(texts))

    @contextmanager
    def as_saved(self, max_length: int) -> Iterator[list[nn.Module]]:
        """The modules of the sentence-transformers model that this is, with the encoder's config as it came.

        Args:
            max_length: tokens that the model shall read of a text.
        """
        transformer, _ = self._in_front
        before = {name: getattr(transformer.config, name) for name in self._left_out}, transformer.max_seq_length
        _set(transformer, self._left_out, max_length)
        try:
            yield [*self._in_front, *self.head]
        finally:
            _set(transformer, *before)


NO_LIMIT = 10**9  # a tokenizer that knows no length says 10^30


@contextmanager
def quiet() -> Iterator[None]:
    """No bars of transformers for what takes a moment, and no remarks of sentence-transformers below errors."""
    bars, log = transformers.utils.logging.is_progress_bar_enabled(), logging.getLogger("sentence_transformers")
    level = log.level
    transformers.utils.logging.disable_progress_bar()
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _prompt(model: nn.Module, *names: str) -> str:
    """The first of these prompts that says something, else the model's default."""
    return next((found for name in (*names, model.default_prompt_name) if (found := model.prompts.get(name))), "")


def _parameters(modules: list[nn.Module]) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _checked(modules: Sequence[nn.Module]) -> Sequence[nn.Module]:
    from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer

    fits = len(modules) > 1 and isinstance(modules[0], Transformer) and isinstance(modules[1], Pooling)
    if not fits or any(isinstance(module, (Transformer, Pooling, Router)) for module in modules[2:]):
        names = ", ".join(type(module).__name__ for module in modules)
        raise InputError(f"a tower must be an encoder, a pooling, and what follows them, got {names}; take another backbone")
    return modules


def _leave_out_dropout(transformer: nn.Module, dropout: Dropouts) -> dict[str, float]:
    """Make the encoder again, of the same weights: layers have read the config when they were made."""
    left_out = leave_out_dropout(transformer.config, dropout)
    if left_out:
        weights, config = transformer.model.state_dict(), transformer.config
        with quiet():
            made = type(transformer.model).from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)
        transformer.model = made
    use_dropout(transformer.model, dropout)
    return left_out


def _head(modules: list[nn.Module], width: int, projection: int | None, normalise: bool | None) -> list[nn.Module]:
    """What comes behind the pooling, with a projection and a normalisation as they are asked for."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    last = [modules.pop()] if modules and isinstance(modules[-1], Normalize) else []
    if projection is not None:
        if projection < 1:
            raise InputError(f"projection must be at least 1, got {projection} (option model.init_args.projection)")
        modules.append(Dense(_width(modules, width), projection, activation_function=nn.Identity()))
    if normalise is None:
        return modules + last
    return modules + (last or [Normalize()]) if normalise else modules


def _through(head: Sequence[nn.Module], pooled: Tensor) -> Tensor:
    # Not under autocast: embeddings rounded to bfloat16 would make scores that tie.
    with torch.autocast(pooled.device.type, enabled=False):
        features = {"sentence_embedding": pooled}
        for module in head:
            features = module(features)
    return features["sentence_embedding"]


def _width(head: Sequence[nn.Module], width: int) -> int:
    """Dimensions that leave the head for so many that enter it."""
    try:
        return _through(head, torch.zeros(0, width)).shape[1]
    except RuntimeError:
        raise InputError(
            f"what the model has behind its pooling can't read {width} dimensions; leave model.init_args.pooling as the model "
            "comes, or take another backbone"
        ) from None


def _set(transformer: nn.Module, dropouts: dict[str, float], max_length: int | None) -> None:
    for name, value in dropouts.items():
        setattr(transformer.config, name, value)
    transformer.max_seq_length = max_length
