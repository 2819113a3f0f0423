"""LightningModules: a ranker with its loss, margin and optimiser."""

from ltr.modules.cross_encoder import CrossEncoderModule
from ltr.modules.dual_encoder import DualEncoderModule
from ltr.modules.feature_ranker import FeatureRankerModule
from ltr.modules.ranker import RankerModule

__all__ = ["CrossEncoderModule", "DualEncoderModule", "FeatureRankerModule", "RankerModule"]
