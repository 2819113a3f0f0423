"""Some of the pairs of a list in little memory: the hardest, semi-hard ones, or each document
against a mean. (``adjacent`` is an option of ``blocks.py`` and ``sorted.py``.)

Letters of shapes: b row (one query), p packed upper document (``uppers.py``), q chosen pair, n any
document of the list.
"""

import torch
from torch import Tensor

from ltr.pairs.blocks import spans
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
    """The cost of one chosen pair per upper document, or per row: ``[B, Q]``, 0 at the padding, and
    which of them are real.
    """
    s_i = uppers.take(scores)
    y_i = uppers.take(labels)
    real = uppers.real
    per_pair = margin.ndim == 3
    margin = uppers.take(margin) if per_pair else margin.expand_as(scores)
    if pairs == "mean":
        n_p = uppers.n_below().clamp(min=1)
        if per_pair:
            below = labels.masked_fill(~mask, torch.inf).unsqueeze(1) < y_i.unsqueeze(2)
            m_ij = margin.masked_fill(~below, 0.0).sum(dim=2) / n_p
        else:
            m_ij = sum_below(margin, uppers) / n_p
        cost_p = cost(
            s_i, sum_below(scores, uppers) / n_p, y_i, sum_below(labels, uppers) / n_p, m_ij
        )
        return cost_p.masked_fill(~real, 0.0), real
    if not real.shape[1]:
        return scores.new_zeros(real.shape), real  # there is no pair
    if pairs == "hardest":
        i, j = hardest_pairs(scores, uppers)
        s_i = s_i.gather(1, i)
        y_i = y_i.gather(1, i)
        real = real.any(dim=1, keepdim=True)
        margin = (
            margin.gather(1, i.unsqueeze(2).expand(-1, -1, margin.shape[2])) if per_pair else margin
        )
    else:
        j = (semi_hard_by_sorting if by_sorting else semi_hard_columns)(
            scores, labels, mask, uppers
        )
    m_ij = margin.gather(2, j.unsqueeze(2)).squeeze(2) if per_pair else margin.gather(1, j)
    cost_q = cost(s_i, scores.gather(1, j), y_i, labels.gather(1, j), m_ij.masked_fill(~real, 0.0))
    return cost_q.masked_fill(~real, 0.0), real


@torch.no_grad()
def hardest_pairs(scores: Tensor, uppers: Uppers) -> tuple[Tensor, Tensor]:
    """The pair of each row with the least ``s_i - s_j``: packed position of i, column of j,
    ``[B, 1]`` each; 0 without a pair.
    """
    # The highest-scored document below an upper one either has the lowest label (best), or is an
    # upper one packed before its level (running, at first - 1).
    best, column = scores.masked_fill(~uppers.lowest, -torch.inf).max(dim=1, keepdim=True)
    upper_scores = uppers.take(scores)
    running, position = upper_scores.masked_fill(~uppers.real, -torch.inf).cummax(dim=1)
    before = (uppers.first - 1).clamp(min=0)
    use_running = (uppers.first > 0) & (running.gather(1, before) > best)
    best_below = torch.where(use_running, running.gather(1, before), best)
    column_below = torch.where(
        use_running, uppers.columns.gather(1, position.gather(1, before)), column
    )
    i = (
        (best_below - upper_scores)
        .masked_fill(~uppers.real, -torch.inf)
        .argmax(dim=1, keepdim=True)
    )
    return i, column_below.gather(1, i)


@torch.no_grad()
def semi_hard_columns(scores: Tensor, labels: Tensor, mask: Tensor, uppers: Uppers) -> Tensor:
    """``[B, P]``: the column of the less relevant document with the highest score strictly below,
    else with the lowest score.
    """
    upper_scores = uppers.take(scores)
    found = []
    labels_n = labels.masked_fill(~mask, torch.inf)
    for span in spans(uppers.columns.shape[1], scores.numel(), scores.device):
        lower_bpn = labels_n.unsqueeze(1) < uppers.labels[:, span].unsqueeze(2)
        semi_hard_bpn = lower_bpn & (scores.unsqueeze(1) < upper_scores[:, span].unsqueeze(2))
        best, column = torch.where(semi_hard_bpn, scores.unsqueeze(1), -torch.inf).max(dim=2)
        easiest = torch.where(lower_bpn, scores.unsqueeze(1), torch.inf).argmin(dim=2)
        found.append(torch.where(best > -torch.inf, column, easiest))
    return torch.cat(found, dim=1)


@torch.no_grad()
def partners(scores: Tensor, labels: Tensor, mask: Tensor, pairs: str) -> tuple[Tensor, Tensor]:
    """``[B, N]`` each, a key and a name: i and j with ``y_i > y_j`` are a chosen pair where the key
    of i is the name of j. NaN is nobody's key.

    Of labels (2, 0, 1) and scores (0.5, 0.3, 0.4) the semi-hard pairs are (0, 2) and (2, 1): names
    are the columns (0, 1, 2), keys are (2, NaN, 1). Adjacent are those of labels (2, 1) and (1, 0):
    names are the labels (2, 0, 1), keys are the next lower labels (1, NaN, 0).
    """
    uppers = find_uppers(labels, mask)
    i = uppers.columns
    real = uppers.real
    column = torch.arange(labels.shape[1], device=labels.device)
    name = labels if pairs == "adjacent" else column.to(labels).expand_as(labels)
    if pairs == "adjacent":
        key = uppers.label_below()
    elif pairs == "semi-hard" or not i.shape[1]:
        key = semi_hard_columns(scores, labels, mask, uppers) if i.shape[1] else i
    else:
        at, key = hardest_pairs(scores, uppers)
        i = i.gather(1, at)
        real = real.any(dim=1, keepdim=True)
    nobody = labels.new_full((len(labels), labels.shape[1] + 1), torch.nan)  # NaN is nobody's name
    place = i.masked_fill(~real, labels.shape[1])  # the padding goes to one column more
    return nobody.scatter(1, place, key.to(labels))[:, :-1], name
