"""What the architectures of transformers call their parts: layers, positions, windows, dropout.

What a new architecture calls otherwise goes here.
"""

from typing import Literal

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ltr.errors import InputError

EncoderDropout = Literal["hidden", "own", "none"]


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer's layers, taken for the longest list of modules.

    Architectures have different names for it. In a few, like MarkupLM, the longest list is another.
    """
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return max(lists, key=len)


def keep_layers(model: PreTrainedModel, count: int) -> None:
    """Keep ``count`` layers, evenly spaced from the first one: of six, three are the first, the
    third and the fifth.

    The configuration is changed too: a saved model has these layers alone. An InputError if the
    encoder has fewer.
    """
    layers = layers_of(model)
    config = model.config
    if count > len(layers):
        raise InputError(
            f"layers must be at most {len(layers)}, which the encoder has, got {count}",
            option="layers",
        )
    kept_numbers = [i * len(layers) // count for i in range(count)]
    kept_layers = [layers[number] for number in kept_numbers]
    del layers[:]
    layers.extend(kept_layers)
    config.num_hidden_layers = count
    # ModernBERT lists for each layer whether its attention is local or global.
    layer_types = config.to_dict().get("layer_types")
    if isinstance(layer_types, list):
        config.layer_types = [layer_types[number] for number in kept_numbers]


def position_embeddings(encoder: nn.Module) -> nn.Embedding | None:
    """The table of learnt positions. None where positions are computed."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


def padding_index(encoder: nn.Module) -> int | None:
    """The padding's token id in RoBERTa and its kin, which is the position of such tokens too; the
    positions of all others count up from it, at the first with it + 1. None for other encoders,
    whose positions count all tokens from 0.
    """
    positions = position_embeddings(encoder)
    return None if positions is None else positions.padding_idx


def max_positions(encoder: PreTrainedModel) -> int | None:
    """The longest sequence that the encoder has positions for. None if it has no limit."""
    positions = position_embeddings(encoder)
    if positions is not None:
        index = padding_index(encoder)
        return positions.num_embeddings - (0 if index is None else index + 1)
    limit = getattr(encoder.config, "max_position_embeddings", None)
    # XLNet says -1 for no limit.
    if limit is None or limit <= 0:
        return None
    return limit


def window_tokens(config: PreTrainedConfig) -> int:
    """Tokens of the window of local attention, or of the chunks that Llama 4 attends in; 0 where
    there is none.
    """
    chunk: int | None = getattr(config, "attention_chunk_size", None)
    return getattr(config, "sliding_window", None) or chunk or 0


def caps_scores(config: PreTrainedConfig) -> bool:
    """Whether an attention caps its scores, as Gemma 2's does, which no fast kernel computes."""
    return getattr(config, "attn_logit_softcapping", None) is not None


def leave_out_dropout(config: PreTrainedConfig, dropout: EncoderDropout) -> dict[str, float]:
    """Set the unwanted dropout probabilities of a config to 0, in place.

    The encoder must be built from the config afterwards.

    Returns:
        The probabilities that were set to 0, as they were.
    """
    left_out = {}
    for name, value in config.to_dict().items():
        # Every architecture of transformers has its own names. They share "drop", and "att" where
        # the dropout is on attention weights.
        is_dropout = "drop" in name and isinstance(value, float) and value > 0
        is_of_attention = "att" in name
        unwanted = dropout == "none" or (dropout == "hidden" and is_of_attention)
        if is_dropout and unwanted:
            left_out[name] = value
            setattr(config, name, 0.0)
    return left_out


def turn_off_fixed_dropout(encoder: nn.Module, dropout: EncoderDropout) -> None:
    """Under ``none``, turn off the dropout layers whose probability is fixed in an architecture's
    code, where no config can change it.
    """
    if dropout != "none":
        return
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
