"""Models of random weights in the shapes of known ones, with a tokenizer of a collection's own words:
nothing is downloaded.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from ltr.data.collection import Collection

LONGEST = 512  # tokens of a text
SHAPES: dict[str, PreTrainedConfig] = {
    "MiniLM": BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
    "BERT-base": BertConfig(),
    "ModernBERT-base": ModernBertConfig(max_position_embeddings=LONGEST),
    "Qwen3-0.6B": Qwen3Config(
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        max_position_embeddings=LONGEST,
    ),
}
# What a tiny model has in the place of these.
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
}


def save_tokenizer(collection: Collection, folder: Path) -> None:
    """Train BERT's kind of tokenizer on the texts of a collection."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    options = {"vocab_size": 30_000, "special_tokens": special, "show_progress": False}
    tokenizer.train_from_iterator(collection.corpus.texts, trainers.WordPieceTrainer(**options))
    separator = ("[SEP]", tokenizer.token_to_id("[SEP]"))
    start = ("[CLS]", tokenizer.token_to_id("[CLS]"))
    tokenizer.post_processor = processors.BertProcessing(separator, start)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=LONGEST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)


def save_model(name: str, folder: Path, tiny: bool) -> None:
    """A model of random weights by its name in ``SHAPES``."""
    config = AutoConfig.for_model(**SHAPES[name].to_dict())
    # Token 0 is the padding of the tokenizer above; the other special ones of a model are no words.
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    config.update({"pad_token_id": 0, **special})
    if tiny:
        config.update(TINY)
        if "layer_types" in config.to_dict():
            config.layer_types = config.layer_types[: config.num_hidden_layers]
    torch.manual_seed(0)
    # On a CPU the numbers of a large model take ten seconds.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModel.from_config(config)
    model.cpu().save_pretrained(folder)


def flops_of_forward(folder: str, tokens: float, squares: float) -> float:
    """Floating-point operations of the matrix products of a forward pass.

    Args:
        folder: of the model.
        tokens: real ones.
        squares: the squared lengths of the texts, summed up; as if every layer saw whole texts.
    """
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    weights = 0
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not any(part in name for part in ("embed", "pooler")):
            weights += parameter.numel()
    sizes = config.to_dict()
    width = config.hidden_size
    if sizes.get("head_dim"):
        width = config.num_attention_heads * config.head_dim
    return 2 * weights * tokens + 4 * config.num_hidden_layers * width * squares
