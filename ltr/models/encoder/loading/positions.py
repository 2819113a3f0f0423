"""Where an encoder counts the positions of a text from."""

from torch import nn


def position_embeddings(encoder: nn.Module) -> nn.Embedding | None:
    """The table of learnt positions. None where positions are computed."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(encoder: nn.Module) -> int:
    """The position of a text's first token: RoBERTa and its kin count from behind the padding
    index.
    """
    positions = position_embeddings(encoder)
    if positions is None or positions.padding_idx is None:
        return 0
    return positions.padding_idx + 1
