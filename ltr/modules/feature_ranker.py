"""Training of the feature ranker."""

from typing import Any, Literal

from torch import nn

from ltr.errors import InputError
from ltr.models.feature_ranker import PRESETS, Activation, FeatureRanker, Preset
from ltr.modules.ranker import RankerModule


class FeatureRankerModule(RankerModule):
    """Trains a :class:`ltr.models.FeatureRanker`.

    Args:
        n_features: features of a document; where a file has fewer, those that are missing are 0.
        loss: a loss of :mod:`ltr.losses`.
        preset: the network: ``linear``; ``two_layer``, RankNet's and ListNet's with 10 hidden units; ``mlp``, wider, with
            dropout; ``deep``, with residual blocks and layer norm; ``list_attention``, over all documents of the list
            (``ltr.models.feature_ranker.PRESETS``).
        hidden, activation, layer_norm, dropout, residual_blocks, attention_blocks, heads: of :class:`ltr.models.FeatureRanker`;
            None takes what the preset says.
        margin, lr, weight_decay, warmup, decay, metrics, empty, max_grade: see :class:`ltr.modules.RankerModule`.

    Raises:
        InputError: for sizes that do not fit.
    """

    def __init__(
        self,
        n_features: int,
        loss: nn.Module,
        preset: Preset = "two_layer",
        hidden: list[int] | None = None,
        activation: Activation | None = None,
        layer_norm: bool | None = None,
        dropout: float | None = None,
        residual_blocks: int | None = None,
        attention_blocks: int | None = None,
        heads: int | None = None,
        margin: nn.Module | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.0,
        decay: bool = True,
        metrics: list[str] | None = None,
        empty: Literal["skip", "zero", "one"] = "skip",
        max_grade: float = 4.0,
    ) -> None:
        if preset not in PRESETS:
            raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r} (option model.init_args.preset)")
        own: dict[str, Any] = {
            "hidden": hidden,
            "activation": activation,
            "layer_norm": layer_norm,
            "dropout": dropout,
            "residual_blocks": residual_blocks,
            "attention_blocks": attention_blocks,
            "heads": heads,
        }
        model = FeatureRanker(n_features, **PRESETS[preset] | {name: v for name, v in own.items() if v is not None})
        names = ["nDCG_exp@10", "AP", "swapped_pairs"] if metrics is None else metrics
        super().__init__(model, loss, margin, lr, weight_decay, warmup, names, empty, max_grade, decay)
        self.save_settings()
