"""Pretrained encoders and their tokenizers: by hub id, from a folder, or out of an installed Python
package.
"""

import importlib.util
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.peft_utils import find_adapter_config_file

from ltr.data.files import seen_from
from ltr.entries import parse_json
from ltr.errors import InputError, local_path
from ltr.models.encoder.loading.architecture import (
    EncoderDropout,
    leave_out_dropout,
    max_positions,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.lost_files import check_is_whole

# Whoever loads a model here says ``trust_remote_code=False``. Where nothing is said, transformers
# asks on the terminal whether it may run the code of a model.

log = logging.getLogger(__name__)

PACKAGE = "package:"
# The type of what JSON files of a model hold; files of other names may hold anything.
HOLDS = {
    "config.json": dict,
    "config_sentence_transformers.json": dict,
    "modules.json": list,
    "sentence_bert_config.json": dict,
    "tokenizer.json": dict,
    "tokenizer_config.json": dict,
}
NO_LIMIT = 10**9  # a tokenizer that knows no longest text says 10^30
# What loading raises where a model is absent, of another kind, or damaged. Each reader of another
# package raises what it stumbles over, and that of tokenizer.json a bare Exception.
LOAD_ERRORS = Exception

# How the names of classes end that have no head, or the one over words of pretraining.
WITHOUT_TASK = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForCausalLM",
)

# Held while transformers is changed for the whole process (:func:`quiet`,
# :func:`refuse_misfitting_weights`): by one thread at a time, which may hold it twice.
_CHANGED_BY_ONE = threading.RLock()


