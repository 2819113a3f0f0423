"""Rankers: ``ranker(RankingBatch) -> scores [B, N]``."""

from ltr.models.cross_encoder import PairWiseBertRanker
from ltr.models.dual_encoder import DualEncoder
from ltr.models.feature_ranker import FeatureRanker
from ltr.models.ranker import Ranker

__all__ = ["DualEncoder", "FeatureRanker", "PairWiseBertRanker", "Ranker"]
