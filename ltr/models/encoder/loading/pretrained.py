"""Pretrained encoders and their tokenizers: by hub id, from a folder, or out of an installed Python
package.
"""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from unittest import mock

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ltr.errors import InputError
from ltr.models.encoder.loading.dropout import (
    EncoderDropout,
    leave_out_dropout,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.positions import first_position, position_embeddings

PACKAGE = "package:"
NO_LIMIT = 10**9  # a tokenizer that knows no longest text says 10^30
# What loading raises where a model is absent, of another kind, or damaged.
LOAD_ERRORS = (
    OSError,
    ValueError,
    ImportError,
    RuntimeError,
    EOFError,
    KeyError,
    TypeError,
    SafetensorError,
    UnpicklingError,
)


def resolve(backbone: str) -> str:
    """What transformers can load: ``package:NAME`` becomes the folder of the installed package NAME
    that holds ``config.json``.

    Raises:
        InputError: if the package is not installed or holds no model.
    """
    if not backbone.startswith(PACKAGE):
        return backbone
    name = backbone.removeprefix(PACKAGE)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"backbone {backbone!r}: the package {name!r} is not installed: pip install {name.replace('_', '-')}"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for config in (root / "config.json", *sorted(root.glob("*/config.json"))):
        if config.is_file():
            return str(config.parent)
    raise InputError(f"backbone {backbone!r}: the package holds no config.json, so no model")


def load_tokenizer(backbone: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a backbone; an InputError if it cannot be loaded, or knows no words."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(backbone))
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error) from None
    check_tokenizer(tokenizer, backbone)
    return tokenizer


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase, backbone: str, option: str = "backbone"
) -> None:
    """Refuse the tokenizer that transformers makes up for a folder without one: it knows special
    tokens only.
    """
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        hint = "save the tokenizer into the same folder: tokenizer.save_pretrained(folder)"
        raise InputError(
            f"backbone {backbone!r} has no tokenizer, or one without words; {hint}", option=option
        )


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    encoder: PreTrainedModel,
    backbone: str,
    option: str = "backbone",
) -> None:
    """Refuse a tokenizer that makes token ids for which the encoder has no embedding."""
    known = encoder.get_input_embeddings().num_embeddings
    largest = max(tokenizer.get_vocab().values())
    if largest >= known:
        came = f"token ids up to {largest}, but the encoder has embeddings for ids below {known}"
        hint = "save the tokenizer that the encoder was trained with into the same folder"
        raise InputError(f"backbone {backbone!r}: its tokenizer has {came}; {hint}", option=option)


class Pretrained(NamedTuple):
    """A loaded encoder.

    Attributes:
        model: the encoder.
        has_own_head: whether it is a ready cross-encoder, with a head for one score.
        left_out: probabilities of dropout that were set to 0 in its config, as they were.
    """

    model: PreTrainedModel
    has_own_head: bool
    left_out: dict[str, float]


def load_encoder(
    backbone: str, dropout: EncoderDropout = "hidden", new_weights: bool = False
) -> Pretrained:
    """An encoder in float32.

    Weights stored in half precision become float32: training updates them in float32, under
    ``trainer.precision`` too. A pooler that no head uses is removed: it would get no gradient.

    Args:
        backbone: hub id, folder, or ``package:NAME``.
        dropout, new_weights: see :class:`ltr.models.encoder.text_encoder.TextEncoder.Options`.

    Raises:
        InputError: if it cannot be loaded, or its weights do not fit.
    """
    try:
        source = resolve(backbone)
        config = AutoConfig.from_pretrained(source)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"backbone {backbone!r}: {config.model_type} has a decoder; take an encoder"
            )
        config.return_dict = True
        left_out = leave_out_dropout(config, dropout)
        has_own_head = _has_one_score(config)
        kind = AutoModelForSequenceClassification if has_own_head else AutoModel
        with quiet(), whole_weights(backbone, new_weights):
            encoder = kind.from_pretrained(source, config=config, dtype=torch.float32)
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error) from None
    if not has_own_head and getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    turn_off_fixed_dropout(encoder, dropout)
    return Pretrained(encoder, has_own_head, left_out)


def is_ready_cross_encoder(backbone: str) -> bool:
    """Whether a backbone is a sequence classifier with one score; False also where its
    configuration can't be read.
    """
    try:
        return _has_one_score(AutoConfig.from_pretrained(resolve(backbone)))
    except LOAD_ERRORS:
        return False


