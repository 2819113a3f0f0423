"""Tiny decoders of every kind that is packed, with random weights, and a tokenizer for them."""

from pathlib import Path

import torch
from tokenizers import processors
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from tests.world.collections import WORDS
from tests.world.tokenizers import trained_bpe

# As Qwen's, but for the roles: messages between <|im_start|> and <|im_end|>.
CHAT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]


def decoder_tokenizer(chat: bool = True, appends_end: bool = False) -> PreTrainedTokenizerFast:
    """Qwen's kind: byte-level BPE without special tokens, or with one at the end, as that of its
    embedders. The words yes and no are tokens.
    """
    words = ["yes", "no", "Query", "Document", *(f" {word}" for word in WORDS)] * 5
    tokenizer = trained_bpe(words, SPECIAL, 400)
    if appends_end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>",
            pair="$A $B <|endoftext|>",
            special_tokens=[("<|endoftext|>", 0)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=CHAT if chat else None,
        model_input_names=["input_ids", "attention_mask"],
    )


SIZES = {
    "vocab_size": 400,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
# One layer with a window, one without. A cap of 2 bends the scores of tiny models, too.
WINDOWED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "qwen3": Qwen3Config(**SIZES),
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=8),
    "gemma2": Gemma2Config(
        **SIZES,
        **WINDOWED,
        query_pre_attn_scalar=5,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=30.0,
    ),
    "gemma3": Gemma3TextConfig(**SIZES, **WINDOWED, query_pre_attn_scalar=5),
}
KINDS = {
    "base": AutoModel,
    "causal": AutoModelForCausalLM,
    "classifier": AutoModelForSequenceClassification,
}


def decoder(name: str, kind: str = "base", std: float = 0.3) -> PreTrainedModel:
    """A decoder with random weights. Initial ones are so small that attention is all but uniform.

    Args:
        name: of a configuration above.
        kind: ``base``, ``causal`` with the head over all words, or ``classifier`` with one score.
        std: of the weights.
    """
    torch.manual_seed(0)
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict())
    if kind == "classifier":
        config.num_labels = 1
    model = KINDS[kind].from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=std)
    return model.eval()


def save_decoder(
    folder: Path, name: str = "qwen3", kind: str = "causal", std: float = 0.3, **options: bool
) -> str:
    """Save a decoder with its tokenizer, whose ``options`` are those of :func:`decoder_tokenizer`."""
    decoder(name, kind, std).save_pretrained(folder)
    decoder_tokenizer(**options).save_pretrained(folder)
    return str(folder)
