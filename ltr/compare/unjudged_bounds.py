r"""How far documents that nobody judged can move the difference of two rankers, whatever they are.

Each of these documents is given a grade, from 0 to the largest that there is: a filling. It is the same
document for both rankers. Of one query, the largest difference over all fillings is found in one of
three ways, and the smallest is minus the largest of the two rankers in turn.

Letters of shapes: s seed, d document, u document without a judgement, r rank.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from ltr.gains import exp_gain
from ltr.metrics import (
    NDCG,
    AveragePrecision,
    ExpectedReciprocalRank,
    Measure,
    Precision,
    Recall,
    ReciprocalRank,
    Success,
)

ABSENT = 2**40  # the rank of a document that a list does not have
ALL_NUMBERS = (
    64  # up to so many relevant documents each number of them is tried, then steps of 1.03
)
STEP = 1.03


@dataclass(frozen=True)
class RankedQuery:
    """The documents of one query, as two rankers rank them.

    Attributes:
        first, second: ``[S, D]`` int64, by seed the rank of each document, from 1, or ``ABSENT``.
        grades: ``[D]`` float64; NaN for a document that nobody judged.
        largest: the largest grade that such a document may have.
    """

    first: np.ndarray
    second: np.ndarray
    grades: np.ndarray
    largest: float

    @property
    def turned(self) -> "RankedQuery":
        """The rankers in turn."""
        return replace(self, first=self.second, second=self.first)

    @cached_property
    def is_judged(self) -> np.ndarray:
        """``[D]`` bool."""
        return ~np.isnan(self.grades)

    def pairs_of_seeds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ranks ``[D]`` of either ranker, so many that each seed comes as often as the others: the mean
        of their differences is the difference of the means.
        """
        n_first = len(self.first)
        n_second = len(self.second)
        for number in range(math.lcm(n_first, n_second)):
            yield self.first[number % n_first], self.second[number % n_second]


def difference_bounds(measure: Measure, query: RankedQuery) -> tuple[float, float] | None:
    r"""The smallest and the largest difference, first minus second, over all fillings of a query that
    has something to find; None for a measure of the list alone, which is not bounded.

    * nDCG, P and R are exact: both are attained by a filling.
    * RR and Success are exact for one seed a side. Of several, the mean is bounded by the mean of
      bounds of a seed each.
    * AP and ERR are outer bounds: no filling leads beyond them, but none need attain them. With one
      seed a side they are exact where no such document stands in both lists; AP of at most 64 such
      documents.
    """
    way = _way_of(measure)
    if way is None:
        return None
    # All these measures are from 0 to 1; an outer bound may be beyond.
    return max(-1.0, -way(measure, query.turned)), min(1.0, way(measure, query))


def _way_of(measure: Measure) -> Callable[[Measure, RankedQuery], float] | None:
    if isinstance(measure, NDCG | Precision | Recall):
        return _largest_of_gains
    if isinstance(measure, ReciprocalRank | Success):
        return _largest_of_best
    if isinstance(measure, AveragePrecision | ExpectedReciprocalRank):
        return _largest_of_prefixes
    return None


def _largest_of_gains(measure: Measure, query: RankedQuery) -> float:
    r"""Of a measure that is a sum of gains over that of the best order.

    With the gains :math:`y`, the weights :math:`c_d` (that of the rank of the first minus that of the
    second) and the sum :math:`W(n)` of the weights of the first n ranks,

    .. math::
        \frac{\sum_d c_d y_d}{\sum_l \Delta_l W(n_l)}, \qquad n_l = |\{d : y_d \ge l\}|,

    where l runs over the gains that there are, and :math:`\Delta_l` is the step from the one below: the
    sum of the best order, in layers. Where m documents get one gain, those of the largest c are best,
    so their number alone is to be found. Where all differences are below 0, the denominator is concave
    and its factor makes the whole convex: the best filling has no grades between. Else Dinkelbach's
    method: at a given ratio t, the layers are apart, and each has a best number of its own, which is
    no smaller for the layers below, so that the layers make a filling.

    References:
        Dinkelbach (1967), On nonlinear fractional programming.
    """
    grades = query.grades[query.is_judged]
    weights_d = _weights(measure, query.first) - _weights(measure, query.second)
    gains = _gains(measure, np.append(grades, query.largest))
    gain = gains[-1]
    known_gains = gains[:-1]
    fixed = float(known_gains @ weights_d[query.is_judged])
    weights_u = np.sort(weights_d[~query.is_judged])[::-1] if gain > 0 else np.empty(0)
    sums = np.concatenate([[0.0], np.cumsum(weights_u)])  # of the m largest, by m
    levels = np.unique(gains[gains > 0])
    steps = np.diff(levels, prepend=0.0)
    known = (known_gains >= levels[:, None]).sum(axis=1)
    numbers = known[:, None] + np.arange(len(sums))
    best = np.array([_best_order(measure, of_level) for of_level in numbers])  # W, by layer and m
    ratio = float(((fixed + gain * sums) / (steps @ best)).max())
    layers = np.arange(len(levels))
    while ratio > 0:
        m = (sums - ratio * best).argmax(axis=1)
        better = (fixed + steps @ sums[m]) / (steps @ best[layers, m])
        if better <= ratio + 1e-12:
            break
        ratio = float(better)
    return ratio