def _has_one_score(config: PretrainedConfig) -> bool:
    return config.num_labels == 1 and any(
        name.endswith("ForSequenceClassification") for name in config.architectures or []
    )


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no messages below errors of transformers and sentence-transformers: what
    matters is raised.
    """
    bars = transformers.utils.logging
    log = logging.getLogger("sentence_transformers")
    shown = bars.is_progress_bar_enabled()
    level = log.level
    verbosity = bars.get_verbosity()
    bars.disable_progress_bar()
    bars.set_verbosity_error()
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        bars.set_verbosity(verbosity)
        if shown:
            bars.enable_progress_bar()


@contextmanager
def whole_weights(backbone: str, new_weights: bool = False) -> Iterator[None]:
    """Inside the block, ``from_pretrained`` refuses weights that do not fit the configuration,
    whoever calls it.

    The pooler of a plain encoder may be missing, and heads of other tasks are left out. With
    ``new_weights`` all may be missing.
    """
    load = PreTrainedModel.from_pretrained.__func__
    telling = {"output_loading_info": True, "ignore_mismatched_sizes": True}

    def from_pretrained(
        kind: type[PreTrainedModel], *args: Any, **settings: Any
    ) -> PreTrainedModel:
        encoder, found = load(kind, *args, **settings | telling)
        if not new_weights:
            _check_weights(encoder, found, backbone)
        return encoder

    # sentence-transformers does not hand on what transformers tells of the weights.
    with mock.patch.object(PreTrainedModel, "from_pretrained", classmethod(from_pretrained)):
        yield


def _check_weights(encoder: PreTrainedModel, found: dict[str, Any], backbone: str) -> None:
    base = encoder.base_model
    names = {
        key: key.removeprefix(f"{encoder.base_model_prefix}.").partition(".")[0]
        for key in found["unexpected_keys"]
    }
    layers = {name for name, _ in base.named_children()} - {"pooler"}
    missing = [
        key for key in found["missing_keys"] if base is not encoder or not key.startswith("pooler.")
    ]
    unexpected = [key for key, name in names.items() if missing or name in layers]
    shapes = [
        f"{key} {list(stored)} for {list(wanted)}"
        for key, stored, wanted in found["mismatched_keys"]
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of other shapes", shapes))
    said = [
        f"{len(keys)} {kind} ({', '.join(sorted(keys)[:3])}{', …' * (len(keys) > 3)})"
        for kind, keys in kinds
        if keys
    ]
    if said:
        others = "set encoder.new_weights to begin with random numbers where they do not"
        hint = f"{', '.join(said)}; mend its config.json or its weights, or {others}"
        raise InputError(f"backbone {backbone!r}: its weights do not fit its configuration, {hint}")


def max_positions(encoder: PreTrainedModel) -> int | None:
    """The longest sequence that the encoder has positions for. None if it has no limit."""
    positions = position_embeddings(encoder)
    if positions is None:
        limit = (
            getattr(encoder.config, "max_position_embeddings", None) or -1
        )  # XLNet says -1 for no limit
        return limit if limit > 0 else None
    return positions.num_embeddings - first_position(encoder)


def longest_text(
    asked: int | None, own: int | None, encoder: PreTrainedModel, backbone: str
) -> int:
    """Tokens of a text: those asked for, else those that the model names (``own``), within the
    encoder's positions.

    An InputError if more are asked for, or nothing says how many.
    """
    positions = max_positions(encoder)
    if asked is None:
        known = [n for n in (own, positions) if n is not None and n < NO_LIMIT]
        if not known:
            raise InputError(
                f"backbone {backbone!r} names no longest text; set max_length", option="max_length"
            )
        return min(known)
    if positions is not None and asked > positions:
        text = f"max_length must be at most {positions}, the positions of {backbone!r}, got {asked}"
        raise InputError(text, option="max_length")
    return asked


def cannot_load(backbone: str, error: Exception, option: str = "backbone") -> InputError:
    """The error for the user when a backbone cannot be loaded."""
    if isinstance(error, InputError):
        return InputError(error.message, option=error.option or option)
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".: ")
    hint = "Give a hub id, a folder with config.json, or package:NAME"
    return InputError(f"backbone {backbone!r} can't be loaded: {reason}. {hint}", option=option)
