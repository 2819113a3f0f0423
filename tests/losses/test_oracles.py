"""The losses against independent implementations: XGBoost, sentence-transformers, torch, and
triplets one by one.

Lists are ragged and their padding would win every comparison; a batch of texts masks each text for
itself. So a lost mask fails these tests as a lost sign does.
"""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from sentence_transformers.cross_encoder import losses as cross_encoder
from sentence_transformers.sentence_transformer import losses as published
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses import (
    ADRMSELoss,
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    BatchSemiHardTripletLoss,
    LambdaRankLoss,
    ListMLELoss,
    ListNetLoss,
    MarginRankingLoss,
    RankNetLoss,
    SoftmaxLoss,
)
from ltr.similarity import cosine, euclidean


def assert_same(ours: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Equal value and gradients, none of them 0: two losses that are 0 agree about anything."""
    torch.testing.assert_close(ours, expected)
    our, their = (torch.autograd.grad(v, inputs, retain_graph=True) for v in (ours, expected))
    assert all(gradient.abs().max() > 1e-4 for gradient in their)
    torch.testing.assert_close(our, their)


def make_lists(seed: int, lengths: list[int], grades: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """The padding of each list has the best score and the best grade."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(lengths), max(lengths)
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    scores = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, grades, shape, generator=generator).double()
    labels[:, 0], labels[:, 1] = 0.0, grades - 1.0
    scores = scores.masked_fill(~mask, 9.0).requires_grad_()
    return scores, labels.masked_fill(~mask, grades - 1.0), mask


# Short lists are computed in one piece; the long ones are long enough to be sorted, or cut into
# blocks, instead.
LISTS = {
    "short": make_lists(0, [7, 2, 12, 9]),
    "other": make_lists(1, [3, 11, 8, 5]),
    "long": make_lists(2, [300, 90, 2, 150], grades=3),
}
SHORT = [LISTS["short"], LISTS["other"]]


