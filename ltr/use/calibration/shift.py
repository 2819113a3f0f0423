"""Where a calibration stops holding: queries of another kind than those of dev.

Letters of shapes: Q queries, A answerable queries: those with a relevant document.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ltr.use.calibration.labelled_scores import LabelledScores

LEVEL = 0.05
GROUPS = 3  # of a trait, of about as many queries each

Traits = Mapping[str, np.ndarray]  # by name ``[Q]``, a number of each query
Groups = Mapping[str, np.ndarray]  # by name ``[A]`` bool, the answerable queries that are in it


def traits_of(lists: LabelledScores) -> dict[str, np.ndarray]:
    """What is known of queries: the number of candidates, their best and their mean score, and how many
    of them are relevant.
    """
    n_docs = np.diff(lists.offsets)
    sums = np.add.reduceat(lists.scores.astype(np.float64), lists.offsets[:-1])
    n_relevant = np.add.reduceat(lists.is_relevant.astype(np.float64), lists.offsets[:-1])
    return {
        "candidates": n_docs.astype(np.float64),
        "best score": lists.highest.astype(np.float64),
        "mean score": sums / n_docs,
        "relevant documents among the candidates": n_relevant,
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
        group: its name.
        queries: how many there are.
        coverage: the share that keeps all relevant documents.
        p_value: of so few being served if the promise held in the group, one-sided and exact.
    """

    group: str
    queries: int
    coverage: float
    p_value: float


def groups_by_trait(lists: LabelledScores, traits: Traits) -> dict[str, np.ndarray]:
    """The answerable queries, cut into three groups by each trait, of about as many queries each.
    Queries of equal values are in one group; a trait by which all are in one group has none.
    """
    has_relevant = lists.has_relevant
    groups: dict[str, np.ndarray] = {}
    if not has_relevant.any():
        return groups
    for name, of_each in traits.items():
        values = of_each[has_relevant]
        cuts = np.unique(np.quantile(values, np.arange(1, GROUPS) / GROUPS))
        group_of_value = np.searchsorted(cuts, values, side="left")
        numbers = np.unique(group_of_value)
        if len(numbers) < 2:
            continue
        in_groups = [group_of_value == number for number in numbers]
        ranges = [(values[is_in].min(), values[is_in].max()) for is_in in in_groups]
        for words, is_in in zip(_distinct_names(ranges), in_groups, strict=True):
            groups[f"{name} {words}"] = is_in
    return groups


def _distinct_names(ranges: list[tuple[float, float]]) -> list[str]:
    """A name for each of some ranges of which no two are equal: with as many digits as tell them
    apart.
    """
    names: list[str] = []
    for digits in (4, 9, 17):  # 17 tell any two numbers apart
        names = [f"{low:.{digits}g} to {high:.{digits}g}" for low, high in ranges]
        if len({*names}) == len(names):
            break
    return names


def group_coverages(
    lists: LabelledScores, groups: Groups, threshold: float, promise: float
) -> list[GroupCoverage]:
    """The coverage of each group that has a query.

    Args:
        lists: of dev, or of another split.
        groups: of its answerable queries.
        threshold: that is to keep all relevant documents.
        promise: for which share of queries.
    """
    is_served = lists.lowest_relevant >= np.float32(threshold)
    coverages = []
    for name, is_in in groups.items():
        n = int(is_in.sum())
        if n == 0:
            continue
        n_served = int(is_served[is_in].sum())
        p = stats.binomtest(n_served, n, promise, alternative="less").pvalue
        coverages.append(GroupCoverage(name, n, n_served / n, float(p)))
    return coverages


def worse_groups(groups: list[GroupCoverage], level: float = LEVEL) -> list[GroupCoverage]:
    """The groups that are served less often than promised, by Bonferroni's correction over all."""
    return [group for group in groups if group.p_value <= level / len(groups)]
