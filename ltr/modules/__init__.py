"""LightningModules: a ranker with its loss, margin and optimiser."""

from ltr.modules.cross_encoder import CrossEncoderModule
from ltr.modules.ranker import RankerModule

__all__ = ["CrossEncoderModule", "RankerModule"]