def graded_pairs(scores: Tensor, labels: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of each list the scores and labels ``[2, pairs]`` of all pairs, by two loops."""
    rows = []
    for b in range(len(scores)):
        s = scores[b, mask[b]]
        y = labels[b, mask[b]]
        docs = range(len(y))
        ij = torch.tensor([(i, j) for i in docs for j in docs if y[i] > y[j]]).T
        rows.append((s[ij], y[ij]))
    return rows


def xgboost_derivatives(
    objective: str, scores: Tensor, labels: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """G and H that an objective of XGBoost answers at the scores, ``[B, N]`` each, 0 at the
    padding.

    XGBoost does not hand them out, but a leaf of its first tree at learning rate 1 is w = -G / (H +
    lambda) over the documents in it. For each document in turn there is one feature that tells it
    from all others, so the tree is one split with the document alone in a leaf, and two lambdas
    give G = (lambda_2 - lambda_1) / (1 / w_1 - 1 / w_2), H = -G / w_1 - lambda_1. The G of all
    documents sum to 0, so the split gains G^2 / (H + lambda) and more; but XGBoost makes none for a
    gain under 1e-6, that is for some of the documents with an absolute G under 1e-3: both are NaN
    then.
    """
    xgboost = pytest.importorskip("xgboost", minversion="3.0")
    options = {
        "objective": objective,
        # all pairs with a document among the best ranked so many: all
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": scores.shape[1],
        "lambdarank_normalization": False,
        "lambdarank_score_normalization": False,  # before 3.0 it could not be turned off
        "lambdarank_unbiased": False,
        "ndcg_exp_gain": True,
        "max_depth": 1,
        "learning_rate": 1.0,
        "min_child_weight": 0.0,
        "gamma": 0.0,
        "tree_method": "exact",
        "nthread": 1,
    }
    rows = mask.nonzero()[:, 0].numpy()
    documents = {
        "label": labels[mask].float().numpy(),
        "qid": rows,
        "base_margin": scores.detach()[mask].float().numpy(),
    }
    found = []
    for d in range(len(rows)):
        is_d = np.zeros((len(rows), 1), dtype=np.float32)
        is_d[d] = 1.0
        lists = xgboost.DMatrix(is_d, **documents)
        only_d = xgboost.DMatrix(is_d[d : d + 1], base_margin=np.zeros(1))
        boosters = [
            xgboost.train(options | {"reg_lambda": x}, lists, num_boost_round=1) for x in (0.1, 0.2)
        ]
        if any(booster.get_dump()[0].count("leaf") != 2 for booster in boosters):
            found.append((math.nan, math.nan))
            continue
        w_1, w_2 = (float(booster.predict(only_d, output_margin=True)[0]) for booster in boosters)
        gradient = 0.1 / (1 / w_1 - 1 / w_2)
        found.append((gradient, -gradient / w_1 - 0.1))
    gradient, curvature = torch.tensor(found, dtype=scores.dtype).T
    zeros = torch.zeros_like(scores).detach()
    return zeros.masked_scatter(mask, gradient), zeros.masked_scatter(mask, curvature)


def assert_same_as_xgboost(ours: Tensor, derivative: Tensor) -> None:
    """To the precision of float32 wherever XGBoost made its split, which is nearly everywhere."""
    split = ~derivative.isnan()
    assert split.double().mean() > 0.9
    torch.testing.assert_close(ours[split], derivative[split], rtol=1e-4, atol=1e-5)
    assert (ours[~split].abs() < 1e-3).all()


@pytest.mark.parametrize("lists", SHORT)
def test_ranknet_is_rank_pairwise_of_xgboost(lists):
    """XGBoost, ``rank:pairwise`` (src/objective/lambdarank_obj.h): G is the gradient of the sum
    over pairs, with factor 1.

    H is twice the second derivative: XGBoost counts 2 P (1 - P) for each pair. That it comes out so
    says that the solve is right.
    """
    scores, labels, mask = lists
    n_pairs_b = torch.tensor([s.shape[1] for s, _ in graded_pairs(*lists)]).double()

    def sum_over_pairs(s: Tensor) -> Tensor:
        return RankNetLoss(reduction="none")(s, labels, mask) @ n_pairs_b

    gradient, curvature = xgboost_derivatives("rank:pairwise", *lists)
    assert_same_as_xgboost(torch.autograd.grad(sum_over_pairs(scores), scores)[0], gradient)
    n = scores.numel()
    hessian = torch.autograd.functional.hessian(sum_over_pairs, scores).view(n, n)
    assert_same_as_xgboost(2 * hessian.diagonal().view_as(scores), curvature)


@pytest.mark.parametrize("lists", SHORT)
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_lambdarank_is_rank_ndcg_of_xgboost(lists, sigma):
    """XGBoost, ``rank:ndcg`` with gains 2^y - 1 and no normalisation: G is our gradient, with
    factor 1.

    It has no sigma, but lambda depends on sigma (s_i - s_j) only: its G at sigma s is ours.
    """
    scores, labels, mask = lists
    gradient, _ = xgboost_derivatives("rank:ndcg", sigma * scores, labels, mask)
    loss = LambdaRankLoss(sigma=sigma, reduction="sum")
    assert_same_as_xgboost(torch.autograd.grad(loss(*lists), scores)[0], gradient)


@pytest.mark.parametrize("lists", SHORT)
def test_lambdarank_for_average_precision_is_rank_map_of_xgboost(lists):
    """XGBoost, ``rank:map`` for labels 0 and 1: G is our gradient, with factor 1."""
    scores, labels, mask = lists
    labels = (labels > 2).double()
    gradient, _ = xgboost_derivatives("rank:map", scores, labels, mask)
    loss = LambdaRankLoss(metric="ap", reduction="sum")
    assert_same_as_xgboost(torch.autograd.grad(loss(scores, labels, mask), scores)[0], gradient)


# The classes, and their options: the same ones in both.
TRIPLET_LOSSES = {
    "all": (BatchAllTripletLoss, published.BatchAllTripletLoss),
    "hard": (BatchHardTripletLoss, published.BatchHardTripletLoss),
    "soft": (partial(BatchHardTripletLoss, soft=True), published.BatchHardSoftMarginTripletLoss),
    "semi-hard": (BatchSemiHardTripletLoss, published.BatchSemiHardTripletLoss),
}


def make_texts(*sizes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings [B, 6] of texts in groups of these sizes, shuffled, and their group numbers."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    groups = groups[torch.randperm(len(groups), generator=generator)]
    centres = torch.randn(len(sizes), 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(groups), 6, generator=generator, dtype=torch.float64)
    return (0.3 * centres[groups] + noise).requires_grad_(), groups


def ours(loss: nn.Module, x: Tensor, groups: Tensor) -> Tensor:
    same = groups.unsqueeze(1) == groups
    return loss(euclidean(x, x), same.to(x.dtype), ~torch.eye(len(x), dtype=torch.bool))


def both(name: str, x: Tensor, groups: Tensor, margin: float = 0.5) -> tuple[Tensor, Tensor]:
    """Of a triplet loss and of that of sentence-transformers."""
    loss, reference = TRIPLET_LOSSES[name]
    options = {} if name == "soft" else {"margin": margin}
    expected = reference(None, **options).compute_loss_from_embeddings([x], groups)
    return ours(loss(**options), x, groups), expected


@pytest.mark.parametrize("name", TRIPLET_LOSSES)
@pytest.mark.parametrize(
    "sizes, seed", [((4, 4, 4, 4), 0), ((4, 4, 4, 4), 1), ((2,) * 10, 2), ((30, 30, 30), 3)]
)
def test_triplet_losses_are_those_of_sentence_transformers(name, sizes, seed):
    """sentence-transformers, Batch{All,Hard,HardSoftMargin,SemiHard}TripletLoss."""
    x, groups = make_texts(*sizes, seed=seed)
    assert_same(*both(name, x, groups), x)


@pytest.mark.parametrize("name", ["all", "semi-hard"])
def test_a_text_alone_in_its_group_is_a_negative_only_as_in_sentence_transformers(name):
    """sentence-transformers, BatchAll- and BatchSemiHardTripletLoss."""
    x, groups = make_texts(4, 4, 4, 1, 1)
    assert_same(*both(name, x, groups), x)


@pytest.mark.parametrize("name", ["hard", "soft"])
def test_a_text_alone_in_its_group_is_no_anchor_unlike_in_sentence_transformers(name):
    """sentence-transformers, BatchHardTripletLoss and BatchHardSoftMarginTripletLoss with groups of
    4, 4, 4 and 1.

    It multiplies the distances by the mask of positives and takes the maximum, so the text without
    a positive gets one at distance 0: it repels its nearest text, and counts in the mean over 13.
    Ours is the mean over the 12 others.
    """
    x, groups = make_texts(4, 4, 4, 1)
    alone = int((groups == 3).nonzero())
    value, expected = both(name, x, groups, margin=5.0)
    others = torch.arange(13) != alone
    to_nearest = (x[alone] - x[others]).norm(dim=1).min()
    spurious = F.softplus(-to_nearest) if name == "soft" else F.relu(5.0 - to_nearest)
    assert spurious > 0
    assert_same((12 * value + spurious) / 13, expected, x)


@pytest.mark.parametrize("name", TRIPLET_LOSSES)
def test_a_batch_of_one_group_teaches_nothing_unlike_in_sentence_transformers(name):
    """sentence-transformers, all four losses on 6 texts of one label: there is no triplet, so value
    and gradient are 0 with ours.

    Its batch-hard masks the negatives by adding the row's maximum, so the text itself, at 0 +
    maximum, is the hardest negative, as far away as the hardest positive: a constant margin, or log
    2. Its semi-hard takes the masked maximum of no negative, which is 0: its gradient pulls every
    positive, and so draws the group together, to a point if it goes on.
    """
    x, groups = make_texts(6)
    value, their_value = both(name, x, groups)
    (gradient,) = torch.autograd.grad(value, x)
    assert value == 0 and (gradient == 0).all()
    (their_gradient,) = torch.autograd.grad(their_value, x)
    mean_distance = F.pdist(x).mean()
    expected = {
        "all": 0.0,
        "hard": 0.5,
        "soft": math.log(2),
        "semi-hard": 0.5 + mean_distance.item(),
    }[name]
    assert their_value.item() == pytest.approx(expected)
    if name == "semi-hard":
        torch.testing.assert_close(their_gradient, torch.autograd.grad(mean_distance, x)[0])
    else:
        assert their_gradient.abs().max() < 1e-12


def semi_hard_costs(x: Tensor, groups: Tensor, margin: float) -> dict[int, list[Tensor]]:
    """The hinges of FaceNet's semi-hard triplets by anchor, one by one."""
    costs: dict[int, list[Tensor]] = {}
    for a in range(len(x)):
        to = [(x[a] - other).norm() for other in x]
        negatives = [to[n] for n in range(len(x)) if groups[n] != groups[a]]
        for p in range(len(x)):
            if p == a or groups[p] != groups[a]:
                continue
            farther = [d for d in negatives if d > to[p]]
            negative = min(farther) if farther else max(negatives)
            costs.setdefault(a, []).append(F.relu(to[p] - negative + margin))
    return costs


def test_semi_hard_weighs_anchors_where_sentence_transformers_weighs_pairs():
    """A loop over anchors and positives, and sentence-transformers' BatchSemiHardTripletLoss, for
    groups of 6, 3, 2 and 1.

    A difference of convention: sentence-transformers takes the mean over pairs of anchor and
    positive, in which a group of 6 weighs 30 to the 2 of a group of 2; ours is the mean of each
    anchor, then over anchors, 6 to 2.
    """
    x, groups = make_texts(6, 3, 2, 1)
    costs = semi_hard_costs(x, groups, margin=0.5)
    by_anchor = torch.stack([torch.stack(of_anchor).mean() for of_anchor in costs.values()]).mean()
    by_pair = torch.stack(list(itertools.chain(*costs.values()))).mean()
    value, their_value = both("semi-hard", x, groups)
    assert_same(value, by_anchor, x)
    assert_same(their_value, by_pair, x)
    assert abs(by_anchor - by_pair) > 1e-3


def test_softmax_is_multiple_negatives_ranking_of_sentence_transformers():
    """5 queries, each with its document and a hard negative."""
    generator = torch.Generator().manual_seed(0)
    queries, docs, negatives = torch.randn(
        3, 5, 6, generator=generator, dtype=torch.float64
    ).requires_grad_()
    inputs = [queries, docs, negatives]
    # [5, 10]: every document of the batch stands in every row.
    scores = cosine(queries, torch.cat([docs, negatives]))
    labels = torch.eye(5, 10, dtype=torch.float64)
    reference = published.MultipleNegativesRankingLoss(None, scale=20.0)
    expected = reference.compute_loss_from_embeddings(inputs, None)
    assert_same(SoftmaxLoss(temperature=1 / 20)(scores, labels), expected, *inputs)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 3, 2, 1), (30, 28, 2)])