def _largest_of_best(measure: Measure, query: RankedQuery) -> float:
    """Of a measure that looks at the first relevant document alone. One more document suffices: with
    the one that gives the first ranker its value, all others may be irrelevant.
    """
    known = query.is_judged & _are_relevant(measure, query.grades)
    chosen = ~query.is_judged & _are_relevant(measure, np.full(len(known), query.largest))
    differences = []
    for ranks in query.pairs_of_seeds():
        values = []
        for ranks_d in ranks:
            values_d = _weights(measure, ranks_d[None])
            of_known = values_d[known].max(initial=0.0)
            values.append(np.append(np.maximum(values_d[chosen], of_known), of_known))
        differences.append((values[0] - values[1]).max())
    return float(np.mean(differences))


def _largest_of_prefixes(measure: Measure, query: RankedQuery) -> float:
    r"""Of a measure of all beginnings of the lists. As :math:`\frac{1}{i} = \sum_{r \ge i} \delta_r` with
    :math:`\delta_r = \frac{1}{r (r + 1)}`, and :math:`\frac{1}{K}` for the last one,

    .. math::
        R \cdot \mathrm{AP} = \sum_r \delta_r \frac{n_r (n_r + 1)}{2}, \qquad
        \mathrm{ERR} = \sum_r \delta_r \Bigl(1 - \prod_{i \le r} (1 - R_i)\Bigr),

    with :math:`n_r` relevant documents among the first r. The difference at each r is the largest by
    itself; together they are no filling, unless no document stands in both lists.
    """
    differences = []
    for first, second in query.pairs_of_seeds():
        ranks = np.stack([first, second])
        depth = int(ranks[ranks < ABSENT].max(initial=1))
        if measure.k is not None:
            depth = min(depth, measure.k)
        each = np.arange(1.0, depth + 1)
        shares_r = 1 / (each * (each + 1))
        shares_r[-1] = 1 / depth
        of_prefixes = _of_precision if isinstance(measure, AveragePrecision) else _of_reach
        differences.append(of_prefixes(measure, query, ranks, shares_r))
    return float(np.mean(differences))


def _of_precision(
    measure: Measure, query: RankedQuery, ranks: np.ndarray, shares_r: np.ndarray
) -> float:
    depth = len(shares_r)
    known = query.is_judged & _are_relevant(measure, query.grades)
    n_known = int(known.sum())
    known_r = [_counts(of_ranker[known], depth) for of_ranker in ranks]
    more_r = known_r[0] - known_r[1]
    both_r = known_r[0] + known_r[1]
    chosen = ~query.is_judged & _are_relevant(measure, np.full(len(known), query.largest))
    common_r = _counts(ranks.max(axis=0)[chosen], depth)
    alone_r = _counts(ranks[0][chosen], depth) - common_r
    n_alone = int((chosen & (ranks[0] <= depth)).sum() - common_r[-1])

    def summed(alone: np.ndarray, common: np.ndarray, of_second: np.ndarray) -> np.ndarray:
        """By how many are relevant: those of the first alone, of both where it has more, and of the
        second alone.
        """
        differences = more_r + alone - of_second
        common = np.where(differences > 0, common, 0)
        return (differences * (both_r + alone + of_second + 2 * common + 1) / 2) @ shares_r

    # Of m more relevant documents, those of the first alone and then the common ones.
    numbers = _numbers(int(chosen.sum()))
    before = np.concatenate([[0], numbers[:-1] + 1])  # a number stands for all from here on
    alone_mr = np.minimum(alone_r, numbers[:, None])
    common_mr = np.minimum(common_r, numbers[:, None] - alone_mr)
    sums_m = summed(alone_mr, common_mr, np.zeros(depth))
    if sums_m.max() >= 0:
        return float((sums_m / (n_known + before)).max())
    # The second is better whatever they are: more relevant documents help, as both values then are
    # shares of more. Those of the first come first, then those that neither has, or that cost least.
    others_r = _counts(ranks[1][chosen & (ranks[0] > depth)], depth)
    numbers = _numbers(int(chosen.sum()) - n_alone)
    before = np.concatenate([[0], numbers[:-1] + 1])
    n_free = int(chosen.sum()) - n_alone - others_r[-1]
    costly_mr = np.maximum(0, before[:, None] - n_free - others_r[-1] + others_r)
    sums_m = summed(alone_r, common_r, costly_mr)
    return float((sums_m / (n_known + n_alone + numbers)).max())


