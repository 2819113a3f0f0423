"""Decoder rankers in folders: those that we write, and those of sentence-transformers."""

from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from ltr.data.template import Template
from ltr.errors import InputError
from ltr.models.encoder.loading.cross_modules import (
    SavedHead,
    cross_encoder_prompt,
    is_saved_decoder,
    json_of,
    saved_head,
)
from ltr.models.encoder.loading.decoder_template import template_of_roles
from ltr.models.encoder.loading.pretrained import resolve
from ltr.models.encoder.loading.saved_template import saved_template


class SavedDecoder(NamedTuple):
    """What a folder says of a decoder ranker, beside its weights.

    Attributes:
        template: what is read; None: nothing is said.
        word_ids: the tokens of the two answers; None: there is a trained head.
        head: the trained head; None: it lies with the model, or is that of the words.
    """

    template: Template | None
    word_ids: list[int] | None = None
    head: SavedHead | None = None


def is_decoder_ranker(backbone: str) -> bool:
    """Whether a folder holds a decoder ranker."""
    source = resolve(backbone)
    return is_saved_decoder(source) or _logit_score(source) is not None


def is_language_model(backbone: str) -> bool:
    """Whether a backbone is a causal language model that sentence-transformers has not saved; False
    also where its configuration can't be read.
    """
    source = resolve(backbone)
    config = json_of(source, "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    is_causal = any(str(name).endswith("ForCausalLM") for name in architectures or [])
    return is_causal and json_of(source, "modules.json") is None


def saved_decoder(backbone: str, tokenizer: PreTrainedTokenizerBase) -> SavedDecoder | None:
    """What a folder says of its decoder ranker; None where it holds none.

    Raises:
        InputError: if it can't be read, or is scored otherwise than here.
    """
    source = resolve(backbone)
    if is_saved_decoder(source):
        template = saved_template(source, "DecoderRanker")
        return SavedDecoder(template, head=saved_head(backbone, reads_messages=True))
    module = _logit_score(source)
    if module is None:
        return None
    settings = json_of(source, f"{module}/config.json") or {}
    yes, no = settings.get("true_token_id"), settings.get("false_token_id")
    if not (isinstance(yes, int) and isinstance(no, int)):
        raise InputError(
            f"backbone {backbone!r}: its LogitScore must name a true and a false token, got {yes!r} and {no!r}; take another backbone",
            option="backbone",
        )
    template_of_model = template_of_roles(tokenizer, cross_encoder_prompt(source))
    return SavedDecoder(template_of_model, [yes, no])


def _logit_score(source: str) -> str | None:
    """The folder of the module by which a CrossEncoder of sentence-transformers compares two words;
    None where it has none.
    """
    modules: Any = json_of(source, "modules.json")
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict) and str(module.get("type")).endswith(".LogitScore"):
            return str(module.get("path"))
    return None