def test_batch_all_is_torch_triplet_loss_over_every_triplet(sizes):
    """torch, nn.TripletMarginLoss on every (anchor, positive, negative), written out."""
    x, groups = make_texts(*sizes)
    same = groups.unsqueeze(1) == groups
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    a, p, n = (positive.unsqueeze(2) & ~same.unsqueeze(1)).nonzero().T
    cost = nn.TripletMarginLoss(margin=0.5, eps=0.0, reduction="none")(x[a], x[p], x[n])
    by_anchor = torch.stack([cost[a == anchor].mean() for anchor in a.unique()])
    averages = {
        "all": cost.mean(),
        "active": cost.sum() / (cost > 0).sum(),
        "row": by_anchor.mean(),
    }
    for average, expected in averages.items():
        assert_same(ours(BatchAllTripletLoss(margin=0.5, average=average), x, groups), expected, x)


def test_margin_ranking_of_triples_is_triplet_loss_of_torch():
    """torch, nn.TripletMarginLoss: value, and gradient for anchors, positives and negatives."""
    texts = torch.randn(3, 8, 4, dtype=torch.float64, requires_grad=True)
    a, p, n = inputs = texts.unbind()
    scores = euclidean(a.unsqueeze(1), torch.stack([p, n], dim=1)).squeeze(1)
    labels = torch.tensor([[1.0, 0.0]]).expand(8, 2)
    expected = nn.TripletMarginLoss(margin=0.5, eps=0.0)(a, p, n)
    assert_same(MarginRankingLoss(margin=0.5)(scores, labels), expected, *inputs)


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("squared", [False, True])
def test_margin_ranking_is_that_of_torch_over_every_pair(lists, squared):
    """torch, nn.MarginRankingLoss on the pairs of a list; mean within a list, then over lists."""
    hinge = nn.MarginRankingLoss(margin=0.7, reduction="none")
    costs = [hinge(s[0], s[1], torch.ones_like(s[0])) for s, _ in graded_pairs(*lists)]
    expected = torch.stack([(cost.square() if squared else cost).mean() for cost in costs]).mean()
    assert_same(MarginRankingLoss(margin=0.7, squared=squared)(*lists), expected, lists[0])


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
def test_ranknet_is_logistic_loss_of_torch_over_every_pair(lists):
    """torch, nn.SoftMarginLoss and nn.BCEWithLogitsLoss on the score gaps of all pairs."""
    hard = []
    soft = []
    for s, y in graded_pairs(*lists):
        gap = 2 * (s[0] - s[1])
        hard.append(nn.SoftMarginLoss()(gap, torch.ones_like(gap)))
        soft.append(nn.BCEWithLogitsLoss()(gap, torch.sigmoid(2 * (y[0] - y[1]))))
    for targets, costs in (("hard", hard), ("soft", soft)):
        loss = RankNetLoss(sigma=2.0, targets=targets)
        assert_same(loss(*lists), torch.stack(costs).mean(), lists[0])


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("positives", ["out", "in"])
def test_softmax_is_the_mean_of_cross_entropies_of_torch_over_the_relevant(lists, positives):
    """Each relevant document against all others (in) or the irrelevant ones (out), one by one."""
    rows = []
    for s, y, m in zip(*lists, strict=True):
        relevant = s[m & (y > 0)]
        irrelevant = s[m & (y == 0)]
        costs = []
        for i in range(len(relevant)):
            others = [irrelevant]
            if positives == "in":
                others += [relevant[:i], relevant[i + 1 :]]
            logits = torch.cat([relevant[i : i + 1], *others]) / 0.5
            costs.append(F.cross_entropy(logits, torch.tensor(0)))
        rows.append(torch.stack(costs).mean())
    loss = SoftmaxLoss(temperature=0.5, positives=positives)
    assert_same(loss(*lists), torch.stack(rows).mean(), lists[0])


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
def test_listnet_is_cross_entropy_and_divergence_of_torch(lists):
    """torch, F.cross_entropy with the softmax of the grades as its target, and F.kl_div."""
    rows = [(s[m], y[m].softmax(dim=0)) for s, y, m in zip(*lists, strict=True)]
    for loss, cost in (
        (ListNetLoss(), F.cross_entropy),
        (ListNetLoss(temperature=2.0), lambda s, p: F.cross_entropy(s / 2, p)),
        (ListNetLoss("kl"), lambda s, p: F.kl_div(s.log_softmax(dim=0), p, reduction="sum")),
    ):
        expected = torch.stack([cost(s, p) for s, p in rows]).mean()
        assert_same(loss(*lists), expected, lists[0])


