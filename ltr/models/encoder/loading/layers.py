"""The layers of a pretrained encoder, and a smaller encoder made of some of them."""

from torch import nn
from transformers import PreTrainedModel

from ltr.errors import InputError


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
