r"""A comparison that is looked at after each seed: levels of p at which all looks together err as seldom as
one.

Seeds are trained one after the other, at most K of them. After k = 2, 3, … K of them somebody looks at p, and
stops once a difference is shown. A look at one level each time errs in far more than this share of the
comparisons. So each look has a level of its own, which follows from k, K and alpha alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import optimize, special

from ltr.compare.statistics import ROUNDING, Estimate

FIRST = 2  # seeds at the first look: one says nothing about other seeds
FUTILE = 0.15  # a grid is stopped where the last look shows a difference with a smaller chance
NODES = 200  # of an integral over what is still open
FARTHEST = 9.0  # standard deviations that it reaches; less than 1e-18 lies beyond
LEAST_SPENT = 1e-40  # a look that may spend less shows nothing
LEAST_P = 1e-12  # a smaller repeated p is not told from it


@dataclass(frozen=True)
class Look:
    r"""A look at the difference of two ways to train, whose seeds are trained one after the other.

    Args:
        n_seeds: of each so far, k, at least 2.
        budget: the most seeds of each, K, decided before the first look.

    Raises:
        ValueError: for fewer than two seeds, or more than the budget.
    """

    n_seeds: int
    budget: int

    def __post_init__(self) -> None:
        if not FIRST <= self.n_seeds <= self.budget:
            raise ValueError(f"a look must be at 2 to {self.budget} seeds, got {self.n_seeds}")

    @property
    def is_last(self) -> bool:
        """Whether the budget is spent."""
        return self.n_seeds == self.budget

    def level(self, alpha: float) -> float:
        """The level of p at this look: without a difference, the chance that p is at most the level at
        any look is ``alpha``, see :func:`levels`.

        It is assumed that the difference varies from look to look as a mean of k independent values
        does. What the queries add to it is the same at all looks: it makes them more alike, so that
        errors are rarer (Slepian's inequality). The levels are those of a normal distribution, and are
        held against p values of Student's, which is nearly right (the significance level approach,
        Jennison & Turnbull 2000, chapter 4.4). ``experiments/looks.py`` says how nearly.

        Example:
            >>> [round(Look(k, 5).level(0.05), 4) for k in (2, 3, 4, 5)]
            [0.0008, 0.0074, 0.022, 0.0423]
        """
        return _levels_of_budget(self.budget, alpha)[self.n_seeds - FIRST]

    def cautious(self, difference: Estimate) -> Estimate:
        """A difference as this look may take it: before the last one, its queries tell its variance
        with no more degrees of freedom than its seeds do.

        The first two seeds of a side may be alike by chance. Then Satterthwaite's degrees of freedom are
        nearly those of the queries, and p is far too small for the low levels of early looks: at a
        level of 0.0008, 0.8 % of 3,000 simulated grids without a difference had such a p.
        """
        if self.is_last:
            return difference
        of_queries = difference.query_freedom
        if of_queries is None:
            of_queries = difference.n_queries - 1
        of_seeds = sum(n_seeds - 1 for n_seeds in difference.n_seeds)
        return replace(difference, query_freedom=float(min(of_queries, of_seeds)))

    def repeated_p(self, p: float) -> float:
        """The smallest alpha whose level at this look is ``p``: a p value that holds at every look.
        Held against alpha, or corrected by Holm first, it shows what p shows that is held against the
        level.

        References:
            Jennison & Turnbull (1984), Repeated confidence intervals for group sequential clinical
            trials.

            Maurer & Bretz (2013), Multiple testing in group sequential trials using graphical
            approaches: Holm's correction at each look.
        """
        if p >= self.level(1.0):
            return 1.0
        if p <= self.level(LEAST_P):
            return LEAST_P

        def too_much(log_alpha: float) -> float:
            return self.level(math.exp(log_alpha)) / p - 1

        root = optimize.brentq(too_much, math.log(LEAST_P), 0.0, xtol=1e-6)
        return min(1.0, math.exp(float(root)))

    def chance(self, difference: Estimate, alpha: float) -> float:
        r"""The probability that the last look shows a difference, by what this one has seen: its
        predictive power.

        With :math:`v_k` the variance of the difference now and :math:`v_K` that of K seeds, the last
        look will see a mean of the variance :math:`v_k - v_K` about that of now, where nothing was
        known before. It shows what is further from 0 than the critical difference at its level.

        References:
            Spiegelhalter, Freedman & Blackburn (1986), Monitoring clinical trials: conditional or
            predictive power?
        """
        at_the_end = difference
        if not self.is_last:
            at_the_end = difference.planned(difference.n_queries, self.budget)
        level = Look(self.budget, self.budget).level(alpha)
        if difference.least_p > level:
            return 0.0
        critical = -float(special.stdtrit(at_the_end.freedom, level / 2)) * at_the_end.error
        if not math.isfinite(critical):
            return 0.0
        seen = abs(difference.mean)
        spread = math.sqrt(max(0.0, difference.error**2 - at_the_end.error**2))
        if spread < ROUNDING:
            return float(seen > max(critical, ROUNDING))
        return float(
            special.ndtr((seen - critical) / spread) + special.ndtr((-seen - critical) / spread)
        )


@cache
def _levels_of_budget(budget: int, alpha: float) -> tuple[float, ...]:
    """Of the looks at 2, 3, … seeds."""
    return levels([n_seeds / budget for n_seeds in range(FIRST, budget + 1)], alpha)


def spent(share: float, alpha: float) -> float:
    r"""How much of ``alpha`` the looks have spent when a share t of the seeds is trained,

    .. math:: 2 \cdot 2\,\bigl(1 - \Phi(z_{1 - \alpha / 4} / \sqrt{t})\bigr),

    half of it on either side. Early looks spend next to nothing, and leave the last one nearly all of
    it.

    References:
        Lan & DeMets (1983), Discrete sequential boundaries for clinical trials: the function that
        gives nearly the boundaries of O'Brien & Fleming (1979).

    Example:
        >>> [round(spent(t, 0.05), 4) for t in (0.2, 0.5, 1.0)]
        [0.0, 0.0031, 0.05]
    """
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(share)))


def levels(shares: Sequence[float], alpha: float) -> tuple[float, ...]:
    r"""The two-sided levels of p at looks, that spend ``alpha`` as :func:`spent` says.

    Without a difference, :math:`z_k \sqrt{t_k}` is a Brownian motion at the times t. The density of what
    no look so far has shown is carried from look to look by Gauss-Legendre quadrature; the bound of
    a look is where the mass beyond it, on both sides, is what the look may spend.

    Args:
        shares: t of each look: the share of the seeds that is trained; rising, at most 1.
        alpha: of all looks together.

    References:
        Armitage, McPherson & Rowe (1969), Repeated significance tests on accumulating data.

        Jennison & Turnbull (2000), Group sequential methods with applications to clinical trials,
        chapter 19.

    Example:
        >>> [round(level, 4) for level in levels([0.5, 1.0], 0.05)]
        [0.0031, 0.049]
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    places = np.zeros(1)  # of the motion
    masses = np.ones(1)  # of what is still open, at these places
    before = 0.0  # the share of the look before
    of_looks = []
    for share in shares:
        step = math.sqrt(share - before)
        to_spend = spent(share, alpha) - (spent(before, alpha) if before else 0.0)
        bound = math.inf
        if to_spend >= LEAST_SPENT:
            bound = _bound(to_spend, places, masses, step)
        of_looks.append(2 * float(special.ndtr(-bound / math.sqrt(share))))
        reach = min(bound, FARTHEST * math.sqrt(share))
        next_places = reach * nodes
        steps = (next_places[:, None] - places) / step
        densities = np.exp(-(steps**2) / 2) / (math.sqrt(2 * math.pi) * step)
        masses = (densities @ masses) * weights * reach
        places = next_places
        before = share
    return tuple(of_looks)


def _bound(to_spend: float, places: np.ndarray, masses: np.ndarray, step: float) -> float:
    """The bound that the motion crosses, up or down, with the probability ``to_spend``."""

    def too_much(bound: float) -> float:
        above = special.ndtr((places - bound) / step)
        below = special.ndtr((-places - bound) / step)
        return float(masses @ (above + below)) / to_spend - 1

    if too_much(0.0) <= 0:
        return 0.0  # all that is open is spent, but for rounding
    high = step
    while too_much(high) > 0:
        high *= 2
    return float(optimize.brentq(too_much, 0.0, high, xtol=1e-12))