@pytest.mark.parametrize("lengths", [[7, 2, 12, 9], [60, 2, 33]])
def test_listmle_is_a_chain_of_cross_entropies_of_torch(lengths):
    """The best document against all, the second against the rest …; no two labels are equal."""
    scores, labels, mask = make_lists(3, lengths)
    labels = torch.where(mask, torch.randn(labels.shape), labels)
    rows = []
    for s, y, m in zip(scores, labels, mask, strict=True):
        left = s[m][y[m].argsort(descending=True)].split(1)
        costs = [F.cross_entropy(torch.cat(left[i:]), torch.tensor(0)) for i in range(len(left))]
        rows.append(torch.stack(costs).sum())
    assert_same(ListMLELoss()(scores, labels, mask), torch.stack(rows).mean(), scores)


def test_listmle_gives_the_orders_of_a_list_a_probability():
    """exp(-loss) over all 24 orders of 4 documents sums to 1, and is no uniform 1 / 24."""
    scores = torch.randn(1, 4, dtype=torch.float64).expand(24, 4)
    orders = torch.tensor(list(itertools.permutations(range(4)))).double()
    probability = (-ListMLELoss(reduction="none")(scores, orders)).exp()
    assert probability.sum().item() == pytest.approx(1.0)
    assert probability.max() > 2 * probability.min() > 0


class Scored(nn.Module):
    """Stands for a cross-encoder: each pair's score is written in its document."""

    num_labels = 1
    device = torch.device("cpu")

    def preprocess(self, pairs, **_):
        return {"scores": torch.tensor([float(document) for _, document in pairs])}

    def forward(self, tokens):
        return tokens


@pytest.mark.parametrize("seed", range(3))
def test_adr_mse_is_that_of_sentence_transformers(seed):
    """One list at a time: theirs is the mean over the documents of all. Labels have ties."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(1, 9, generator=generator)
    labels = torch.randint(0, 4, (1, 9), generator=generator).float()
    given = [["query"], [[str(score) for score in scores[0].tolist()]]]
    for temperature in (1.0, 0.25):
        expected = cross_encoder.ADRMSELoss(Scored(), alpha=1 / temperature)(given, list(labels))
        torch.testing.assert_close(ADRMSELoss(temperature=temperature)(scores, labels), expected)
