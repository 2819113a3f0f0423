"""Ranking losses: functions of one labelled score matrix, ``loss(scores, labels, mask, margin) -> scalar``."""

from ltr.losses.approximate import (
    ApproxMRRLoss,
    ApproxNDCGLoss,
    NeuralNDCGLoss,
    approx_mrr_loss,
    approx_ndcg_loss,
    neural_ndcg_loss,
)
from ltr.losses.combine import WeightedSum
from ltr.losses.distillation import KLDivergenceLoss, MarginMSELoss, kl_divergence_loss, margin_mse_loss
from ltr.losses.lambdarank import LambdaLoss, LambdaRankLoss, lambda_loss, lambdarank_loss
from ltr.losses.list_mle import ListMLELoss, PositionAwareListMLELoss, list_mle_loss, position_aware_list_mle_loss
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
    AdaptiveRankNetLoss,
    MarginRankingLoss,
    RankNetLoss,
    adaptive_ranknet_loss,
    chain_probability,
    margin_ranking_loss,
    ranknet_loss,
)
from ltr.losses.pointwise import BCELoss, MSELoss, bce_loss, mse_loss
from ltr.losses.triplet import (
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    BatchSemiHardTripletLoss,
    batch_all_triplet_loss,
    batch_hard_triplet_loss,
    batch_semi_hard_triplet_loss,
)

__all__ = [
    "AdaptiveMarginRankingLoss",
    "AdaptiveRankNetLoss",
    "ApproxMRRLoss",
    "ApproxNDCGLoss",
    "BCELoss",
    "BatchAllTripletLoss",
    "BatchHardTripletLoss",
    "BatchSemiHardTripletLoss",
    "KLDivergenceLoss",
    "LambdaLoss",
    "LambdaRankLoss",
    "ListMLELoss",
    "ListNetLoss",
    "MSELoss",
    "MarginMSELoss",
    "MarginRankingLoss",
    "MeanInequalityLoss",
    "NeuralNDCGLoss",
    "PositionAwareListMLELoss",
    "RankNetLoss",
    "SoftmaxLoss",
    "WeightedSum",
    "adaptive_ranknet_loss",
    "approx_mrr_loss",
    "approx_ndcg_loss",
    "batch_all_triplet_loss",
    "batch_hard_triplet_loss",
    "batch_semi_hard_triplet_loss",
    "bce_loss",
    "chain_probability",
    "kl_divergence_loss",
    "lambda_loss",
    "lambdarank_loss",
    "list_mle_loss",
    "listnet_loss",
    "margin_mse_loss",
    "margin_ranking_loss",
    "mean_inequality_loss",
    "mse_loss",
    "neural_ndcg_loss",
    "position_aware_list_mle_loss",
    "ranknet_loss",
    "softmax_loss",
]
