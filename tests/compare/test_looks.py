"""Levels of p at looks after each seed: published boundaries, laws, and simulated grids."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ltr.compare.looks import FIRST, FUTILE, LEAST_P, Look, levels, spent
from ltr.compare.statistics import estimate

ROOT = Path(__file__).parents[2]
FIFTHS = [0.2, 0.4, 0.6, 0.8, 1.0]


def looks(budget: int) -> list[Look]:
    return [Look(n_seeds, budget) for n_seeds in range(FIRST, budget + 1)]


def test_published_boundaries():
    """Of Lan and DeMets's function of O'Brien and Fleming's kind, two-sided, five equal looks."""
    bounds = [stats.norm.isf(level / 2) for level in levels(FIFTHS, 0.05)]
    assert bounds == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=1.5e-4)


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.005])
@pytest.mark.parametrize("shares", [FIFTHS, [0.5, 0.6, 1.0], [0.1, 0.9, 1.0]])
def test_what_is_spent_is_what_a_normal_distribution_has_beyond_the_bounds(shares, alpha):
    bounds = np.array([stats.norm.isf(level / 2) for level in levels(shares, alpha)])
    times = np.array(shares)
    correlations = np.sqrt(np.minimum.outer(times, times) / np.maximum.outer(times, times))
    for n in range(1, len(shares) + 1):
        within = stats.multivariate_normal(cov=correlations[:n, :n]).cdf(
            bounds[:n], lower_limit=-bounds[:n], rng=0
        )
        assert 1 - within == pytest.approx(spent(shares[n - 1], alpha), abs=2e-4)


def test_levels_rise_from_look_to_look_and_with_alpha_and_one_look_has_all_of_it():
    for budget in (3, 10, 40):
        of_looks = [look.level(0.05) for look in looks(budget)]
        assert of_looks == sorted(of_looks) and 0.03 < of_looks[-1] < 0.05
        for look in looks(budget):
            of_alphas = [look.level(alpha) for alpha in (1e-9, 1e-3, 0.01, 0.05, 0.5, 1.0)]
            assert of_alphas == sorted(of_alphas)
    for budget in range(2, 20):
        assert Look(budget, budget).level(1.0) == pytest.approx(1), "all is spent"
    assert Look(2, 2).level(0.05) == pytest.approx(0.05)
    assert Look(2, 10).level(0.05) == pytest.approx(spent(0.2, 0.05))


@pytest.mark.parametrize("look", [Look(2, 2), Look(2, 10), Look(5, 10), Look(10, 10)])
def test_the_repeated_p_is_the_alpha_whose_level_p_is(look):
    before = 0.0
    for p in (1e-30, 1e-9, 1e-4, 0.01, 0.049, 0.3, 1.0):
        repeated = look.repeated_p(p)
        assert before <= repeated and p <= repeated * (1 + 1e-5)
        if LEAST_P < repeated < 1:
            assert look.level(repeated) == pytest.approx(p, rel=1e-4)
        for alpha in (0.05, 0.05 / 7):
            assert (repeated <= alpha) == (p <= look.level(alpha))
        before = repeated
    assert look.repeated_p(1.0) == 1.0 and Look(10, 10).repeated_p(1e-30) == LEAST_P


@pytest.mark.parametrize(("n_seeds", "budget"), [(1, 10), (11, 10), (0, 0)])
def test_a_look_has_two_seeds_and_no_more_than_the_budget(n_seeds, budget):
    with pytest.raises(ValueError, match="a look must be at 2 to"):
        Look(n_seeds, budget)


def test_before_the_last_look_queries_tell_no_more_than_seeds():
    """By Student's distribution with 2 (k - 1) degrees of freedom where the queries alone vary."""
    rng = np.random.default_rng(0)
    of_queries = rng.normal(0.1, 1, 50)
    first = of_queries + np.zeros((3, 1))
    difference = estimate(first, np.zeros((3, 50)))
    oracle = stats.ttest_1samp(of_queries, 0)
    assert difference.freedom == pytest.approx(49)
    assert difference.p == pytest.approx(oracle.pvalue)
    assert Look(3, 3).cautious(difference) == difference
    of_look = Look(3, 10).cautious(difference)
    assert (of_look.mean, of_look.error) == (difference.mean, difference.error)
    assert of_look.freedom == pytest.approx(4)
    assert of_look.p == pytest.approx(2 * stats.t.sf(abs(oracle.statistic), 4))
    few = estimate(first[:, :3], np.zeros((3, 3)))
    assert Look(3, 10).cautious(few).freedom == pytest.approx(2)


def seen(mean: float, n_seeds: int, spread: float = 1.0):
    """A difference of two ways to train that vary by their seeds alone; of each side the mean of seeds
    that lie ``spread`` about it.
    """
    of_seeds = np.resize([-spread, spread], n_seeds)[:, None] * np.ones((1, 50))
    return estimate(mean + of_seeds, of_seeds)


