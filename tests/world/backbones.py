"""A tiny BERT and its tokenizer; a ready cross-encoder of it."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tests.world.collections import WORDS


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """BERT's kind: [CLS] query [SEP] document [SEP], types 0 and 1."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {t: i for i, t in enumerate([*special, "a", *WORDS, "##x"])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def make_backbone(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast | None = None,
    model: type[PreTrainedModel] = BertModel,
    seed: int = 0,
    **sizes: object,
) -> Path:
    """A two-layer BERT of 16 dimensions with its tokenizer, as a folder; or another model of other
    sizes.
    """
    tokenizer = tokenizer or wordpiece_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    options = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    model(model.config_class(**options | sizes)).save_pretrained(folder)
    return folder


def make_classifier(folder: Path, n_layers: int = 1, n_labels: int = 1, seed: int = 0) -> str:
    """A BERT whose own head gives so many scores, with its tokenizer, as a folder."""
    sizes = {"num_hidden_layers": n_layers, "num_labels": n_labels}
    return str(make_backbone(folder, model=BertForSequenceClassification, seed=seed, **sizes))
