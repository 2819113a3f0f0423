"""Ranking losses: functions of one labelled score matrix, ``loss(scores, labels, mask, margin) -> scalar``."""

from ltr.losses.listwise import SoftmaxLoss, softmax_loss
from ltr.losses.pairwise import (
    AdaptiveMarginRankingLoss,
    MarginRankingLoss,
    RankNetLoss,
    margin_ranking_loss,
    ranknet_loss,
)

__all__ = [
    "AdaptiveMarginRankingLoss",
    "MarginRankingLoss",
    "RankNetLoss",
    "SoftmaxLoss",
    "margin_ranking_loss",
    "ranknet_loss",
    "softmax_loss",
]
