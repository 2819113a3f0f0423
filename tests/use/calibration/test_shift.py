"""Shifts that were planted are told, and without one hardly any is."""

import numpy as np
import pytest
from scipy.special import expit

from ltr.use.calibration.conformal import threshold
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.shift import (
    group_coverages,
    groups_by_trait,
    shifted_traits,
    traits_of,
    worse_groups,
)

RELEVANT = "relevant documents among the candidates"


def drawn(
    n_queries: int,
    seed: int,
    *,
    harder: float = 0.0,
    mean_docs: int = 12,
    lower: float = 0.0,
    stay: float = 1.0,
    without: float = 0.0,
) -> tuple:
    """Lists, and the words of their queries.

    Args:
        n_queries, seed: of the draw.
        harder: each further word lowers all scores of a query by this.
        mean_docs: candidates of a query, four more or fewer.
        lower: irrelevant documents score lower by this, as random ones do.
        stay: the share of relevant documents that are among the candidates; in the place of each other
            one stands an irrelevant one.
        without: the share of queries in which none is.
    """
    rng = np.random.default_rng(seed)
    words = rng.integers(2, 12, n_queries)
    scores = []
    labels = []
    for n_words in words:
        relevance = rng.normal(size=rng.integers(mean_docs - 4, mean_docs + 5))
        is_relevant = rng.uniform(size=len(relevance)) < expit(3 * relevance - 2)
        lost = is_relevant & (rng.uniform(size=len(relevance)) >= stay)
        lost |= is_relevant & (rng.uniform() < without)
        relevance[lost] = rng.choice(relevance[~is_relevant], int(lost.sum()))
        is_relevant &= ~lost
        labels.append(is_relevant)
        scores.append(relevance - harder * n_words - lower * ~is_relevant)
    return LabelledScores.from_lists(scores, labels), words.astype(float)


def all_traits(lists: LabelledScores, words: np.ndarray) -> dict:
    return traits_of(lists) | {"words": words}


def test_traits_by_hand():
    lists = LabelledScores.from_lists([[3.0, 1.0], [2.0, 4.0, 0.0]], [[1, 0], [0, 0, 0]])
    traits = traits_of(lists)
    assert traits["candidates"].tolist() == [2, 3]
    assert traits["best score"].tolist() == [3, 4]
    assert traits["mean score"].tolist() == [2, 2]
    assert traits[RELEVANT].tolist() == [1, 0]


def test_without_a_shift_at_most_5_percent_are_false_alarms():
    """Of 200 pairs 10 are expected at most; 17 or more have a chance of 2 %."""
    n_alarms = 0
    for seed in range(200):
        dev = all_traits(*drawn(60, 2 * seed))
        test = all_traits(*drawn(80, 2 * seed + 1))
        n_alarms += bool(shifted_traits(dev, test))
    assert n_alarms <= 16


# What is planted, and the traits that name it: another ranker, another first stage, another prior.
PLANTED = [
    ({"mean_docs": 20}, {"candidates", RELEVANT}),
    ({"harder": 0.2}, {"best score", "mean score"}),
    ({"lower": 1.0}, {"mean score"}),
    ({"stay": 0.5}, {RELEVANT}),
    ({"without": 0.4}, {RELEVANT}),
]


@pytest.mark.parametrize(("change", "expected"), PLANTED)
def test_a_planted_shift_is_named(change, expected):
    for seed in range(10):
        dev = all_traits(*drawn(100, seed))
        test = all_traits(*drawn(100, 100 + seed, **change))
        assert expected <= {*shifted_traits(dev, test)}


def test_longer_queries_are_named_and_nothing_else():
    for seed in range(10):
        lists, words = drawn(100, seed)
        assert [*shifted_traits(all_traits(lists, words), all_traits(lists, words + 3))] == [
            "words"
        ]


def test_groups_by_hand():
    """Six queries of one document; the threshold serves those of scores 3 to 6. The seventh has nothing
    relevant.
    """
    lists = LabelledScores.from_lists([[s] for s in (1.0, 2, 3, 4, 5, 6, 0)], [[1]] * 6 + [[0]])
    words = np.array([1.0, 1, 2, 2, 3, 3, 9])
    groups = groups_by_trait(lists, {"words": words, "candidates": np.ones(7)})
    assert {name: np.flatnonzero(is_in).tolist() for name, is_in in groups.items()} == {
        "words 1 to 1": [0, 1],
        "words 2 to 2": [2, 3],
        "words 3 to 3": [4, 5],
    }
    groups["source a"] = np.array([True, True, True, False, False, False])
    groups["source b"] = np.zeros(6, bool)  # has no such query
    coverages = group_coverages(lists, groups, 3.0, 0.9)
    assert [(one.queries, one.coverage) for one in coverages] == [
        (2, 0.0),
        (2, 1.0),
        (2, 1.0),
        (3, pytest.approx(1 / 3)),
    ]
    p_values = [0.01, 1, 1, 0.1**3 + 3 * 0.1**2 * 0.9]
    assert [one.p_value for one in coverages] == pytest.approx(p_values)
    assert worse_groups(coverages) == coverages[:1]  # 0.01 is below 0.05 / 4, 0.028 is not


@pytest.mark.parametrize("level", [0.0, 1234.0])
def test_groups_that_differ_in_late_digits_are_apart(level):
    """Three groups of two queries, whose best scores are 1/1024 apart, from any level on."""
    scores = [[level + place / 1024] for place in range(6)]
    lists = LabelledScores.from_lists(scores, [[1]] * 6)
    groups = groups_by_trait(lists, {"best score": lists.highest.astype(float)})
    assert [np.flatnonzero(is_in).tolist() for is_in in groups.values()] == [[0, 1], [2, 3], [4, 5]]


def test_where_nothing_is_relevant_there_are_no_groups():
    lists = LabelledScores.from_lists([[1.0], [2.0]], [[0], [0]])
    assert groups_by_trait(lists, traits_of(lists)) == {}


def worse_by_words(lists: LabelledScores, words: np.ndarray) -> list[str]:
    """The groups that the threshold of these lists at 0.9 serves less often."""
    t = threshold(lists.lowest_relevant, 0.9)
    groups = groups_by_trait(lists, {"words": words})
    return [one.group for one in worse_groups(group_coverages(lists, groups, t, 0.9))]


def test_a_group_that_is_served_less_is_named_though_all_together_are_served():
    lists, words = drawn(400, 0, harder=0.2)
    t = threshold(lists.lowest_relevant, 0.9)
    assert (lists.lowest_relevant >= t).mean() >= 0.9
    (group,) = worse_by_words(lists, words)
    assert group.startswith("words ") and group.endswith(" to 11")


def test_groups_without_a_difference_are_hardly_ever_named():
    assert sum(bool(worse_by_words(*drawn(120, seed))) for seed in range(100)) <= 9