def resolve(backbone: str) -> str:
    """The hub id or folder of a backbone, as transformers loads it.

    ``package:NAME`` becomes the folder of the installed package NAME that holds ``config.json``;
    any other backbone stays as it is.

    Raises:
        InputError: if the package is not installed or holds no model, or for an address
            (``s3://…``).
    """
    local_path("backbone", backbone)
    if not backbone.startswith(PACKAGE):
        return backbone
    name = backbone.removeprefix(PACKAGE)
    if "." in name:
        # To find a package within another one, Python imports the other: a checkpoint would run it.
        raise InputError(
            f"backbone {backbone!r}: package:NAME takes the name of a whole package, without dots"
        )
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        distribution = name.replace("_", "-")
        raise InputError(
            f"backbone {backbone!r}: the package {name!r} is not installed: "
            f"pip install {distribution}"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for config in (root / "config.json", *sorted(root.glob("*/config.json"))):
        if config.is_file():
            return str(config.parent)
    raise InputError(f"backbone {backbone!r}: the package holds no config.json, so no model")


def load_tokenizer(backbone: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a backbone; an InputError if it cannot be loaded, or knows no words, or if
    the backbone is an adapter, or has lost a file.
    """
    check_is_model(backbone)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(backbone), trust_remote_code=False)
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
        raise InputError(
            f"backbone {backbone!r} has no tokenizer, or one without words; "
            "save the tokenizer into the same folder: tokenizer.save_pretrained(folder)",
            option=option,
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(
            f"backbone {backbone!r}: model_max_length in its tokenizer_config.json must be a number, got {tokenizer.model_max_length!r}; mend the file",
            option=option,
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
    tokenizer: PreTrainedTokenizerBase,
    encoder: PreTrainedModel,
    backbone: str,
    option: str = "backbone",
) -> None:
    """Refuse a tokenizer that makes token ids for which the encoder has no embedding."""
    n_embeddings = encoder.get_input_embeddings().num_embeddings
    largest_id = max(tokenizer.get_vocab().values())
    if largest_id >= n_embeddings:
        raise InputError(
            f"backbone {backbone!r}: its tokenizer has token ids up to {largest_id}, "
            f"but the encoder has embeddings for ids below {n_embeddings}; "
            "save the tokenizer that the encoder was trained with into the same folder",
            option=option,
        )


def check_is_model(backbone: str, option: str = "backbone") -> None:
    """Refuse a folder that has lost a file, and an adapter, such as LoRA's, which would be loaded
    frozen, or left out.

    A folder of sentence-transformers may hold its encoder in a folder of its own.
    """
    source = resolve(backbone)
    check_is_whole(source, backbone, option)
    folders = [source, *(str(file.parent) for file in Path(source).glob("*/adapter_config.json"))]
    for folder in folders:
        try:
            file = find_adapter_config_file(folder)
        except LOAD_ERRORS:  # not to be fetched: then the model can't be either
            file = None
        if file is not None:
            raise InputError(
                f"backbone {backbone!r} holds an adapter (adapter_config.json), not a model; to train adapters, name the model below them as backbone and set encoder.lora; to take these, merge them (merge_and_unload of peft), save the model, and name that; adapters of a run are read by the name of the run",
                option=option,
            )


class Pretrained(NamedTuple):
    """A loaded encoder.

    Attributes:
        model: the encoder.
        has_own_head: whether it is a ready cross-encoder, with a head for one score.
        left_out_dropout: probabilities of dropout that were set to 0 in its config, as they were.
    """

    model: PreTrainedModel
    has_own_head: bool
    left_out_dropout: dict[str, float]


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
    return _load(backbone, dropout, new_weights, AutoModel)


def load_language_model(
    backbone: str, dropout: EncoderDropout = "hidden", new_weights: bool = False
) -> Pretrained:
    """As :func:`load_encoder`, a decoder with its head over all words; or a sequence classifier."""
    return _load(backbone, dropout, new_weights, AutoModelForCausalLM)


def _load(
    backbone: str, dropout: EncoderDropout, new_weights: bool, plain_class: Any
) -> Pretrained:
    """A model of ``plain_class``, one of the ``AutoModel`` classes, or a ready cross-encoder."""
    try:
        source = resolve(backbone)
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"backbone {backbone!r}: {config.model_type} has a decoder; take an encoder"
            )
        config.return_dict = True
        left_out_dropout = leave_out_dropout(config, dropout)
        has_own_head = _is_classifier(config) and config.num_labels == 1
        model_class = AutoModelForSequenceClassification if has_own_head else plain_class
        with quiet(), refuse_misfitting_weights(backbone, new_weights):
            encoder = model_class.from_pretrained(
                source, config=config, dtype=torch.float32, trust_remote_code=False
            )
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error) from None
    if not has_own_head and getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    turn_off_fixed_dropout(encoder, dropout)
    return Pretrained(encoder, has_own_head, left_out_dropout)


def left_out_head(backbone: str) -> str | None:
    """What a model of transformers was trained with beside its encoder, in words: the head of
    another task, or a decoder. None for a plain encoder, one with a head over words, which it was
    pretrained with, and a model whose configuration can't be read.
    """
    n_labels = labels_of_classifier(backbone)
    if n_labels is not None:
        return f"its head of {n_labels} label{'' if n_labels == 1 else 's'}"
    try:
        config = AutoConfig.from_pretrained(resolve(backbone), trust_remote_code=False)
    except LOAD_ERRORS:
        return None
    name = (config.architectures or ["Model"])[0]
    if getattr(config, "is_encoder_decoder", False) and not name.endswith("EncoderModel"):
        return f"its decoder ({name})"
    return None if name.endswith(WITHOUT_TASK) else f"its head ({name})"


def labels_of_classifier(backbone: str) -> int | None:
    """How many labels a sequence classifier of transformers has; None for another model, and where
    its configuration can't be read.
    """
    try:
        config = AutoConfig.from_pretrained(resolve(backbone), trust_remote_code=False)
    except LOAD_ERRORS:
        return None
    return config.num_labels if _is_classifier(config) else None


def is_pair_classifier(backbone: str) -> bool:
    """Whether a backbone is a sequence classifier of transformers with one score; False also where
    its configuration can't be read.
    """
    return labels_of_classifier(backbone) == 1


def _is_classifier(config: PretrainedConfig) -> bool:
    """Whether a configuration is that of a sequence classifier."""
    architectures = config.architectures or []
    return any(name.endswith("ForSequenceClassification") for name in architectures)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no messages below errors of transformers and sentence-transformers: what
    matters is raised. Other threads wait to load.
    """
    of_transformers = transformers.utils.logging
    of_sentence_transformers = logging.getLogger("sentence_transformers")
    with _CHANGED_BY_ONE:
        had_progress_bars = of_transformers.is_progress_bar_enabled()
        verbosity = of_transformers.get_verbosity()
        level = of_sentence_transformers.level
        of_transformers.disable_progress_bar()
        of_transformers.set_verbosity_error()
        of_sentence_transformers.setLevel(logging.ERROR)
        try:
            yield
        finally:
            of_sentence_transformers.setLevel(level)
            of_transformers.set_verbosity(verbosity)
            if had_progress_bars:
                of_transformers.enable_progress_bar()


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
    """Refuse weights that transformers found missing, unexpected or of another shape.

    Args:
        model: as it was loaded.
        loading_info: what ``from_pretrained`` returns of its weights.
        backbone: for the error.
    """
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


def warn_of_left_out_head(backbone: str) -> None:
    """Say that a ranker does not begin with the head of its backbone."""
    head = left_out_head(backbone)
    if head is not None:
        log.warning(
            "backbone %r: %s is left out; the ranker begins with another one", backbone, head
        )


def cannot_load(backbone: str, error: Exception, option: str = "backbone") -> InputError:
    """The error for the user when a backbone cannot be loaded. An InputError keeps its message."""
    if isinstance(error, InputError):
        return InputError(error.message, option=error.option or option)
    if "trust_remote_code" in str(error):
        return InputError(
            f"backbone {backbone!r} has code of its own, which never runs here; take a model whose classes are in transformers or sentence-transformers",
            option=option,
        )
    damage = _damaged_json(Path(resolve(backbone)))
    if damage is not None:
        return InputError(f"backbone {backbone!r} can't be loaded: {damage}", option=option)
    lines = " ".join(str(error).split()) or type(error).__name__
    reason = lines if len(lines) <= 200 else f"{lines[:200]}…"
    return InputError(
        f"backbone {backbone!r} can't be loaded: {reason.rstrip('.: ')}. "
        f"Give a hub id, a folder with config.json{seen_from(backbone)}, or package:NAME",
        option=option,
    )


def _damaged_json(folder: Path) -> str | None:
    """What is wrong with the first JSON file of a model that can't be read, or holds something of
    another type; None where all are right, or the model is in no folder.

    The readers of other packages do not say which file it was.
    """
    for file in sorted(folder.rglob("*.json")) if folder.is_dir() else []:
        try:
            content = parse_json(file.read_bytes())
        except (OSError, ValueError) as error:
            return f"{file}: the file is damaged ({error}); save the model again"
        expected = HOLDS.get(file.name)
        if expected is not None and not isinstance(content, expected):
            words = "a list" if expected is list else "an object"
            return f"{file}: the file is damaged, it must hold {words}, got {content!r:.40}; save the model again"
    return None
