"""Cross-encoders of sentence-transformers: reading the folders it has written, writing our own."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from ltr.entries import parse_json
from ltr.errors import InputError
from ltr.models.encoder.loading.pooling import Pooling, name_here, name_there
from ltr.models.encoder.loading.pretrained import (
    LOAD_ERRORS,
    cannot_load,
    is_pair_classifier,
    quiet,
    resolve,
    without_truncation,
)

# Importing sentence_transformers takes some ten seconds: it is imported inside functions.

# A setting of sentence-transformers: of a pair that is too long the document is cut, not the query,
# as here. Without it sentence-transformers cuts the longer of the two.
CUT_DOCUMENT = {"text": {"truncation": "only_second"}}
# Of a decoder ranker: what it reads, beside a model that sentence-transformers or transformers loads.
SETTINGS = "ltr.json"


class SavedHead(NamedTuple):
    """The trained head of a CrossEncoder of sentence-transformers: a pooling, and a linear layer
    with the weight ``[1, H]`` and the bias ``[1]``; None where it has none.
    """

    pooling: Pooling
    weight: torch.Tensor
    bias: torch.Tensor | None


def is_cross_encoder(backbone: str) -> bool:
    """Whether a backbone scores pairs: a sequence classifier of transformers with one score, or a
    CrossEncoder of sentence-transformers.

    Raises:
        InputError: for a CrossEncoder whose list of modules is lost.
    """
    return is_pair_classifier(backbone) or _has_cross_modules(backbone)


def many_scores(backbone: str, n_labels: int) -> InputError:
    """The error for a classifier that is no cross-encoder."""
    return InputError(
        f"a cross-encoder must give a pair one score, and {backbone!r} gives {n_labels}; "
        "take another backbone",
        option="backbone",
    )


def check_is_dual_encoder(backbone: str, option: str = "backbone") -> None:
    """Refuse a model that sentence-transformers compares otherwise than by one embedding of each
    text: it would convert it, without a word. A CrossEncoder may begin a dual encoder.
    """
    settings = json_of(resolve(backbone), "config_sentence_transformers.json")
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind not in (None, "SentenceTransformer", "CrossEncoder"):
        raise InputError(
            f"backbone {backbone!r} is a {kind}, whose texts have no single embedding each; take a SentenceTransformer, or a plain encoder",
            option=option,
        )


def is_saved_decoder(source: str) -> bool:
    """Whether a folder was written by :class:`ltr.models.DecoderRanker`."""
    settings = json_of(source, SETTINGS)
    return isinstance(settings, dict) and settings.get("ranker") == "DecoderRanker"


def saved_head(backbone: str, reads_messages: bool = False) -> SavedHead | None:
    """The head of a CrossEncoder of sentence-transformers that has modules of its own behind the
    encoder; None for all others.

    Args:
        backbone: hub id, folder, or ``package:NAME``.
        reads_messages: whether a chat template makes one text of a pair, as of a decoder ranker.

    Raises:
        InputError: if it can't be loaded, its list of modules is lost, its modules are not an
            encoder, a pooling, and a linear layer to one score, or it reads pairs otherwise.
    """
    if not reads_messages and is_saved_decoder(resolve(backbone)):
        raise InputError(
            f"backbone {backbone!r} is a DecoderRanker, which reads its pairs in a template; take ltr.models.DecoderRanker",
            option="backbone",
        )
    if not _has_cross_modules(backbone):
        return None
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling

    source = resolve(backbone)
    is_folder = Path(source).is_dir()
    try:
        with quiet():
            modules = list(
                CrossEncoder(
                    source, device="cpu", local_files_only=is_folder, trust_remote_code=False
                )
            )
    except LOAD_ERRORS as error:
        raise cannot_load(backbone, error) from None
    match modules:
        # A sequence classifier: transformers loads its head with the encoder.
        case [Transformer(transformer_task="sequence-classification") as transformer]:
            n_labels = transformer.config.num_labels
            if n_labels != 1:
                raise many_scores(backbone, n_labels)
            _check_options(transformer, backbone, reads_messages)
            return None
        # An encoder, a pooling, and a linear layer that reads what the pooling makes.
        case [
            Transformer() as transformer,
            TheirPooling() as pooling,
            Dense(out_features=1, use_residual=False) as dense,
        ] if (
            isinstance(dense.activation_function, nn.Identity)
            and dense.module_input_name == "sentence_embedding"
        ):
            _check_options(transformer, backbone, reads_messages)
            weight = dense.linear.weight.detach()
            bias = None if dense.linear.bias is None else dense.linear.bias.detach()
            return SavedHead(name_here(pooling.pooling_mode), weight, bias)
    names = ", ".join(type(module).__name__ for module in modules)
    raise InputError(
        "a cross-encoder's modules must be an encoder, or an encoder, a pooling, and a linear "
        f"layer to one score, got {names} in {backbone!r}; take another backbone",
        option="backbone",
    )


def save_cross_encoder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    head: nn.Module,
    pooling: str,
    reads_messages: bool = False,
    query_prompt: str = "",
) -> None:
    """Write a folder that ``CrossEncoder(folder)`` and :class:`ltr.models.PairWiseBertRanker` load.

    Args:
        folder: where to; it may exist.
        model: the encoder, or a classifier with a head of its own.
        tokenizer, max_length: how pairs are read.
        head: the linear layer behind the pooling; ``nn.Identity`` for a classifier.
        pooling: how tokens become what the linear layer reads.
        reads_messages: whether the tokenizer's chat template makes one text of a pair.
        query_prompt: what stands in front of each query.
    """
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling

    task = "feature-extraction" if isinstance(head, nn.Linear) else "sequence-classification"
    with quiet():
        # sentence-transformers makes its module from a folder only. So the model is written twice:
        # plainly, for the time of this function, and then with the modules behind it.
        plain = folder / "plain"
        save_for_transformers(plain, model, tokenizer, max_length)
        transformer = Transformer(
            str(plain),
            transformer_task=task,
            max_seq_length=max_length,
            processing_kwargs={} if reads_messages else CUT_DOCUMENT,
        )
        if not reads_messages:
            read_plain_text(transformer)
        modules: list[Any] = [transformer]
        if isinstance(head, nn.Linear):
            # Transformers makes up a pooler with random weights, which nothing reads. It must stay,
            # or loading the folder would warn of missing weights; as zeros it is always the same.
            pooler = getattr(transformer.model, "pooler", None)
            if pooler is not None:
                for weight in pooler.parameters():
                    weight.data.zero_()
            dense = Dense(
                head.in_features,
                1,
                bias=head.bias is not None,
                activation_function=nn.Identity(),
                module_output_name="scores",
            )
            dense.linear.load_state_dict(head.state_dict())
            modules += [TheirPooling(head.in_features, name_there(pooling)), dense]
        # Identity, or CrossEncoder would put a sigmoid behind one score: scores are those of this
        # ranker.
        prompts = {"query": query_prompt} if query_prompt else None
        cross_encoder = CrossEncoder(
            modules=modules,
            activation_fn=nn.Identity(),
            device="cpu",
            prompts=prompts,
            default_prompt_name="query" if query_prompt else None,
        )
        cross_encoder.save(str(folder), create_model_card=False)
    shutil.rmtree(plain)


def read_plain_text(transformer: Any) -> None:
    """Let a model that sentence-transformers has not saved read texts as they are: where its
    tokenizer has a chat template, it would make messages of them.
    """
    modality = transformer.modality_config
    if "message" in modality and "text" in modality:
        transformer.modality_config = {"text": modality["text"]}
        transformer.input_formatter.supported_modalities = ["text"]


def save_for_transformers(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> None:
    """Write a folder of transformers, with the longest pair in the tokenizer's settings."""
    own_length = tokenizer.model_max_length
    with quiet():
        model.save_pretrained(folder)
        tokenizer.model_max_length = max_length
        try:
            without_truncation(tokenizer).save_pretrained(folder)
        finally:
            tokenizer.model_max_length = own_length


