"""Prediction-powered differences: against sums by hand, the authors' package, laws, and simulations."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ltr.compare.machine_labels import powered_difference
from ltr.compare.statistics import estimate

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("simulation", ROOT / "experiments/machine_labels.py")
simulation = importlib.util.module_from_spec(spec)
sys.modules["simulation"] = simulation
spec.loader.exec_module(simulation)

N_HUMAN = 30
N_MACHINE = 200


def drawn(n_seeds: int = 1, correlation: float = 0.8, seed: int = 0):
    """Values of two rankers by people, and by a machine on the same and on other queries."""
    rng = np.random.default_rng(seed)
    shape = (2, n_seeds, N_HUMAN + N_MACHINE)
    truth = rng.normal(0.1, 1, shape)
    machine = correlation * truth + (1 - correlation**2) ** 0.5 * rng.normal(0.5, 1, shape)
    return (
        tuple(truth[:, :, :N_HUMAN]),
        tuple(machine[:, :, :N_HUMAN]),
        tuple(machine[:, :, N_HUMAN:]),
    )


def test_it_is_the_sum_of_its_definition():
    human, machine, machine_only = drawn()
    y = (human[0] - human[1])[0]
    x = (machine[0] - machine[1])[0]
    u = (machine_only[0] - machine_only[1])[0]
    weights = []
    for left_out in range(N_HUMAN):
        kept = np.arange(N_HUMAN) != left_out
        slope = np.cov(x[kept], y[kept])[0, 1] / x[kept].var(ddof=1)
        weights.append(slope * N_MACHINE / (N_MACHINE + N_HUMAN))
    weight = np.mean(weights)
    found = powered_difference(human, machine, machine_only)
    assert found.weight == pytest.approx(weight)
    assert found.both.mean == pytest.approx(np.mean(y - weights * x) + weight * u.mean())
    of_humans = (y - weights * (x - u.mean())).var(ddof=1) / N_HUMAN
    of_machine = weight**2 * u.var(ddof=1) / N_MACHINE
    assert found.both.error**2 == pytest.approx(of_humans + of_machine)
    freedom = found.both.error**4 / (of_humans**2 / 28 + of_machine**2 / 199)
    assert found.both.freedom == pytest.approx(freedom)
    assert found.humans == estimate(*human)
    assert found.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])


# ppi_mean_pointestimate and ppi_mean_ci of ppi-python 0.2.3, with lam=0.7606.
THEIRS = (0.11002941, -0.23151536, 0.45157419)


def test_it_is_near_the_package_of_the_method():
    """That has one weight for all queries, variances that divide by n, and the normal distribution."""
    mean, low, high = THEIRS
    found = powered_difference(*drawn())
    assert found.weight == pytest.approx(0.7606, abs=1e-4)
    assert found.both.mean == pytest.approx(mean, abs=0.05 * found.both.error)
    # Ours is wider: Student's distribution at 30 queries, and what the weight is unsure of.
    ours_low, ours_high = found.both.interval()
    assert 1 < (ours_high - ours_low) / (high - low) < 1.1


def numbers(found):
    both = found.both
    return both.mean, both.error, both.freedom, both.p


def test_what_does_not_matter():
    """A judge that gives more to one ranker everywhere, another scale of its labels, and the order of
    the rankers but for the sign.
    """
    human, machine, machine_only = drawn(n_seeds=2)
    found = powered_difference(human, machine, machine_only)
    lenient = powered_difference(
        human, (machine[0] + 7, machine[1]), (machine_only[0] + 7, machine_only[1])
    )
    scaled = powered_difference(
        human, tuple(5 * values for values in machine), tuple(5 * values for values in machine_only)
    )
    turned = powered_difference(human[::-1], machine[::-1], machine_only[::-1])
    assert numbers(lenient) == pytest.approx(numbers(found))
    assert numbers(scaled) == pytest.approx(numbers(found))
    assert (-turned.both.mean, *numbers(turned)[1:]) == pytest.approx(numbers(found))


@pytest.mark.parametrize("says", ["the opposite", "nothing"])
def test_a_judge_that_does_not_help_is_not_followed(says):
    human, machine, machine_only = drawn()
    sign = -1 if says == "the opposite" else 0
    machine = tuple(sign * values for values in machine)
    machine_only = tuple(sign * values for values in machine_only)
    found = powered_difference(human, machine, machine_only)
    assert found.weight == 0 and found.both.mean == pytest.approx(found.humans.mean)
    assert found.both.interval() == pytest.approx(found.humans.interval(), rel=1e-3)
    assert found.planned(100).error == pytest.approx(
        found.humans.planned(N_HUMAN + 100, 1).error, rel=1e-9
    )


def test_seeds_that_are_alike_add_nothing():
    once = drawn()
    twice = [tuple(np.repeat(values, 2, axis=0) for values in of_both) for of_both in once]
    one = powered_difference(*once).both
    two = powered_difference(*twice).both
    assert (two.mean, two.error, two.freedom) == pytest.approx((one.mean, one.error, one.freedom))
    assert two.seed_variances == pytest.approx((0, 0)) and one.seed_variances == ()


def test_seeds_that_differ_widen_it_as_they_do_without_a_judge():
    """Where all seeds of a ranker differ by the same at every query, and the judge sees it, the variance
    is that of the queries and of the seeds: 1 and 3 are 2 apart, of their mean 2 / 2.
    """
    human, machine, machine_only = drawn()
    shift = np.array([[1.0], [3.0]])
    with_seeds = [
        (values[0] + shift, values[1] + 0 * shift) for values in (human, machine, machine_only)
    ]
    one = powered_difference(human, machine, machine_only).both
    two = powered_difference(*with_seeds).both
    assert two.seed_variances == pytest.approx((1, 0)) and two.mean == pytest.approx(one.mean + 2)
    assert two.error**2 == pytest.approx(one.error**2 + 1)


def test_more_labels_of_people_are_foretold():
    """The error of three times as many judged queries, foretold by a third of them."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(2, 1, 2400))
    machine = 0.8 * truth + 0.6 * rng.normal(size=truth.shape)

    def found(n):
        return powered_difference(
            tuple(truth[:, :, :n]), tuple(machine[:, :, :n]), tuple(machine[:, :, n:])
        )

    few = found(200)
    assert few.planned(0).error == pytest.approx(few.both.error)
    assert few.planned(400).error == pytest.approx(found(600).both.error, rel=0.08)
    assert few.planned(400).error < 0.75 * few.both.error


