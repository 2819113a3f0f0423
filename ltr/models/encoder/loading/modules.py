"""Models of sentence-transformers: their modules, read from folders and written into them, and all
that would be read otherwise here than there is refused.
"""

import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ltr.data.console import speech_on_stderr
from ltr.errors import InputError
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
    without_truncation,
)
from ltr.models.encoder.loading.whole_folder import check_is_model

log = logging.getLogger(__name__)

# Importing sentence_transformers takes some ten seconds: it is imported inside functions.

# Modules of sentence-transformers, called one after the other. Any, as each kind of module has
# attributes of its own that nn.Module does not declare.
Modules = list[Any]

# A setting of sentence-transformers: of a pair that is too long the document is cut, not the query,
# as here. Without it sentence-transformers cuts the longer of the two.
CUT_DOCUMENT = {"text": {"truncation": "only_second"}}
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
    with speech_on_stderr():
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling
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
    # Without a pooling it is refused below; behind a router each route has its own.
    its_pooling = next((each for each in modules if isinstance(each, TheirPooling)), None)
    chosen = pooling or (None if its_pooling is None else name_here(its_pooling.pooling_mode))
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
        side[0].model.name_or_path = folder.known_as
    for name, prompt in model.prompts.items():
        if not isinstance(prompt, str | None):
            raise InputError(
                f"backbone {backbone!r}: the prompt {name!r} in its config_sentence_transformers.json must be a text, got {str(prompt)[:40]!r}; take another backbone",
                option=folder.option,
            )
    query_prompt = _first_prompt(model, "query")
    doc_prompt = _first_prompt(model, "document", "passage", "corpus")
    return LoadedModules(query, doc, query_prompt, doc_prompt)


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
    query_weights = {id(weight) for module in query for weight in module.parameters()}
    doc_weights = {id(weight) for module in doc for weight in module.parameters()}
    return not query_weights.isdisjoint(doc_weights)


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
    """Refuse modules that are no tower, or that sentence-transformers would read otherwise."""
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


def many_scores(folder: ModelFolder, n_labels: int) -> InputError:
    """The error for a classifier that is no cross-encoder."""
    return InputError(
        f"a cross-encoder must give a pair one score, and {folder.name!r} gives {n_labels}; "
        "take another backbone",
        option=folder.option,
    )


def saved_head(
    folder: ModelFolder, reads_messages: bool = False
) -> tuple[Pooling, nn.Linear] | None:
    """The pooling and the linear layer of a CrossEncoder of sentence-transformers that has modules
    of its own behind the encoder; None for all others.

    Args:
        folder: of the model.
        reads_messages: whether a chat template makes one text of a pair, as of a decoder ranker.

    Raises:
        InputError: if it can't be loaded, its list of modules is lost, its modules are not an
            encoder, a pooling, and a linear layer to one score, or it reads pairs otherwise.
    """
    if not reads_messages and folder.is_saved_decoder:
        raise InputError(
            f"backbone {folder.name!r} is a DecoderRanker, which reads its pairs in a template; take ltr.models.DecoderRanker",
            option=folder.option,
        )
    if not folder.has_cross_modules:
        return None
    with speech_on_stderr():
        from sentence_transformers import CrossEncoder
        from sentence_transformers.cross_encoder.modules import Dense, Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling

    try:
        with quiet():
            modules = list(
                CrossEncoder(
                    folder.source,
                    device="cpu",
                    local_files_only=folder.is_local,
                    trust_remote_code=False,
                )
            )
    except LOAD_ERRORS as error:
        raise cannot_load(folder, error) from None
    match modules:
        # A sequence classifier: transformers loads its head with the encoder.
        case [Transformer(transformer_task="sequence-classification") as transformer]:
            n_labels = transformer.config.num_labels
            if n_labels != 1:
                raise many_scores(folder, n_labels)
            _check_options(transformer, folder, reads_messages)
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
            _check_options(transformer, folder, reads_messages)
            return name_here(pooling.pooling_mode), dense.linear
    names = ", ".join(type(module).__name__ for module in modules)
    raise InputError(
        "a cross-encoder's modules must be an encoder, or an encoder, a pooling, and a linear "
        f"layer to one score, got {names} in {folder.name!r}; take another backbone",
        option=folder.option,
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


def _check_options(transformer: Any, folder: ModelFolder, reads_messages: bool) -> None:
    """Refuse what sentence-transformers would read otherwise than we do."""
    is_classifier = transformer.transformer_task == "sequence-classification"
    if "message" in transformer.modality_config and not reads_messages and not is_classifier:
        raise InputError(
            f"backbone {folder.name!r}: sentence-transformers reads its pairs by a chat template, which is not known here; take ltr.models.DecoderRanker, with that as its template",
            option=folder.option,
        )
    settings = transformer.processing_kwargs
    if settings not in ({}, CUT_DOCUMENT):
        raise InputError(
            f"backbone {folder.name!r}: sentence-transformers reads its pairs with processing_kwargs "
            f"{settings!r}, which is not known here; take it out of the model's files",
            option=folder.option,
        )
