"""How an encoder numbers the tokens of a text: from 0 in most, but not in all."""

from torch import nn


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
