"""Score maps: planted probabilities are found, chance is refused, and the error is counted by hand."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.calibration import calibration_curve

from ltr.errors import InputError
from ltr.use.calibration.fitting import fit_isotonic, fit_logistic, fit_map
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.score_maps import (
    Isotonic,
    Logistic,
    calibration_error,
    reliability,
)


def planted(n_queries: int, to_probability, seed: int = 0, n_docs: int = 10) -> LabelledScores:
    """Scores from a normal distribution; a document is relevant with the probability of its score."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_queries, n_docs))
    labels = rng.uniform(size=scores.shape) < to_probability(scores)
    return LabelledScores.from_lists(scores, labels)


def test_numbers_of_queries_by_hand():
    """Of three queries the second has nothing relevant; the fourth has no documents."""
    lists = LabelledScores.from_lists(
        [[3.0, 1.0, 2.0], [5.0, 4.0], [0.0, -1.0], []], [[0, 1, 2], [0, 0], [1, 0], []]
    )
    assert len(lists) == 3
    assert lists.has_relevant.tolist() == [True, False, True]
    assert lists.highest.tolist() == [3.0, 5.0, 0.0]
    assert lists.lowest_relevant.tolist() == [1.0, 0.0]
    assert lists.highest_relevant.tolist() == [2.0, 0.0]
    turned = lists.at(np.array([2, 0]))
    assert turned.scores.tolist() == [0.0, -1.0, 3.0, 1.0, 2.0]
    assert turned.lowest_relevant.tolist() == [0.0, 1.0]
    assert len(LabelledScores.from_lists([], [])) == 0


def test_a_planted_logistic_map_is_found():
    found = fit_map(planted(4000, lambda s: expit(2 * s - 1))).score_map
    assert isinstance(found, Logistic)
    assert found.slope == pytest.approx(2, abs=0.1)
    assert found.intercept == pytest.approx(-1, abs=0.1)


def test_a_planted_step_is_found_by_the_isotonic_map():
    """No logistic map has two levels: 0.1 below 0, and 0.6 above."""
    found = fit_map(planted(4000, lambda s: np.where(s > 0, 0.6, 0.1))).score_map
    assert isinstance(found, Isotonic)
    assert found([-1.0, 1.0]) == pytest.approx([0.1, 0.6], abs=0.04)


def test_the_map_never_falls_and_stays_within_0_and_1():
    lists = planted(60, lambda s: expit(s - 2))
    grid = np.linspace(-9, 9, 500)
    for fit in (fit_logistic, fit_isotonic):
        probabilities = fit(lists.scores, lists.is_relevant)(grid)
        assert (np.diff(probabilities) >= 0).all()
        assert probabilities.min() > 0 and probabilities.max() < 1


@pytest.mark.parametrize("factor", [0.05, 20.0])
def test_the_map_of_scaled_scores_says_the_same(factor):
    lists = planted(60, lambda s: expit(s))
    grid = np.linspace(-3, 3, 50)
    for fit in (fit_logistic, fit_isotonic):
        score_map = fit(lists.scores, lists.is_relevant)
        scaled = score_map.of_scaled(factor)
        np.testing.assert_allclose(scaled(grid * factor), score_map(grid), atol=1e-12)


def test_probabilities_do_not_depend_on_the_scale_of_scores():
    lists = planted(300, lambda s: expit(2 * s))
    moved = LabelledScores(lists.offsets, lists.scores * 1000 + 5e4, lists.is_relevant)
    np.testing.assert_allclose(
        fit_map(moved).score_map(moved.scores), fit_map(lists).score_map(lists.scores), atol=1e-3
    )


def test_held_out_probabilities_are_of_maps_that_have_not_seen_the_query():
    """A query whose labels are turned changes the maps of others, and not its own probabilities."""
    lists = planted(40, lambda s: expit(3 * s))
    first = slice(0, lists.offsets[1])
    turned = lists.is_relevant.copy()
    turned[first] = ~turned[first]
    before = fit_map(lists)
    after = fit_map(LabelledScores(lists.offsets, lists.scores, turned))
    assert type(before.score_map) is type(after.score_map)
    np.testing.assert_array_equal(after.held_out[first], before.held_out[first])
    assert (after.held_out[lists.offsets[1] :] != before.held_out[lists.offsets[1] :]).any()


def test_held_out_error_is_small_where_the_raw_one_is_large():
    lists = planted(1500, lambda s: expit(0.5 * s - 2))
    fitted = fit_map(lists)
    raw = calibration_error(expit(lists.scores.astype(float)), lists.is_relevant)
    assert raw > 0.2 and calibration_error(fitted.held_out, lists.is_relevant) < 0.02
    assert fitted.log_loss < fitted.constant_log_loss


