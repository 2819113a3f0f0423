"""Ranking losses: functions of one labelled score matrix, ``loss(scores, labels, mask, margin) -> scalar``."""

from ltr.losses.distillation import KLDivergenceLoss, MarginMSELoss, kl_divergence_loss, margin_mse_loss
from ltr.losses.listwise import (
    ListNetLoss,
    MeanInequalityLoss,
    SoftmaxLoss,
    listnet_loss,
    mean_inequality_loss,
    softmax_loss,
)
from ltr.losses.pairwise import (
    AdaptiveMarginRankingLoss,
    MarginRankingLoss,
    RankNetLoss,
    margin_ranking_loss,
    ranknet_loss,
)

__all__ = [
    "AdaptiveMarginRankingLoss",
    "KLDivergenceLoss",
    "ListNetLoss",
    "MarginMSELoss",
    "MarginRankingLoss",
    "MeanInequalityLoss",
    "RankNetLoss",
    "SoftmaxLoss",
    "kl_divergence_loss",
    "listnet_loss",
    "margin_mse_loss",
    "margin_ranking_loss",
    "mean_inequality_loss",
    "ranknet_loss",
    "softmax_loss",
]
