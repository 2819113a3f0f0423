"""Shifts that were planted are told, and without one hardly any is."""

import numpy as np
import pytest
from scipy.special import expit

from ltr.use.calibration.conformal import threshold
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.shift import (
    group_coverages,
    shifted_traits,
    traits_of,
    worse_groups,
)


def drawn(n_queries: int, seed: int, *, harder: float = 0.0, mean_docs: int = 12) -> tuple:
    """Lists, and the words of their queries: each further word lowers all scores by ``harder``."""
    rng = np.random.default_rng(seed)
    words = rng.integers(2, 12, n_queries)
    scores = []
    labels = []
    for n_words in words:
        relevance = rng.normal(size=rng.integers(mean_docs - 4, mean_docs + 5))
        labels.append(rng.uniform(size=len(relevance)) < expit(3 * relevance - 2))
        scores.append(relevance - harder * n_words)
    return LabelledScores.from_lists(scores, labels), words.astype(float)


def all_traits(lists: LabelledScores, words: np.ndarray) -> dict:
    return traits_of(lists) | {"words": words}


def test_traits_by_hand():
    lists = LabelledScores.from_lists([[3.0, 1.0], [2.0, 4.0, 0.0]], [[1, 0], [0, 0, 0]])
    traits = traits_of(lists)
    assert traits["candidates"].tolist() == [2, 3]
    assert traits["best score"].tolist() == [3, 4]
    assert traits["mean score"].tolist() == [2, 2]


def test_without_a_shift_at_most_5_percent_are_false_alarms():
    """Of 200 pairs 10 are expected at most; 17 or more have a chance of 2 %."""
    n_alarms = 0
    for seed in range(200):
        dev = all_traits(*drawn(60, 2 * seed))
        test = all_traits(*drawn(80, 2 * seed + 1))
        n_alarms += bool(shifted_traits(dev, test))
    assert n_alarms <= 16


PLANTED = [
    (lambda lists, words: (lists, words + 3), {"words"}),
    (
        lambda lists, words: (
            LabelledScores(lists.offsets, lists.scores - 1, lists.is_relevant),
            words,
        ),
        {"best score", "mean score"},
    ),
]


@pytest.mark.parametrize(("change", "expected"), PLANTED)
def test_a_planted_shift_is_named(change, expected):
    for seed in range(10):
        dev = all_traits(*drawn(100, seed))
        test = all_traits(*change(*drawn(100, 100 + seed)))
        assert expected <= {*shifted_traits(dev, test)}


def test_another_number_of_candidates_is_named():
    dev = all_traits(*drawn(100, 0))
    test = all_traits(*drawn(100, 1, mean_docs=20))
    assert "candidates" in shifted_traits(dev, test)


def test_groups_by_hand():
    """Six queries of one document; the threshold serves those of scores 3 to 6."""
    lists = LabelledScores.from_lists([[s] for s in (1.0, 2, 3, 4, 5, 6)], [[1]] * 6)
    groups = group_coverages(lists, {"words": np.array([1.0, 1, 2, 2, 3, 3])}, 3.0, 0.9)
    assert [(one.low, one.high, one.queries, one.coverage) for one in groups] == [
        (1, 1, 2, 0.0),
        (2, 2, 2, 1.0),
        (3, 3, 2, 1.0),
    ]
    assert groups[0].p_value == pytest.approx(0.01) and groups[1].p_value == 1
    assert worse_groups(groups) == groups[:1]  # 0.01 is below 0.05 / 3
    assert group_coverages(lists, {"words": np.ones(6)}, 3.0, 0.9) == []


def test_a_group_that_is_served_less_is_named_though_all_together_are_served():
    lists, words = drawn(400, 0, harder=0.2)
    t = threshold(lists.lowest_relevant, 0.9)
    worse = worse_groups(group_coverages(lists, {"words": words}, t, 0.9))
    assert (lists.lowest_relevant >= t).mean() >= 0.9
    assert [(one.trait, one.high) for one in worse] == [("words", 11.0)]


def test_groups_without_a_difference_are_hardly_ever_named():
    n_alarms = 0
    for seed in range(100):
        lists, words = drawn(120, seed)
        t = threshold(lists.lowest_relevant, 0.9)
        n_alarms += bool(worse_groups(group_coverages(lists, {"words": words}, t, 0.9)))
    assert n_alarms <= 9
