"""A tower of a dual encoder: the modules of a sentence-transformers model around a
:class:`TextEncoder`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ltr.batch import Texts
from ltr.data.layouts import SingleTexts
from ltr.data.template import Side, Template
from ltr.data.windows import Windows
from ltr.dropout import use_keyed_dropout
from ltr.errors import InputError, at_least
from ltr.models.encoder.loading.architecture import (
    EncoderDropout,
    leave_out_dropout,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.modules import Modules
from ltr.models.encoder.loading.pooling import Pooling, name_here, name_there
from ltr.models.encoder.loading.pretrained import (
    quiet,
    token_limit,
    without_truncation,
)
from ltr.models.encoder.text_encoder import TextEncoder

# Importing sentence_transformers takes some ten seconds, and ``import ltr.models`` must not: it is
# imported inside functions.


class Tower(nn.Module):
    """Texts to embeddings: an encoder, a pooling, and the head of a sentence-transformers model.

    Args:
        modules: of a sentence-transformers model: its encoder, its pooling, and its head, see
            ``ltr.models.encoder.loading.modules.load_modules``.
        projection: dimensions of a new linear map at the end of the head, before a normalisation;
            None: no map is added.
        normalise: whether embeddings have length 1; None: as in the model.
        options: how the encoder reads and trains.

    Attributes:
        dim: H, the size of an embedding.

    Raises:
        InputError: for a pooling that ``ltr.models.encoder.loading.pooling`` does not have.
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
            # stays, so that a saved model has all weights that transformers looks for, and computes
            # nothing, but where it is a linear layer whose output the model reads, as ALBERT does.
            encoder.pooler.requires_grad_(False)
            if not isinstance(encoder.pooler, nn.Linear):
                encoder.pooler.forward = _nothing
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


def _nothing(_: Tensor) -> None:
    """In the place of the forward pass of a pooler."""


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
    """The modules behind the pooling, with a new projection and normalisation where set."""
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
