"""Thresholds with a promise: values by hand, and what they keep of queries drawn anew."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from ltr.errors import InputError
from ltr.use.calibration.conformal import (
    coverage_interval,
    queries_needed,
    rank_of_threshold,
    rounded_down,
    threshold,
)


def test_values_by_hand():
    """Nine numbers, k = floor(0.1 * 10) = 1 and floor(0.2 * 10) = 2."""
    numbers = [9.0, 4.0, 8.0, 3.0, 7.0, 2.0, 6.0, 1.0, 5.0]
    slack = 9.0 * 1e-5  # of the largest number: scores are rounded
    assert threshold(numbers, 0.9) == pytest.approx(1.0 - slack, rel=1e-7)
    assert threshold(numbers, 0.8) == pytest.approx(2.0 - slack, rel=1e-7)
    assert threshold([-n for n in numbers], 0.9) == pytest.approx(-9.0 - slack, rel=1e-7)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, -20.0])
def test_a_score_at_the_threshold_that_is_rounded_otherwise_is_kept(scale):
    """By four units in the last place of the largest score, near 0, too."""
    numbers = np.float32(scale) * np.linspace(0, 1, 40, dtype=np.float32)
    ulp = np.spacing(np.abs(numbers).max())
    for promise in (0.8, 0.9, 0.95):
        t = np.float32(threshold(numbers, promise))
        number = np.sort(numbers)[rank_of_threshold(promise, 40) - 1]
        assert number - 4 * ulp >= t > number - 200 * ulp


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.99999, 4, "1.999"),
        (-1.99991, 4, "-2"),
        (-1.23451, 4, "-1.235"),
        (-1e-7, 4, "-1e-07"),
        (12345.67, 4, "1.234e+04"),
        (0.0, 4, "0"),
        (2.5, 6, "2.5"),
    ],
)
def test_a_threshold_is_printed_no_higher_than_it_is(value, digits, text):
    assert rounded_down(value, digits) == text
    assert float(text) <= value


def test_the_rank_is_counted_in_fractions():
    """0.1 * 10, 0.05 * 20 and 0.2 * 5 are whole; by floating point some of them fall short."""
    assert [rank_of_threshold(p, n) for p, n in [(0.9, 9), (0.95, 19), (0.8, 4)]] == [1, 1, 1]
    for n in range(400):
        for p, alpha in [(0.8, Fraction(1, 5)), (0.9, Fraction(1, 10)), (0.7, Fraction(3, 10))]:
            assert rank_of_threshold(p, n) == alpha * (n + 1) // 1


@pytest.mark.parametrize("promise", [0.8, 0.9, 0.95, 0.99, 0.123])
def test_so_many_queries_are_needed_and_no_fewer(promise):
    n = queries_needed(promise)
    assert threshold(np.arange(n), promise) == pytest.approx(-1e-5 * (n - 1))
    with pytest.raises(InputError, match=f"at least {n} dev queries .*, got {n - 1}; lower it"):
        threshold(np.arange(n - 1), promise)


def test_of_no_queries_there_is_no_threshold():
    with pytest.raises(InputError, match="needs at least 4 dev queries .*, got 0"):
        threshold([], 0.8)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_of_what_is_not_finite_there_is_no_threshold(number):
    with pytest.raises(InputError, match="scores must be finite to have a threshold"):
        threshold([1.0, 2.0, 3.0, number], 0.8)


@pytest.mark.parametrize("promise", [0, 1, -0.1, 90, float("nan")])
def test_a_promise_is_between_0_and_1(promise):
    with pytest.raises(InputError, match="keep must be between 0 and 1"):
        threshold([1.0, 2.0], promise)


@pytest.mark.parametrize("promise", [0.8, 0.9, 0.95])
def test_a_new_query_is_served_as_promised(promise):
    """Of n + 1 exchangeable numbers each is the new one in turn: the share that is served is exactly
    1 - k / (n + 1), from the promise to the promise + 1 / (n + 1).
    """
    rng = np.random.default_rng(0)
    for n in (19, 20, 37, 100):
        numbers = rng.normal(size=n + 1)
        served = [
            numbers[new] >= threshold(np.delete(numbers, new), promise) for new in range(n + 1)
        ]
        k = rank_of_threshold(promise, n)
        assert sum(served) == n + 1 - k
        assert promise - 1e-12 <= np.mean(served) <= promise + 1 / (n + 1)


def test_equal_scores_are_served_more_often_never_less():
    numbers = np.array([0.0] * 30 + [1.0] * 70)
    served = [numbers[new] >= threshold(np.delete(numbers, new), 0.9) for new in range(100)]
    assert all(served)
    assert 2.4999 < threshold(np.full(50, 2.5), 0.9) < 2.5


def test_one_threshold_serves_a_share_that_is_beta_distributed():
    """Over 2,000 draws of 50 uniform numbers, 1 - t is the share of new ones above t."""
    rng = np.random.default_rng(1)
    shares = [1 - threshold(rng.uniform(size=50), 0.9) for _ in range(2000)]
    k = rank_of_threshold(0.9, 50)
    assert stats.kstest(shares, stats.beta(51 - k, k).cdf).pvalue > 0.01
    low, high = coverage_interval(0.9, 50)
    assert np.mean([low <= share <= high for share in shares]) == pytest.approx(0.9, abs=0.02)


def test_more_queries_narrow_the_interval():
    widths = [np.subtract(*coverage_interval(0.9, n)[::-1]) for n in (20, 100, 1000, 10_000)]
    assert all(second < first for first, second in pairwise(widths))
    assert coverage_interval(0.95, 10) == (1.0, 1.0)  # no threshold: all is kept


def test_a_lower_promise_is_a_higher_threshold():
    numbers = np.random.default_rng(2).normal(size=200)
    thresholds = [threshold(numbers, promise) for promise in (0.95, 0.9, 0.8, 0.5)]
    assert thresholds == sorted(thresholds) and len(set(thresholds)) == 4
