r"""Thresholds with a promise: split conformal prediction over queries.

A threshold :math:`t` keeps the documents of score :math:`\ge t`. Of each of :math:`n` answerable
queries one number decides whether it is served: the lowest score of its relevant documents, where
all of them are to stay, or the highest, where one is enough. Let these be
:math:`m_{(1)} \le \dots \le m_{(n)}`. If a new query is exchangeable with those, then under

.. math:: t = m_{(k)}, \qquad k = \lfloor (1 - p)(n + 1) \rfloor

it is served with a probability of at least :math:`p`, and of at most
:math:`p + \frac{1}{n + 1}` where no two scores are equal. Documents of one query are not
exchangeable with those of others, so the query is the unit, and not the document.

The sums of a score are rounded otherwise in a batch of another shape, by a few units in the last place
of float32. Lest a document at the threshold be lost by that, the threshold is lower than :math:`m_{(k)}`
by :data:`ROUNDING` of the largest :math:`|m_i|`.

References:
    Vovk, Gammerman & Shafer (2005), Algorithmic learning in a random world. Angelopoulos & Bates
    (2023), Conformal prediction: a gentle introduction.
"""

from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from math import ceil, floor
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ltr.errors import InputError

Kept = Literal["all", "one"]  # of the relevant documents of a query
KINDS: tuple[Kept, ...] = ("all", "one")

PROMISES = (0.8, 0.9, 0.95)  # that are shown
SHOWN = 0.9  # the one of them that examples and checks take
ROUNDING = 1e-5  # of the largest number; some 80 units in the last place of float32


def check_promise(promise: float, option: str = "keep") -> None:
    """Raise an InputError for a promise that is not between 0 and 1."""
    if not 0 < promise < 1:
        raise InputError(
            f"{option} must be between 0 and 1, the share of queries that keep their relevant documents, got {promise:g}",
            option=option,
        )


def rank_of_threshold(promise: float, n: int) -> int:
    """k: which of n numbers, the lowest first, the threshold is. 0: none, so n is too small.

    It is counted in fractions: in floating point, ``(1 - 0.9) * 10`` is below 1.

    >>> [rank_of_threshold(0.9, n) for n in (8, 9, 18, 19)]
    [0, 1, 1, 2]
    """
    return floor((1 - Fraction(repr(float(promise)))) * (n + 1))


def queries_needed(promise: float) -> int:
    """The fewest answerable queries for which there is a threshold.

    >>> [queries_needed(promise) for promise in (0.8, 0.9, 0.95)]
    [4, 9, 19]
    """
    return ceil(1 / (1 - Fraction(repr(float(promise))))) - 1


def threshold(numbers: ArrayLike, promise: float) -> float:
    """The threshold for a promise, lower by :data:`ROUNDING` than the number that it is. It is a float32
    number, so that scores in float32 are compared with it as it stands.

    Args:
        numbers: ``[n]``, one of each answerable query, in any order:
            :attr:`ltr.use.calibration.labelled_scores.LabelledScores.lowest_relevant`, or
            ``highest_relevant``.
        promise: p, the share of queries that are to be served.

    Raises:
        InputError: for a promise that is not between 0 and 1, too few queries, or a number that is
            not finite.

    Example:
        >>> round(threshold([0.9, 0.1, 0.5, 0.7], promise=0.8), 6)  # the lowest of four, less 1e-5 * 0.9
        0.099991
        >>> round(threshold([0.9, 0.1, 0.5, 0.7], promise=0.6), 6)  # the second lowest
        0.499991
    """
    check_promise(promise)
    known = np.sort(np.asarray(numbers))
    k = rank_of_threshold(promise, len(known))
    if k == 0:
        raise InputError(
            f"a promise of {promise:g} needs at least {queries_needed(promise)} dev queries with a relevant document, got {len(known)}; lower it, or judge more",
            option="keep",
        )
    if not np.isfinite(known).all():
        raise InputError("scores must be finite to have a threshold, got NaN or infinity")
    slack = ROUNDING * np.abs(known).max()
    return float(np.float32(known[k - 1] - slack))


def rounded_down(value: float, digits: int) -> str:
    """A threshold as a text of so many significant digits that keeps no less than it does.

    >>> rounded_down(1.23456, 4), rounded_down(-1.23456, 4), rounded_down(-0.5, 4)
    ('1.234', '-1.235', '-0.5')
    """
    rounded = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal_from_float(value)
    return f"{float(rounded):.{digits}g}"


def coverage_interval(promise: float, n: int, level: float = 0.9) -> tuple[float, float]:
    r"""Between which values the share of new queries that are served lies, for a threshold that was
    drawn once, in ``level`` of all draws of n dev queries.

    The promise holds in the mean over draws. For one draw the share is
    :math:`\mathrm{Beta}(n + 1 - k, k)`, where no two scores are equal.

    >>> low, high = coverage_interval(0.9, n=100)
    >>> f"{low:.3f} to {high:.3f}"
    '0.848 to 0.945'
    """
    k = rank_of_threshold(promise, n)
    if k == 0:
        return 1.0, 1.0
    low, high = special.betaincinv(n + 1 - k, k, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
