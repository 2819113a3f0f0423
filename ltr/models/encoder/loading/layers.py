"""The layers of a pretrained encoder, and a smaller encoder made of some of them."""

from torch import nn
from transformers import PreTrainedModel

from ltr.errors import InputError


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer's layers: the longest list of modules."""
    return max((module for module in model.modules() if isinstance(module, nn.ModuleList)), key=len)


def keep_layers(model: PreTrainedModel, count: int) -> None:
    """Keep ``count`` layers, evenly spaced from the first one: of six, three are the first, the
    third and the fifth.

    The configuration says so, too: a saved model has these layers alone. An InputError if the
    encoder has fewer.
    """
    layers = layers_of(model)
    config = model.config
    if count > len(layers):
        raise InputError(
            f"layers must be at most {len(layers)}, which the encoder has, got {count}",
            option="layers",
        )
    kept = [at * len(layers) // count for at in range(count)]
    own = [layers[at] for at in kept]
    del layers[:]
    layers.extend(own)
    config.num_hidden_layers = count
    if isinstance(
        types := config.to_dict().get("layer_types"), list
    ):  # ModernBERT's: local or global attention
        config.layer_types = [types[at] for at in kept]
