"""Pre-trained encoders and their tokenizers: by hub id, by folder, or out of an installed Python package."""

import importlib.util
import pickle
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from ltr.errors import InputError
from ltr.models.dropout import use_fast_dropout
from ltr.models.packed import first_position

PACKAGE = "package:"
# What loading raises where a model is absent, of another kind, or damaged.
LOAD_ERRORS = (OSError, ValueError, ImportError, RuntimeError, SafetensorError, pickle.UnpicklingError)
Dropouts = Literal["hidden", "own", "none"]


def resolve(backbone: str) -> str:
    """What transformers can load: ``package:NAME`` becomes the folder inside the installed package NAME that holds
    ``config.json``.

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
        raise InputError(f"backbone {backbone!r}: the package {name!r} is not installed: pip install {name.replace('_', '-')}")
    root = Path(next(iter(spec.submodule_search_locations)))
    found = next((p.parent for p in (root / "config.json", *sorted(root.glob("*/config.json"))) if p.is_file()), None)
    if found is None:
        raise InputError(f"backbone {backbone!r}: the package holds no config.json, so no model")
    return str(found)


def load_tokenizer(backbone: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a backbone.

    Raises:
        InputError: if it can't be loaded, or knows no words.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(backbone))
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error) from None
    check_tokenizer(tokenizer, backbone)
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, backbone: str, option: str = "backbone") -> None:
    """For a folder without the tokenizer's files transformers makes one up that takes every word for an unknown one.

    Raises:
        InputError: if it knows nothing but special tokens.
    """
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise InputError(
            f"backbone {backbone!r} has no tokenizer, or one without words; save the tokenizer into the same folder: "
            f"tokenizer.save_pretrained(folder) (option model.init_args.{option})"
        )


def load_encoder(backbone: str, dropout: Dropouts = "hidden") -> tuple[nn.Module, bool]:
    """An encoder in float32, and whether it brings a head of its own (a ready cross-encoder with one score).

    Weights stored in half precision are widened: they are trained in float32, or under ``trainer.precision`` mixed. A pooler
    that such a head does not use is dropped: it would get no gradient.

    Args:
        backbone: hub id, folder, or ``package:NAME``.
        dropout: ``hidden``: none on the attention weights, the model's own probabilities elsewhere, by the cheap masks of
            :mod:`ltr.models.dropout`; ``own``: all as the model comes; ``none``.

    Raises:
        InputError: if it can't be loaded.
    """
    encoder, has_own_head = _load(backbone, dropout)
    use_dropout(encoder, dropout)
    return encoder, has_own_head


def leave_out_dropout(config: PreTrainedConfig, dropout: Dropouts) -> dict[str, float]:
    """Set to 0, in place, the probabilities that are not wanted of an encoder; it must be made of the config afterwards.

    Args:
        config: of the encoder.
        dropout: see :func:`load_encoder`.

    Returns:
        What was set to 0, and the probability it had.

    Raises:
        InputError: for another dropout.
    """
    if dropout not in get_args(Dropouts):
        raise InputError(f"encoder_dropout must be hidden, own or none, got {dropout!r} (option model.init_args.encoder_dropout)")
    own = {}
    for name, value in config.to_dict().items():  # transformers has no one name for each
        is_dropout = "drop" in name and isinstance(value, float) and value > 0
        if is_dropout and (dropout == "none" or (dropout == "hidden" and "att" in name)):
            own[name] = value
            setattr(config, name, 0.0)
    return own


def use_dropout(encoder: nn.Module, dropout: Dropouts) -> None:
    """What a config can't say of the dropout of an encoder: cheap masks, or none whatever its layers were made with."""
    if dropout == "hidden":
        use_fast_dropout(encoder)
    if dropout == "none":
        for module in encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0


def _load(backbone: str, dropout: Dropouts) -> tuple[nn.Module, bool]:
    try:
        source = resolve(backbone)
        config = AutoConfig.from_pretrained(source)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(f"backbone {backbone!r}: {config.model_type} has a decoder; take an encoder")
        config.return_dict = True
        leave_out_dropout(config, dropout)
        architectures = config.architectures or []
        if config.num_labels == 1 and any(a.endswith("ForSequenceClassification") for a in architectures):
            return AutoModelForSequenceClassification.from_pretrained(source, config=config, dtype=torch.float32), True
        encoder = AutoModel.from_pretrained(source, config=config, dtype=torch.float32)
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error) from None
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder, False


def max_positions(encoder: nn.Module) -> int | None:
    """The longest sequence the encoder has positions for, or None if it has no limit."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - first_position(encoder)
    return getattr(encoder.config, "max_position_embeddings", None)


def cannot_load(backbone: str, error: Exception, option: str = "backbone") -> InputError:
    """The line for the user when a backbone can't be loaded."""
    if isinstance(error, InputError):
        return error
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(
        f"backbone {backbone!r} can't be loaded: {reason} Give a hub id, a folder with config.json, or package:NAME "
        f"(option model.init_args.{option})"
    )
