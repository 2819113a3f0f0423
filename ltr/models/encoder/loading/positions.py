"""The number of the first position of a text: 0 in most encoders, but not in all."""

from torch import nn


def position_embeddings(encoder: nn.Module) -> nn.Embedding | None:
    """The table of learnt positions. None where positions are computed."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(encoder: nn.Module) -> int:
    """The position of a text's first token.

    It is 0, except in RoBERTa and its kin, which count from the padding index + 1.
    """
    positions = position_embeddings(encoder)
    if positions is None or positions.padding_idx is None:
        return 0
    return positions.padding_idx + 1
