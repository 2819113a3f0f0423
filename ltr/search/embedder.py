"""What embeds the texts of one side: a tower, how it reads, and in which precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from ltr.data.layouts import SingleTexts
from ltr.data.template import Side
from ltr.models.dual_encoder import DualEncoder
from ltr.models.encoder.tower import Tower

# Makes the context in which texts are encoded, such as torch.autocast.
Precision = Callable[[], AbstractContextManager]


@dataclass(frozen=True)
class Embedder:
    """What embeds the texts of one side.

    Attributes:
        tower: the encoder with its weights as they stand.
        form: how a text is laid out for it.
        key: all that decides the embedding of a text, but for the precision.
        precision: makes the context in which texts are encoded; called once for a shard.
        precision_name: as ``trainer.precision`` names it.
    """

    tower: Tower
    form: SingleTexts
    key: list[object]
    precision: Precision
    precision_name: str

    @property
    def device(self) -> torch.device:
        """Where the tower lies."""
        return next(self.tower.parameters()).device


def embedder_of(
    model: DualEncoder,
    side: Side,
    precision: Precision = nullcontext,
    precision_name: str = "32-true",
) -> Embedder:
    """The embedder of one side of a dual encoder, with its weights as they stand now."""
    tower = model.query_tower if side == "query" else model.doc_tower
    key = model.embedding_key(side)
    return Embedder(tower, model.reads.layout_of(side), key, precision, precision_name)
