"""Thresholds against crepes, a library of conformal prediction; the test of a promise and the score maps
against scipy; log losses against scikit-learn. Scores are drawn so that many are equal.
"""

from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit
from sklearn.metrics import log_loss

from ltr.errors import InputError
from ltr.use.calibration.calibrated import calibrate_lists, promise_rows
from ltr.use.calibration.calibration import Provenance
from ltr.use.calibration.conformal import (
    ROUNDING,
    queries_needed,
    rank_of_threshold,
    threshold,
)
from ltr.use.calibration.fitting import fit_isotonic, fit_logistic, fit_map
from ltr.use.calibration.labelled_scores import LabelledScores

PROMISES = [0.5, 0.7, 0.8, 0.9, 0.95, 0.99]
DRAWS = 40


@pytest.fixture
def crepes():
    return pytest.importorskip("crepes")


def numbers_and_scores(promise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of up to 300 more dev queries than are needed, and scores of documents: quarters from
    a range that is narrow in some draws, so that most are equal, and wide in others.
    """
    rng = np.random.default_rng(seed)
    n = queries_needed(promise) + int(rng.integers(300))
    width = rng.integers(1, 400)
    low = rng.integers(-400, 400)
    numbers, scores = (rng.integers(low, low + width, size) / 4 for size in (n, 200))
    return numbers.astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize("promise", PROMISES)
def test_thresholds_are_the_lower_percentiles_of_crepes(crepes, promise):
    """Those of a predictive system whose residuals are the numbers of the queries."""
    for seed in range(DRAWS):
        numbers, _ = numbers_and_scores(promise, seed)
        system = crepes.ConformalPredictiveSystem().fit(numbers.astype(np.float64))
        # A little more than 100 (1 - promise): by floating point, 0.1 * 30 would be less than 3.
        percentile = 100 * (1 - promise) + 1e-9
        expected = system.predict_percentiles(np.zeros(1), lower_percentiles=[percentile]).item()
        slack = ROUNDING * np.abs(numbers).max()
        assert threshold(numbers, promise) == pytest.approx(expected - slack, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("promise", PROMISES)
def test_documents_are_kept_whose_p_value_by_crepes_is_above_1_less_the_promise(crepes, promise):
    """A document conforms the less, the lower its score is. Equal scores count, without smoothing."""
    for seed in range(DRAWS):
        numbers, scores = numbers_and_scores(promise, seed)
        classifier = crepes.ConformalClassifier()
        classifier.fit(-numbers)
        p_values = classifier.predict_p(-scores[:, None], smoothing=False)[:, 0]
        n = len(numbers)
        # In fractions: 1 - 0.9 is below 0.1 in floating point.
        level = 1 - Fraction(str(promise))
        expected = [Fraction(round(p * (n + 1)), n + 1) > level for p in p_values]
        assert (scores >= np.float32(threshold(numbers, promise))).tolist() == expected


@pytest.mark.parametrize("promise", PROMISES)
def test_crepes_has_no_threshold_either_of_fewer_queries(crepes, promise):
    """There even the lowest score conforms, and with one query more it does not."""
    n = queries_needed(promise)
    lowest = np.array([[np.inf]])
    p_values = []
    for count in (n - 1, n):
        classifier = crepes.ConformalClassifier()
        classifier.fit(-np.arange(count, dtype=np.float64))
        p_values.append(classifier.predict_p(lowest, smoothing=False).item())
    assert p_values[0] > 1 - promise >= p_values[1] - 1e-12
    with pytest.raises(InputError, match=f"at least {n} dev queries"):
        threshold(np.arange(n - 1), promise)
    threshold(np.arange(n), promise)


def drawn_lists(n_queries: int, seed: int) -> LabelledScores:
    """Scores in tenths, which documents of many queries share; one relevant document of ten, or more."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_queries, 10)).round(1)
    labels = rng.uniform(size=scores.shape) < expit(2 * scores - 2)
    labels[:, 0] = True
    return LabelledScores.from_lists(scores, labels)


def test_the_p_value_of_a_promise_is_that_of_a_draw_without_replacement():
    """Of n dev queries and m others in one order, each as likely: those that are not served stand before
    the k-th of dev, which is a negative hypergeometric number.
    """
    dev = drawn_lists(57, 0)
    made, _ = calibrate_lists(dev, Provenance("r", 0, {}, {}))
    others = drawn_lists(40, 1)
    lower = LabelledScores(others.offsets, others.scores - 0.3, others.is_relevant)
    n, m = 57, 40
    p_values = []
    for row in promise_rows(made, lower):
        k = rank_of_threshold(row.promise, n)
        n_not_served = m - round(row.coverage * m)
        expected = stats.nhypergeom(n + m, m, k).sf(n_not_served - 1)
        assert row.p_value == pytest.approx(expected, rel=1e-9)
        p_values.append(row.p_value)
    assert min(p_values) < 0.2 and max(p_values) > 0.3


@pytest.mark.parametrize("seed", range(5))
def test_the_isotonic_map_is_that_of_scipy(seed):
    """Of equal scores the mean label, as often as they are there; no nearer to 0 and 1 than 1 / (D + 2)."""
    lists = drawn_lists(20 + 30 * seed, seed)
    score_map = fit_isotonic(lists.scores, lists.is_relevant)
    known, place, counts = np.unique(lists.scores, return_inverse=True, return_counts=True)
    shares = np.bincount(place, lists.is_relevant) / counts
    nearest = 1 / (len(lists.scores) + 2)
    expected = optimize.isotonic_regression(shares, weights=counts).x
    expected = np.clip(expected, nearest, 1 - nearest)
    grid = np.linspace(-6, 6, 301)
    np.testing.assert_allclose(score_map(known), expected, atol=1e-12)
    np.testing.assert_allclose(score_map(grid), np.interp(grid, known, expected), atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_logistic_map_is_the_likeliest_by_scipy(seed):
    lists = drawn_lists(20 + 30 * seed, seed)
    score_map = fit_logistic(lists.scores, lists.is_relevant)
    scores = lists.scores.astype(np.float64)
    signs = np.where(lists.is_relevant, -1.0, 1.0)

    def loss(line: np.ndarray) -> float:
        return float(np.logaddexp(0, signs * (line[0] * scores + line[1])).mean())

    ours = np.array([score_map.slope, score_map.intercept])
    found = optimize.minimize(loss, [0.0, 0.0])
    np.testing.assert_allclose(ours, found.x, atol=2e-3)
    assert loss(ours) <= found.fun + 1e-8


def test_the_log_losses_are_those_of_scikit_learn():
    lists = drawn_lists(60, 0)
    fitted = fit_map(lists)
    assert fitted.log_loss == pytest.approx(log_loss(lists.is_relevant, fitted.held_out))
    share = np.full(len(lists.scores), lists.is_relevant.mean())
    # Of a constant that is held out, too: a little more than that of all.
    of_all = log_loss(lists.is_relevant, share)
    assert of_all < fitted.constant_log_loss < 1.01 * of_all
