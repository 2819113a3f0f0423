"""Rankers: ``model(RankingBatch) -> scores [B, N]``."""

from ltr.models.cross_encoder import PairWiseBertRanker

__all__ = ["PairWiseBertRanker"]