CHANCE = "can't be thresholded: on dev queries that were held out"


def is_refused(lists: LabelledScores) -> bool:
    try:
        fit_map(lists)
    except InputError:
        return True
    return False


def test_scores_by_chance_are_refused():
    """At 5 %: of 40 draws at most four pass."""
    draws = [planted(60, lambda s: np.full_like(s, 0.2), seed) for seed in range(40)]
    assert sum(map(is_refused, draws)) >= 36
    assert not is_refused(planted(60, lambda s: expit(s)))


def test_scores_that_are_turned_round_are_refused():
    with pytest.raises(InputError, match=CHANCE):
        fit_map(planted(200, lambda s: expit(-2 * s)))


def test_scores_whose_level_is_by_chance_in_each_query_are_refused():
    """They order every list perfectly, and next to nothing is shown across queries: a logistic map
    gains 0.001 % of the log loss.
    """
    rng = np.random.default_rng(0)
    levels = rng.normal(scale=100, size=(40, 1))
    labels = np.zeros((40, 10))
    labels[:, 0] = 1
    with pytest.raises(InputError, match=CHANCE):
        fit_map(LabelledScores.from_lists(levels + 0.5 * labels, labels))


TOO_LITTLE = [
    ([[0, 0]] * 9, "queries with a relevant document .* 4 for a promise of 0.8, .* got 0"),
    ([[1, 0]] + [[0, 0]] * 9, "4 for a promise of 0.8, 9 for .* of 0.9, 19 for .*, got 1"),
    ([[1, 0]], "got 1; judge more queries"),
    ([[1, 1]] * 9, "all candidates of dev are relevant"),
    ([], "got 0"),
]


@pytest.mark.parametrize(("labels", "words"), TOO_LITTLE)
def test_what_shows_too_little_is_refused(labels, words):
    scores = [[2.0, 1.0]] * len(labels)
    with pytest.raises(InputError, match=words):
        fit_map(LabelledScores.from_lists(scores, labels))


def test_irrelevant_documents_of_one_query_alone_show_too_little():
    """Where that query is held out, the others have relevant documents alone."""
    lists = LabelledScores.from_lists([[3.0, 4.0]] * 8 + [[3.0, 0.0]], [[1, 1]] * 8 + [[1, 0]])
    with pytest.raises(InputError, match="nearly all candidates of dev are relevant"):
        fit_map(lists)


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_finite_numbers_are_refused(score):
    scores = [[2.0, 1.0]] * 30 + [[2.0, score]]
    with pytest.raises(InputError, match="all must be finite, and 1 of 62 are NaN or infinite"):
        fit_map(LabelledScores.from_lists(scores, [[1, 0]] * 31))


def test_equal_scores_are_refused():
    with pytest.raises(InputError, match="can't be thresholded: all are 0.5; train it longer"):
        fit_map(LabelledScores.from_lists([[0.5, 0.5]] * 30, [[1, 0]] * 30))


@pytest.mark.parametrize("n_queries", [4, 5, 7])
def test_a_few_queries_with_perfect_scores_are_enough(n_queries):
    lists = LabelledScores.from_lists([[2.0, 1.0, 0.0]] * n_queries, [[1, 0, 0]] * n_queries)
    probabilities = fit_map(lists).score_map([2.0, 1.0])
    assert probabilities[0] > 0.5 > probabilities[1]


def test_the_error_by_hand():
    """Bins of two documents: |0.1 + 0.3 - 1| / 4 + |0.6 + 0.8 - 2| / 4 = 0.3."""
    p = np.array([0.8, 0.1, 0.6, 0.3])
    assert calibration_error(p, np.array([1, 0, 1, 1]), bins=2) == pytest.approx(0.3)
    assert reliability(p, np.array([1, 0, 1, 1]), bins=2) == [
        (pytest.approx(0.2), 0.5, 2),
        (pytest.approx(0.7), 1.0, 2),
    ]


def test_the_bins_are_those_of_scikit_learn():
    rng = np.random.default_rng(3)
    p = rng.uniform(size=600)
    y = rng.uniform(size=600) < p**2
    shares, means = calibration_curve(y, p, n_bins=15, strategy="quantile")
    ours = reliability(p, y)
    np.testing.assert_allclose([mean for mean, _, _ in ours], means)
    np.testing.assert_allclose([share for _, share, _ in ours], shares)
    assert calibration_error(p, y) == pytest.approx(np.abs(shares - means).mean())


def test_equal_probabilities_are_in_one_bin():
    p = np.array([0.2] * 50 + [0.9])
    y = np.array([0] * 40 + [1] * 11)
    assert calibration_error(p, y) == pytest.approx(0.1 / 51)
    assert [n for _, _, n in reliability(p, y)] == [50, 1] or len(reliability(p, y)) == 1
