"""Which of an encoder's own dropout is used."""

from typing import Literal

from torch import nn
from transformers import PreTrainedConfig

EncoderDropout = Literal["hidden", "own", "none"]


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
        of_attention = "att" in name
        unwanted = dropout == "none" or (dropout == "hidden" and of_attention)
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
