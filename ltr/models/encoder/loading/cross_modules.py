"""Cross-encoders of sentence-transformers: reading the folders it has written, writing our own."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import LOAD_ERRORS, ModelFolder, cannot_load
from ltr.models.encoder.loading.pooling import Pooling, name_here, name_there
from ltr.models.encoder.loading.pretrained import quiet, without_truncation

# Importing sentence_transformers takes some ten seconds: it is imported inside functions.

# A setting of sentence-transformers: of a pair that is too long the document is cut, not the query,
# as here. Without it sentence-transformers cuts the longer of the two.
CUT_DOCUMENT = {"text": {"truncation": "only_second"}}


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
