"""Some of the pairs of a list in little memory: the hardest, semi-hard ones, or each document
against a mean. (For ``adjacent`` see ``_block_sums`` of this folder, and ``sorted.py``.)

Letters of shapes: b row (one query), p packed upper document (``uppers.py``), q chosen pair, n any
document of the list.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ltr.pairs.blocks import block_spans
from ltr.pairs.dense import Cost
from ltr.pairs.sorted import semi_hard_by_sorting
from ltr.pairs.uppers import Uppers, find_uppers, sum_below


def chosen_costs(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    uppers: Uppers,
    margin: Tensor,
    cost: Cost,
    pairs: str,
    by_sorting: bool,
) -> tuple[Tensor, Tensor]:
    """``[B, Q]`` each: the cost of the chosen pairs of each row, 0 at the padding, and which of
    them are real.

    ``hardest`` has one pair in a row; ``semi-hard`` and ``mean`` have one for each upper document.
    """
    margin_per_pair = margin.ndim == 3
    margin = uppers.take(margin) if margin_per_pair else margin.expand_as(scores)
    if pairs == "mean":
        return _costs_of_means(scores, labels, mask, uppers, margin, cost)
    real = uppers.real
    if not real.shape[1]:
        return scores.new_zeros(real.shape), real  # there is no pair
    s_i = uppers.take(scores)
    y_i = uppers.take(labels)
    if pairs == "hardest":
        position, j = hardest_pairs(scores, uppers)
        s_i = s_i.gather(1, position)
        y_i = y_i.gather(1, position)
        real = real.any(dim=1, keepdim=True)
        if margin_per_pair:
            margin = margin.gather(1, position.unsqueeze(2).expand(-1, -1, margin.shape[2]))
    elif by_sorting:
        j = semi_hard_by_sorting(scores, labels, mask, uppers)
    else:
        j = semi_hard_columns(scores, labels, mask, uppers)
    s_j = scores.gather(1, j)
    y_j = labels.gather(1, j)
    if margin_per_pair:
        m_ij = margin.gather(2, j.unsqueeze(2)).squeeze(2)
    else:
        m_ij = margin.gather(1, j)
    cost_q = cost(s_i, s_j, y_i, y_j, m_ij.masked_fill(~real, 0.0))
    return cost_q.masked_fill(~real, 0.0), real


def _costs_of_means(
    scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers, margin: Tensor, cost: Cost
) -> tuple[Tensor, Tensor]:
    """``[B, P]`` each: the cost of each upper document against the mean of those below it, 0 at the
    padding, and which of them are real. The margin is ``[B, N]`` or, per pair, ``[B, P, N]``.
    """
    y_i = uppers.take(labels)
    n_below_p = uppers.n_below().clamp(min=1)
    s_mean = sum_below(scores, uppers) / n_below_p
    y_mean = sum_below(labels, uppers) / n_below_p
    if margin.ndim == 3:
        below = labels.masked_fill(~mask, torch.inf).unsqueeze(1) < y_i.unsqueeze(2)
        m_mean = margin.masked_fill(~below, 0.0).sum(dim=2) / n_below_p
    else:
        m_mean = sum_below(margin, uppers) / n_below_p
    cost_p = cost(uppers.take(scores), s_mean, y_i, y_mean, m_mean)
    return cost_p.masked_fill(~uppers.real, 0.0), uppers.real


@torch.no_grad()
def hardest_pairs(scores: Tensor, uppers: Uppers) -> tuple[Tensor, Tensor]:
    """The pair of each row with the least ``s_i - s_j``: packed position of i, column of j,
    ``[B, 1]`` each; 0 without a pair.
    """
    # A document below an upper one has the lowest label of the list, or is an upper one of a lower
    # level. Upper documents are packed in the order of their labels, so the highest score of the
    # lower levels is the running maximum just before the level.
    lowest_score, lowest_column = scores.masked_fill(~uppers.lowest, -torch.inf).max(
        dim=1, keepdim=True
    )
    upper_scores = uppers.take(scores)
    running_score, running_position = upper_scores.masked_fill(~uppers.real, -torch.inf).cummax(
        dim=1
    )
    before = (uppers.first - 1).clamp(min=0)
    upper_below_score = running_score.gather(1, before)
    upper_below_column = uppers.columns.gather(1, running_position.gather(1, before))
    take_upper = (uppers.first > 0) & (upper_below_score > lowest_score)
    score_below = torch.where(take_upper, upper_below_score, lowest_score)
    column_below = torch.where(take_upper, upper_below_column, lowest_column)
    violation = (score_below - upper_scores).masked_fill(~uppers.real, -torch.inf)
    i = violation.argmax(dim=1, keepdim=True)
    return i, column_below.gather(1, i)


@torch.no_grad()
def semi_hard_columns(scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers) -> Tensor:
    """``[B, P]``: the column of the less relevant document with the highest score strictly below,
    else with the lowest score.
    """
    upper_scores = uppers.take(scores)
    labels_n = labels.masked_fill(~mask, torch.inf)  # padding is below nothing
    s_j = scores.unsqueeze(1)
    columns = []
    for span in block_spans(uppers.columns.shape[1], scores.numel(), scores.device):
        lower_bpn = labels_n.unsqueeze(1) < uppers.labels[:, span].unsqueeze(2)
        semi_hard_bpn = lower_bpn & (s_j < upper_scores[:, span].unsqueeze(2))
        highest_score, highest = torch.where(semi_hard_bpn, s_j, -torch.inf).max(dim=2)
        lowest = torch.where(lower_bpn, s_j, torch.inf).argmin(dim=2)
        columns.append(torch.where(highest_score > -torch.inf, highest, lowest))
    return torch.cat(columns, dim=1)


class Partners(NamedTuple):
    """Which pairs are chosen, in two numbers for each document instead of a mask ``[B, N, N]``: i
    and j with ``y_i > y_j`` are a chosen pair where ``partner[i] == key[j]``. The key of a document
    is its column, or for adjacent pairs its label.

    Of labels (2, 0, 1) and scores (0.5, 0.3, 0.4) the semi-hard pairs are (0, 2) and (2, 1): keys
    are the columns (0, 1, 2), partners are (2, NaN, 1). Adjacent pairs are those of the labels 2
    and 1, and 1 and 0: keys are the labels (2, 0, 1), partners the next lower ones (1, NaN, 0).
    """

    partner: Tensor  # [B, N]; NaN, which equals no key, for a document that has none below it
    key: Tensor  # [B, N]


@torch.no_grad()
def find_partners(scores: Tensor, labels: Tensor, mask: Tensor, pairs: str) -> Partners:
    """The partners by ``pairs``: ``hardest``, ``semi-hard`` or ``adjacent``."""
    uppers = find_uppers(labels, mask)
    columns = torch.arange(labels.shape[1], device=labels.device).to(labels).expand_as(labels)
    i = uppers.columns
    real = uppers.real
    if not i.shape[1]:  # there is no pair
        return Partners(torch.full_like(labels, torch.nan), columns)
    if pairs == "adjacent":
        return Partners(_unpack(uppers.label_below(), i, real, labels), labels)
    if pairs == "semi-hard":
        j = semi_hard_columns(scores, labels, mask, uppers)
    else:
        position, j = hardest_pairs(scores, uppers)
        i = i.gather(1, position)
        real = real.any(dim=1, keepdim=True)
    return Partners(_unpack(j.to(labels), i, real, labels), columns)


def _unpack(values: Tensor, columns: Tensor, real: Tensor, like: Tensor) -> Tensor:
    """``[B, N]``, as ``like``: packed values ``[B, P]`` at their columns, NaN elsewhere."""
    n_docs = like.shape[1]
    # Padding is written to one column more, which is cut off.
    places = columns.masked_fill(~real, n_docs)
    unpacked = like.new_full((len(like), n_docs + 1), torch.nan)
    return unpacked.scatter(1, places, values)[:, :-1]