def _has_cross_modules(backbone: str) -> bool:
    """Whether a backbone is a CrossEncoder of sentence-transformers with a list of modules."""
    source = resolve(backbone)
    if _cross_encoder_settings(source) is None:
        return False
    if json_of(source, "modules.json") is not None:
        return True
    if is_pair_classifier(backbone):  # its head lies with the encoder
        return False
    raise InputError(
        f"backbone {backbone!r} is a CrossEncoder of sentence-transformers without modules.json, so its head can't be found; copy the whole folder",
        option="backbone",
    )


def cross_encoder_prompt(source: str) -> str:
    """The default prompt of a CrossEncoder of sentence-transformers, which stands in front of each
    query; empty where it has none.
    """
    settings = _cross_encoder_settings(source)
    if settings is None:
        return ""
    prompts = settings.get("prompts")
    name = settings.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    return prompt or ""


def _cross_encoder_settings(source: str) -> dict[str, Any] | None:
    """What a CrossEncoder of sentence-transformers says of itself; None for all other models. An
    InputError where only its kind is lost: its modules could be those of a dual encoder.
    """
    settings = json_of(source, "config_sentence_transformers.json")
    if not isinstance(settings, dict):
        return None
    kind = settings.get("model_type")
    if kind == "CrossEncoder":
        return settings
    if "activation_fn" in settings:
        raise InputError(
            f"backbone {source!r}: its config_sentence_transformers.json has the activation_fn of a CrossEncoder, and the model_type {kind!r}; mend the file",
            option="backbone",
        )
    return None


def json_of(source: str, name: str) -> Any:
    """The content of a JSON file of a model; None where the model has no such file, or it can't be
    fetched. An InputError where it is damaged.
    """
    options = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    try:
        file = cached_file(source, name, **options)
    except LOAD_ERRORS:
        return None
    if file is None:
        return None
    try:
        return parse_json(Path(file).read_bytes())
    except ValueError as error:
        raise InputError(
            f"backbone {source!r}: its {name} must be JSON, but can't be read ({error}); "
            "mend the file",
            option="backbone",
        ) from None


def _check_options(transformer: Any, backbone: str, reads_messages: bool) -> None:
    """Refuse what sentence-transformers would read otherwise than we do."""
    is_classifier = transformer.transformer_task == "sequence-classification"
    if "message" in transformer.modality_config and not reads_messages and not is_classifier:
        raise InputError(
            f"backbone {backbone!r}: sentence-transformers reads its pairs by a chat template, which is not known here; take ltr.models.DecoderRanker, with that as its template",
            option="backbone",
        )
    settings = transformer.processing_kwargs
    if settings not in ({}, CUT_DOCUMENT):
        raise InputError(
            f"backbone {backbone!r}: sentence-transformers reads its pairs with processing_kwargs "
            f"{settings!r}, which is not known here; take it out of the model's files",
            option="backbone",
        )
