"""Rankers: ``ranker(RankingBatch) -> scores [B, N]``."""

from ltr.models.cross_encoder import PairWiseBertRanker
from ltr.models.decoder_ranker import DecoderRanker
from ltr.models.dual_encoder import DualEncoder
from ltr.models.feature_ranker import FeatureRanker
from ltr.models.ranker import Ranker

__all__ = ["DecoderRanker", "DualEncoder", "FeatureRanker", "PairWiseBertRanker", "Ranker"]