def _of_reach(
    measure: Measure, query: RankedQuery, ranks: np.ndarray, shares_r: np.ndarray
) -> float:
    depth = len(shares_r)
    judged = query.is_judged
    stops = exp_gain(torch.from_numpy(query.grades[judged]), measure.max_grade).numpy()
    reach_r = []
    for of_ranker in ranks:
        passes_r = np.ones(depth)
        is_there = of_ranker[judged] <= depth
        passes_r[of_ranker[judged][is_there] - 1] = 1 - stops[is_there]
        reach_r.append(np.cumprod(passes_r))
    passes = 1 - float(exp_gain(torch.tensor(query.largest), measure.max_grade))
    common_r = _counts(ranks.max(axis=0)[~judged], depth)
    alone_r = _counts(ranks[0][~judged], depth) - common_r
    more_r = reach_r[1] - reach_r[0] * passes**alone_r
    more_r = np.where(more_r < 0, more_r * passes**common_r, more_r)
    return float(more_r @ shares_r)


def _weights(measure: Measure, ranks: np.ndarray) -> np.ndarray:
    """``[D]``: what a rank counts, the mean over the seeds; of those behind the cut nothing."""
    k = ABSENT - 1 if measure.k is None else measure.k
    if isinstance(measure, NDCG):
        weights = 1 / np.log2(ranks + 1.0)
    elif isinstance(measure, ReciprocalRank):
        weights = 1.0 / ranks
    else:
        weights = np.ones(ranks.shape)
    return np.where(ranks <= k, weights, 0.0).mean(axis=0)


def _best_order(measure: Measure, numbers: np.ndarray) -> np.ndarray:
    """By how many documents have a gain of 1, what a measure divides by."""
    if isinstance(measure, Precision):
        return np.full(len(numbers), float(measure.k or 1))
    if isinstance(measure, Recall):
        return numbers.astype(float)
    weights = _weights(measure, np.arange(1, numbers[-1] + 1)[None])
    return np.concatenate([[0.0], np.cumsum(weights)])[numbers]


def _gains(measure: Measure, grades: np.ndarray) -> np.ndarray:
    """The gains of grades, where the last one is the largest; 1 and 0 of a measure without gains."""
    if not isinstance(measure, NDCG):
        return _are_relevant(measure, grades).astype(float)
    gained = measure.gain(torch.from_numpy(grades), torch.tensor(grades[-1]))
    return np.maximum(gained.numpy(), 0.0)


def _are_relevant(measure: Measure, grades: np.ndarray) -> np.ndarray:
    return measure.is_relevant(torch.from_numpy(grades)).numpy()


def _counts(ranks: np.ndarray, depth: int) -> np.ndarray:
    """``[K]``: how many of these ranks are among the first r."""
    return np.bincount(ranks[ranks <= depth], minlength=depth + 1)[1:].cumsum()


def _numbers(most: int) -> np.ndarray:
    """From 0 to ``most``: each up to ``ALL_NUMBERS``, then in steps."""
    numbers = list(range(min(most, ALL_NUMBERS) + 1))
    while numbers[-1] < most:
        numbers.append(min(most, int(numbers[-1] * STEP) + 1))
    return np.array(numbers)