def test_what_can_not_be_told_is_refused():
    human, machine, machine_only = drawn()
    few = tuple(values[:, :4] for values in human)
    with pytest.raises(ValueError, match="5 judged queries or more and two others or more"):
        powered_difference(few, few, machine_only)
    with pytest.raises(ValueError, match=r"\[S, n\], \[S, n\] and \[S, N\]"):
        powered_difference(few, machine, machine_only)
    broken = (machine[0] * np.nan, machine[1])
    with pytest.raises(ValueError, match="must be finite"):
        powered_difference(human, broken, machine_only)
    assert np.isnan(powered_difference(human, (0 * machine[0],) * 2, machine_only).correlation)
    flat = replace(powered_difference(human, machine, machine_only), correlation=np.nan)
    assert flat.planned(100).error < flat.both.error


# Of simulations and of seeds.
CASES = [
    (200, 1),
    pytest.param(2000, 1, marks=pytest.mark.long),
    pytest.param(2000, 3, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def judged():
    """By the kind of judge, the values of a population by people and by the machine."""
    rng = np.random.default_rng(0)
    of = simulation.Population.drawn(rng, 20_000)
    human = of.values(of.grades)
    return {name: (human, machine) for name, machine in simulation.judges(of, rng)}


@pytest.mark.parametrize("n_simulations, n_seeds", CASES)
@pytest.mark.parametrize("judge", [*simulation.JUDGES, "correlation 0.7"])
def test_intervals_hold_the_truth(judged, judge, n_simulations, n_seeds):
    """95 of 100, whatever the judge's errors; the machine alone is wrong nearly always. Two hundred
    draws tell a wrong sign or variance, and no more.
    """
    rng = np.random.default_rng(1)
    found = simulation.simulated(*judged[judge], rng, n_simulations, n_seeds=n_seeds)
    # Of 2,000 draws a share varies by 0.5 %, of 200 by 1.5 %.
    assert abs(found.both - 0.95) <= (0.015 if n_simulations == 2000 else 0.05)
    assert abs(found.error) < 4
    if judge == "noise":
        assert 0.995 < found.width < 1.02
    elif judge == "correlation 0.7" and n_seeds == 1:
        ideal = (1 - 0.49 * 2000 / 2100) ** 0.5
        assert ideal - 0.01 < found.width < 0.75
    else:
        assert found.width < 0.8
    if n_seeds == 1:
        assert found.machine < 0.5
