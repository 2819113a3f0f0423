"""Where a calibration stops holding: queries of another kind than those of dev.

Letters of shapes: Q queries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ltr.use.calibration.labelled_scores import LabelledScores

LEVEL = 0.05
GROUPS = 3  # of a trait, of about as many queries each

Traits = Mapping[str, np.ndarray]  # by name ``[Q]``, a number of each query


def traits_of(lists: LabelledScores) -> dict[str, np.ndarray]:
    """What is known of queries without any label: the number of candidates, their best and their mean
    score.
    """
    n_docs = np.diff(lists.offsets)
    sums = np.add.reduceat(lists.scores.astype(np.float64), lists.offsets[:-1])
    return {
        "candidates": n_docs.astype(np.float64),
        "best score": lists.highest.astype(np.float64),
        "mean score": sums / n_docs,
    }


def shifted_traits(dev: Traits, other: Traits, level: float = LEVEL) -> dict[str, float]:
    """The traits whose distributions differ, with their p-values, by two-sample Kolmogorov-Smirnov tests
    over queries and Holm's correction: without a shift, some trait is named in at most ``level`` of all
    draws. Where values are equal, as numbers of candidates are, the test is conservative.

    References:
        Holm (1979), A simple sequentially rejective multiple test procedure.

    Example:
        >>> longer = {"words": np.arange(40) + 15.0}
        >>> list(shifted_traits({"words": np.arange(40.0)}, longer))
        ['words']
        >>> shifted_traits({"words": np.arange(40.0)}, {"words": np.arange(40.0)})
        {}
    """
    p_of_trait = {name: float(stats.ks_2samp(dev[name], other[name]).pvalue) for name in dev}
    shifted = {}
    ascending = sorted(p_of_trait, key=p_of_trait.__getitem__)
    for place, name in enumerate(ascending):
        if p_of_trait[name] > level / (len(ascending) - place):
            break
        shifted[name] = p_of_trait[name]
    return shifted


@dataclass(frozen=True)
class GroupCoverage:
    """How many answerable queries of a group a threshold serves.

    Attributes:
        trait: by which queries are grouped.
        low, high: between which values of it the group lies.
        queries: how many there are.
        coverage: the share that keeps all relevant documents.
        p_value: of so few being served if the promise held in the group, one-sided and exact.
    """

    trait: str
    low: float
    high: float
    queries: int
    coverage: float
    p_value: float


def group_coverages(
    lists: LabelledScores, traits: Traits, threshold: float, promise: float
) -> list[GroupCoverage]:
    """The coverage of each group of each trait: queries are cut into three parts by each. Queries of
    equal values are in one group.

    Args:
        lists: of dev, or of another split.
        traits: of its queries.
        threshold: that is to keep all relevant documents.
        promise: for which share of queries.
    """
    is_served = lists.lowest_relevant >= np.float32(threshold)
    coverages = []
    for name, values in traits.items():
        answerable = values[lists.has_relevant]
        for places in _groups(answerable):
            n_served = int(is_served[places].sum())
            p = stats.binomtest(n_served, len(places), promise, alternative="less").pvalue
            low = float(answerable[places].min())
            high = float(answerable[places].max())
            share = n_served / len(places)
            coverages.append(GroupCoverage(name, low, high, len(places), share, float(p)))
    return coverages


def _groups(values: np.ndarray) -> Iterator[np.ndarray]:
    """Places of about as many values each, ascending; none where all are one group."""
    cuts = np.unique(np.quantile(values, np.arange(1, GROUPS) / GROUPS))
    group_of_value = np.searchsorted(cuts, values, side="left")
    if len(np.unique(group_of_value)) > 1:
        for group in np.unique(group_of_value):
            yield np.flatnonzero(group_of_value == group)


def worse_groups(groups: list[GroupCoverage], level: float = LEVEL) -> list[GroupCoverage]:
    """The groups that are served less often than promised, by Bonferroni's correction over all."""
    return [group for group in groups if group.p_value <= level / len(groups)]
