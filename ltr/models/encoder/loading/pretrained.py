"""Pretrained encoders and their tokenizers, with their weights."""

import copy
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ltr.errors import InputError
from ltr.models.encoder.loading.architecture import (
    EncoderDropout,
    leave_out_dropout,
    max_positions,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.model_folder import (
    LOAD_ERRORS,
    Backbone,
    ModelFolder,
    cannot_load,
    open_folder,
)
from ltr.models.encoder.loading.whole_folder import check_is_model

log = logging.getLogger(__name__)

NO_LIMIT = 10**9  # a tokenizer that knows no longest text says 10^30
# Held while transformers is changed for the whole process (:func:`quiet`,
# :func:`refuse_misfitting_weights`): by one thread at a time, which may hold it twice.
_CHANGED_BY_ONE = threading.RLock()


def load_tokenizer(backbone: Backbone) -> PreTrainedTokenizerBase:
    """The tokenizer of a backbone; an InputError if it cannot be loaded, or knows no words, or if
    the backbone is an adapter, or has lost a file.
    """
    folder = open_folder(backbone)
    check_is_model(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder.source, trust_remote_code=False)
    except LOAD_ERRORS as error:
        raise cannot_load(folder, error) from None
    check_tokenizer(tokenizer, folder)
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: ModelFolder) -> None:
    """Refuse the tokenizer that transformers makes up for a folder without one: it knows special
    tokens only.
    """
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise InputError(
            f"backbone {folder.name!r} has no tokenizer, or one without words; "
            "save the tokenizer into the same folder: tokenizer.save_pretrained(folder)",
            option=folder.option,
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(
            f"backbone {folder.name!r}: model_max_length in its tokenizer_config.json must be a number, got {tokenizer.model_max_length!r}; mend the file",
            option=folder.option,
        )


def without_truncation(tokenizer: Any) -> Any:
    """The tokenizer, without the truncation and the padding of what it has read last: saved, it
    would hand them on to whoever reads its tokenizer.json.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, encoder: PreTrainedModel, folder: ModelFolder
) -> None:
    """Refuse a tokenizer that makes token ids for which the encoder has no embedding."""
    n_embeddings = encoder.get_input_embeddings().num_embeddings
    largest_id = max(tokenizer.get_vocab().values())
    if largest_id >= n_embeddings:
        raise InputError(
            f"backbone {folder.name!r}: its tokenizer has token ids up to {largest_id}, "
            f"but the encoder has embeddings for ids below {n_embeddings}; "
            "save the tokenizer that the encoder was trained with into the same folder",
            option=folder.option,
        )


def load_encoder(
    backbone: Backbone, dropout: EncoderDropout = "hidden", new_weights: bool = False
) -> tuple[PreTrainedModel, dict[str, float]]:
    """An encoder in float32; a sequence classifier with one score, with its head.

    Weights stored in half precision become float32: training updates them in float32, under
    ``trainer.precision`` too. A pooler that no head uses is removed: it would get no gradient.

    Args:
        backbone: hub id, folder, or ``package:NAME``.
        dropout, new_weights: see :class:`ltr.models.encoder.text_encoder.TextEncoder.Options`.

    Returns:
        The model, and the probabilities of dropout that were set to 0 in its config, as they were.

    Raises:
        InputError: if it cannot be loaded, or its weights do not fit.
    """
    return _load(open_folder(backbone), dropout, new_weights, AutoModel)


def load_language_model(
    backbone: Backbone, dropout: EncoderDropout = "hidden", new_weights: bool = False
) -> tuple[PreTrainedModel, dict[str, float]]:
    """As :func:`load_encoder`, a decoder with its head over all words; or a sequence classifier."""
    return _load(open_folder(backbone), dropout, new_weights, AutoModelForCausalLM)


def _load(
    folder: ModelFolder, dropout: EncoderDropout, new_weights: bool, plain_class: Any
) -> tuple[PreTrainedModel, dict[str, float]]:
    """A model of ``plain_class``, one of the ``AutoModel`` classes, or a ready cross-encoder."""
    has_own_head = folder.is_pair_classifier
    try:
        config = copy.deepcopy(folder.config)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"backbone {folder.name!r}: {config.model_type} has a decoder; take an encoder"
            )
        config.return_dict = True
        left_out_dropout = leave_out_dropout(config, dropout)
        model_class = AutoModelForSequenceClassification if has_own_head else plain_class
        with quiet(), refuse_misfitting_weights(folder.name, new_weights):
            encoder = model_class.from_pretrained(
                folder.source, config=config, dtype=torch.float32, trust_remote_code=False
            )
    except LOAD_ERRORS as error:
        raise cannot_load(folder, error) from None
    if not has_own_head and getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    encoder.name_or_path = folder.known_as
    turn_off_fixed_dropout(encoder, dropout)
    return encoder, left_out_dropout


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no messages below errors of transformers and sentence-transformers: what
    matters is raised. Other threads wait to load.
    """
    transformers_logging = transformers.utils.logging
    sentence_transformers_log = logging.getLogger("sentence_transformers")
    with _CHANGED_BY_ONE:
        had_progress_bars = transformers_logging.is_progress_bar_enabled()
        verbosity = transformers_logging.get_verbosity()
        level = sentence_transformers_log.level
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        sentence_transformers_log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            sentence_transformers_log.setLevel(level)
            transformers_logging.set_verbosity(verbosity)
            if had_progress_bars:
                transformers_logging.enable_progress_bar()


@contextmanager
def refuse_misfitting_weights(backbone: str, new_weights: bool = False) -> Iterator[None]:
    """Inside the block, ``from_pretrained`` refuses weights that do not fit the configuration,
    whoever calls it in this thread. Other threads wait to load.

    The pooler of a plain encoder may be missing, and heads of other tasks are left out. With
    ``new_weights`` nothing is refused.
    """
    # The first setting makes transformers return which weights did not fit. The second makes it
    # list weights of other shapes there, and not raise an error of its own.
    reporting = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    this_thread = threading.get_ident()

    with _CHANGED_BY_ONE:
        original = PreTrainedModel.from_pretrained.__func__

        def from_pretrained(
            model_class: type[PreTrainedModel], *args: Any, **settings: Any
        ) -> PreTrainedModel:
            if threading.get_ident() != this_thread:  # a program that uses transformers itself
                return original(model_class, *args, **settings)
            _check_attention(settings.get("config"), backbone)
            _check_quantised(settings.get("config"), backbone)
            model, loading_info = original(model_class, *args, **settings | reporting)
            if not new_weights:
                _check_weights(model, loading_info, backbone)
            return model

        # Patched, as sentence-transformers calls from_pretrained itself and drops the loading info.
        with mock.patch.object(PreTrainedModel, "from_pretrained", classmethod(from_pretrained)):
            yield


def _check_attention(config: PretrainedConfig | None, backbone: str) -> None:
    """Refuse a config.json that names attention to be fetched from the hub and run."""
    attention = None if config is None else config._attn_implementation
    if attention is not None and "/" in attention:
        raise InputError(
            f"backbone {backbone!r}: its attn_implementation {attention!r} is code of the hub, which never runs here; take it out of its config.json"
        )


def _check_quantised(config: PretrainedConfig | None, backbone: str) -> None:
    """Refuse weights that are quantised, as by bitsandbytes, where nothing multiplies them."""
    if getattr(config, "quantization_config", None) is None or torch.cuda.is_available():
        return
    raise InputError(
        f"backbone {backbone!r} is quantised (quantization_config in its config.json), which needs a GPU with CUDA, and there is none here; take the model that it was made from, with encoder.lora and encoder.dtype bfloat16"
    )


def _check_weights(model: PreTrainedModel, loading_info: dict[str, Any], backbone: str) -> None:
    """Refuse weights that transformers found missing, unexpected or of another shape."""
    base = model.base_model
    is_plain_encoder = base is model
    missing = []
    for key in loading_info["missing_keys"]:
        may_be_missing = is_plain_encoder and key.startswith("pooler.")
        if not may_be_missing:
            missing.append(key)

    # Unexpected weights are taken for the head of another task, and let pass. Two kinds are not:
    # those below a part of the encoder itself, and any if weights are missing, as they may be the
    # missing ones under other names.
    parts = {name for name, _ in base.named_children()} - {"pooler"}
    unexpected = []
    for key in loading_info["unexpected_keys"]:
        part = key.removeprefix(f"{model.base_model_prefix}.").partition(".")[0]
        if missing or part in parts:
            unexpected.append(key)

    other_shapes = []
    for key, stored, wanted in loading_info["mismatched_keys"]:
        other_shapes.append(f"{key} {list(stored)} for {list(wanted)}")

    misfits = []
    if missing:
        misfits.append(_count_and_names(missing, "missing"))
    if unexpected:
        misfits.append(_count_and_names(unexpected, "unexpected"))
    if other_shapes:
        misfits.append(_count_and_names(other_shapes, "of other shapes"))
    if misfits:
        raise InputError(
            f"backbone {backbone!r}: its weights do not fit its configuration, "
            f"{', '.join(misfits)}; mend its config.json or its weights, or set "
            "encoder.new_weights to begin with random numbers where they do not"
        )


def _count_and_names(keys: list[str], what: str) -> str:
    """The number of keys, what they are, and the first three of them."""
    names = ", ".join(sorted(keys)[:3])
    if len(keys) > 3:
        names += ", …"
    return f"{len(keys)} {what} ({names})"


def token_limit(
    max_length: int | None, model_length: int | None, encoder: PreTrainedModel, backbone: str
) -> int:
    """The number of tokens at which a text is cut.

    Args:
        max_length: what the user sets; None: ``model_length``, or fewer where the encoder has
            fewer positions.
        model_length: what the model's files name; None: they name none.
        encoder: has a limited number of positions, or not.
        backbone: for errors.

    Raises:
        InputError: if ``max_length`` exceeds the encoder's positions, or nothing names a length.
    """
    positions = max_positions(encoder)
    if max_length is None:
        limits = [n for n in (model_length, positions) if n is not None and n < NO_LIMIT]
        if not limits:
            raise InputError(
                f"backbone {backbone!r} names no longest text; set max_length", option="max_length"
            )
        return min(limits)
    if positions is not None and max_length > positions:
        raise InputError(
            f"max_length must be at most {positions}, the positions of {backbone!r}, "
            f"got {max_length}",
            option="max_length",
        )
    return max_length


def warn_of_left_out_head(folder: ModelFolder) -> None:
    """Say that a ranker does not begin with the head of its backbone."""
    head = folder.left_out_head
    if head is not None:
        log.warning(
            "backbone %r: %s is left out; the ranker begins with another one", folder.name, head
        )