def test_the_chance_of_the_last_look_is_what_draws_of_further_seeds_say():
    """Under no belief before: the true difference is drawn about what is seen, and the seeds to come
    about it.
    """
    look = Look(4, 10)
    rng = np.random.default_rng(0)
    for mean in (0.1, 0.8, -2.0):
        difference = seen(mean, 4)
        true = rng.normal(mean, difference.error, 100_000)
        to_come = true + difference.error * math.sqrt(4 / 6) * rng.normal(size=100_000)
        last = (4 * mean + 6 * to_come) / 10
        at_the_end = difference.planned(50, 10)
        critical = at_the_end.error * stats.t.isf(Look(10, 10).level(0.05) / 2, at_the_end.freedom)
        drawn = (abs(last) > critical).mean()
        assert look.chance(difference, 0.05) == pytest.approx(drawn, abs=0.006)
    assert look.chance(seen(0.5, 4), 0.05) == pytest.approx(look.chance(seen(-0.5, 4), 0.05))


def test_at_the_last_look_the_chance_is_what_it_shows():
    rng = np.random.default_rng(0)
    n_shown = 0
    for _ in range(50):
        difference = estimate(rng.normal(0.4, 1, (4, 30)), rng.normal(0, 1, (4, 30)))
        shown = difference.p <= Look(4, 4).level(0.05)
        assert Look(4, 4).chance(difference, 0.05) == float(shown)
        n_shown += shown
    assert 5 < n_shown < 45


@pytest.mark.parametrize(("budget", "alpha"), [(28, 0.05), (40, 0.05), (16, 0.05 / 9), (100, 0.05)])
def test_the_first_look_of_a_large_budget_has_a_level_below_the_rounding_of_1(budget, alpha):
    look = Look(2, budget)
    level = look.level(alpha)
    assert 0 <= level < 2e-16
    difference = look.cautious(seen(0.3, 2))
    assert difference.detectable(level) > difference.detectable(1e-12) > 1
    low, high = difference.interval(1 - level)
    assert low < -1 and high > 1
    assert 0 < look.repeated_p(difference.p) <= 1
    assert 0 <= look.chance(difference, alpha) <= 1


def test_levels_so_low_that_nothing_is_shown():
    difference = seen(0.3, 4)
    assert difference.detectable(0.0) == math.inf
    assert difference.detectable(5e-324) == math.inf, "the quantile is infinite"
    assert Look(4, 4).chance(difference, 0.0) == 0.0
    assert estimate(np.ones((2, 50)), np.zeros((2, 50))).interval(1.0) == (1.0, 1.0)


def test_without_spread_what_is_seen_is_what_will_be():
    assert Look(2, 10).chance(seen(0.1, 2, spread=0.0), 0.05) == 1.0
    assert Look(2, 10).chance(seen(0.0, 2, spread=0.0), 0.05) == 0.0
    few_queries = estimate(np.array([[1.0, 1.0], [1.0, 1.0]]), np.zeros((2, 2)))
    assert Look(2, 10).chance(few_queries, 0.05) == 0.0, "two queries can show nothing"


def test_a_motion_without_a_drift_crosses_some_bound_with_the_probability_alpha():
    shares = np.arange(2, 11) / 10
    steps = np.sqrt(np.diff(shares, prepend=0.0))
    rng = np.random.default_rng(0)
    z = np.cumsum(rng.normal(size=(100_000, 9)) * steps, axis=1) / np.sqrt(shares)
    p = 2 * stats.norm.sf(abs(z))
    at_some_look = (p <= [look.level(0.05) for look in looks(10)]).any(axis=1).mean()
    assert at_some_look == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 100_000))
    assert (p <= 0.05).any(axis=1).mean() > 0.15


@pytest.fixture(scope="module")
def simulation():
    """The names of experiments/until_shown.py."""
    return runpy.run_path(str(ROOT / "experiments/until_shown.py"))


def test_grids_without_a_difference_are_called_different_as_seldom_as_by_one_look(simulation):
    """Of 300 grids some 14 ± 4; by p below 0.05 at each look some 50. The first look, whose level is
    the lowest, shows none: two seeds that are alike by chance would.
    """
    grids = simulation["simulated"](simulation["SPREADS"]["seeds alone"], 0.0, 10, 300)
    assert grids.shown.any(axis=1).mean() <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 300)
    assert (grids.p < 0.05).any(axis=1).mean() > 0.12
    few_seeds = simulation["simulated"](simulation["SPREADS"]["seeds alone"], 0.0, 3, 300)
    assert few_seeds.shown[:, 0].mean() == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["seeds alone", "as measured", "queries most"])
def test_2000_grids_hold_the_level_and_save_seeds(name, simulation):
    spread = simulation["SPREADS"][name]
    for budget in (3, 10):
        grids = simulation["simulated"](spread, 0.0, budget)
        share = grids.shown.any(axis=1).mean()
        assert share <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 2000)
    grids = simulation["simulated"](spread, 2.0, 10)
    share, seeds = simulation["outcome"](grids.shown | (grids.chance < FUTILE), grids.shown)
    assert seeds <= 0.7 * 10 and share > 0.3
