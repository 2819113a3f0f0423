"""How often does a grid that is looked at after each seed err, and how many seeds does it save?  python
experiments/until_shown.py

Two ways to train are simulated by the values of their queries and seeds, 2,000 times each, and looked at
after 2, 3, … seeds of a budget. First without a difference: the share of grids in which a look shows one; by
p below 0.05 each time, by the levels of ltr.compare.looks, and by e-values. Then with differences: how often
they are shown, and with how many seeds. The spreads are those of three kinds of data: where seeds alone vary
(the looks are then as independent as they can be), those measured in experiments/measured/heart.tar.xz, and
where the queries vary most.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from ltr.compare.looks import FIRST, FUTILE, Look
from ltr.compare.statistics import Estimate, estimate

SIMULATIONS = 2000
ALPHA = 0.05
MIXED_OVER = 0.1  # of the e-values: the value that shows most at the last look


class Spread(NamedTuple):
    """What the values of two ways to train vary by.

    Attributes:
        queries: how many.
        of_seeds: deviation of the mean from seed to seed.
        of_both: deviation of a value beside the means of its query and its seed.
        of_queries: deviation of the true difference from query to query.
    """

    queries: int
    of_seeds: float
    of_both: float
    of_queries: float

    def error(self, n_seeds: int) -> float:
        """The standard error of the difference of so many seeds each."""
        of_one_seed = self.of_seeds**2 + self.of_both**2 / self.queries
        return math.sqrt(self.of_queries**2 / self.queries + 2 * of_one_seed / n_seeds)


SPREADS = {
    "seeds alone": Spread(100, 0.02, 0.1, 0.0),
    "as measured": Spread(3001, 0.001, 0.07, 0.05),
    "queries most": Spread(100, 0.005, 0.1, 0.15),
}


class Grids(NamedTuple):
    """What the looks at simulated grids see, ``[G, L]`` each.

    Attributes:
        p: of each look by itself.
        shown: whether p, as the look takes it, is at most its level.
        chance: of the last look to show a difference.
    """

    p: np.ndarray
    shown: np.ndarray
    chance: np.ndarray


def differences(
    rng: np.random.Generator, spread: Spread, effect: float, budget: int
) -> list[Estimate]:
    """What each look at a grid sees.

    Args:
        rng: of the draws.
        spread: of the values.
        effect: the true difference, in standard errors with the whole budget.
        budget: seeds.
    """
    shape = (budget, spread.queries)
    sides = []
    for mean in (effect * spread.error(budget) + rng.normal(0, spread.of_queries, shape[1]), 0.0):
        of_seeds = rng.normal(0, spread.of_seeds, (budget, 1))
        sides.append(mean + of_seeds + rng.normal(0, spread.of_both, shape))
    first, second = sides
    return [estimate(first[:n], second[:n]) for n in range(FIRST, budget + 1)]


def simulated(spread: Spread, effect: float, budget: int, n_grids: int = SIMULATIONS) -> Grids:
    """So many grids, by the seed 0."""
    rng = np.random.default_rng(0)
    looks = [Look(n, budget) for n in range(FIRST, budget + 1)]
    rows = []
    for _ in range(n_grids):
        for look, seen in zip(looks, differences(rng, spread, effect, budget), strict=True):
            is_shown = look.cautious(seen).p <= look.level(ALPHA)
            rows.append((seen.p, is_shown, look.chance(seen, ALPHA)))
    p, shown, chance = np.array(rows).reshape(n_grids, len(looks), 3).transpose(2, 0, 1)
    return Grids(p, shown.astype(bool), chance)


def outcome(stops: np.ndarray, shown: np.ndarray) -> tuple[float, float]:
    """The share of grids that show a difference where they stop, and the mean number of their seeds.

    Args:
        stops: ``[G, L]``, whether a look would stop the grid; the last one always does.
        shown: ``[G, L]``, whether a look shows a difference.
    """
    stops = stops.copy()
    stops[:, -1] = True
    last_looks = stops.argmax(axis=1)
    shows = shown[np.arange(len(shown)), last_looks]
    return float(shows.mean()), float(last_looks.mean()) + FIRST


def shown_by_e_values(p: np.ndarray) -> np.ndarray:
    """``[G, L]``: whether the mixture of likelihood ratios of Robbins (1970) over normal effects is at
    least 1 / alpha: valid at every look, of which nobody needs to know the last one.
    """
    n_looks = p.shape[1]
    shares = np.arange(FIRST, n_looks + FIRST) / (n_looks + FIRST - 1)
    z = -special.ndtri(p / 2)
    scale = np.sqrt(MIXED_OVER / (shares + MIXED_OVER))
    return scale * np.exp(z**2 * shares / (2 * (shares + MIXED_OVER))) >= 1 / ALPHA


def main() -> None:
    """Print the tables."""
    print("| varies | budget | one look, at the end | p < 0.05 at some look ", end="")
    print("| levels | and futility | e-values |\n|" + " --- |" * 7)
    for name, spread in SPREADS.items():
        for budget in (3, 5, 10):
            grids = simulated(spread, 0.0, budget)
            small = grids.p < ALPHA
            stops = grids.shown | (grids.chance < FUTILE)
            shares = (
                small[:, -1].mean(),
                small.any(axis=1).mean(),
                grids.shown.any(axis=1).mean(),
                outcome(stops, grids.shown)[0],
                shown_by_e_values(grids.p).any(axis=1).mean(),
            )
            row = " | ".join(f"{share:.4f}" for share in shares)
            print(f"| {name} | {budget} | {row} |", flush=True)
    print("\n| varies | difference | 10 seeds, one look: shown | levels: shown | seeds ", end="")
    print("| and futility: shown | seeds | e-values: shown | seeds |\n|" + " --- |" * 9)
    for name, spread in SPREADS.items():
        for effect in (2.0, 3.0, 4.0):
            grids = simulated(spread, effect, 10)
            cells = [f"{(grids.p[:, -1] < ALPHA).mean():.3f}"]
            by_e_values = shown_by_e_values(grids.p)
            for stops, shown in (
                (grids.shown, grids.shown),
                (grids.shown | (grids.chance < FUTILE), grids.shown),
                (by_e_values, by_e_values),
            ):
                share, seeds = outcome(stops, shown)
                cells += [f"{share:.3f}", f"{seeds:.2f}"]
            print(f"| {name} | {effect:g} errors | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
