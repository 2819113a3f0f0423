"""Monotone maps from scores to probabilities of relevance, and how far off probabilities are."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

BINS = 15


@dataclass(frozen=True)
class Logistic:
    r"""Platt's map, :math:`\sigma(a s + b)`.

    Args:
        slope: a, above 0.
        intercept: b.

    References:
        Platt (1999), Probabilistic outputs for support vector machines.

    Example:
        >>> Logistic(slope=2.0, intercept=-1.0)([0.5, 3.0])
        array([0.5       , 0.99330715])
    """

    slope: float
    intercept: float
    kind: Literal["logistic"] = "logistic"

    def __call__(self, scores: ArrayLike) -> np.ndarray:
        """Probabilities ``[N]`` float64 of scores ``[N]``."""
        logits = self.slope * np.asarray(scores, np.float64) + self.intercept
        probabilities: np.ndarray = expit(logits)
        return probabilities

    def of_scaled(self, factor: float) -> "Logistic":
        """The map of scores that are multiplied by a factor above 0."""
        return replace(self, slope=self.slope / factor)


@dataclass(frozen=True)
class Isotonic:
    """A map that never falls, linear between points.

    Args:
        scores: of the points, ascending.
        probabilities: of these, never falling.

    References:
        Zadrozny & Elkan (2002), Transforming classifier scores into accurate multiclass probability
        estimates.

    Example:
        >>> Isotonic(scores=[0.0, 1.0], probabilities=[0.1, 0.3])([-1.0, 0.5, 2.0])
        array([0.1, 0.2, 0.3])
    """

    scores: list[float]
    probabilities: list[float]
    kind: Literal["isotonic"] = "isotonic"

    def __call__(self, scores: ArrayLike) -> np.ndarray:
        """Probabilities ``[N]`` float64 of scores ``[N]``."""
        given = np.asarray(scores, np.float64)
        probabilities: np.ndarray = np.interp(given, self.scores, self.probabilities)
        return probabilities

    def of_scaled(self, factor: float) -> "Isotonic":
        """The map of scores that are multiplied by a factor above 0."""
        return replace(self, scores=[score * factor for score in self.scores])


ScoreMap = Logistic | Isotonic


def calibration_error(
    probabilities: np.ndarray, is_relevant: np.ndarray, bins: int = BINS
) -> float:
    r"""The expected calibration error, over bins of about as many documents each:

    .. math:: \sum_b \frac{|b|}{D} \Bigl| \frac{1}{|b|} \sum_{i \in b} (p_i - y_i) \Bigr|

    Most documents are irrelevant, so bins of equal width would hold nearly all of them in the first.
    Documents of equal probabilities are in one bin.

    References:
        Nguyen & O'Connor (2015), Posterior calibration and exploratory analysis for natural language
        processing models.

    Example:
        >>> calibration_error(np.array([0.25, 0.25, 0.75, 0.75]), np.array([0, 1, 1, 1]), bins=2)
        0.25
    """
    means, shares, counts = np.array(reliability(probabilities, is_relevant, bins)).T
    return float(np.abs(means - shares) @ counts / counts.sum())


def reliability(
    probabilities: np.ndarray, is_relevant: np.ndarray, bins: int = BINS
) -> list[tuple[float, float, int]]:
    """By bin, those of :func:`calibration_error`: the mean probability, the share of relevant
    documents, and how many there are.
    """
    order = np.argsort(probabilities, kind="stable")
    p = probabilities[order]
    y = is_relevant[order].astype(np.float64)
    begins = _begins_of_bins(p, bins)
    counts = np.diff([*begins, len(p)])
    means = np.add.reduceat(p, begins) / counts
    shares = np.add.reduceat(y, begins) / counts
    return list(zip(means.tolist(), shares.tolist(), counts.tolist(), strict=True))


def _begins_of_bins(ascending: np.ndarray, bins: int) -> np.ndarray:
    """Where bins begin, in ascending probabilities, of which equal ones stay together."""
    cuts = np.linspace(0, len(ascending), bins + 1)[:-1].astype(np.int64)
    firsts = np.searchsorted(ascending, ascending[cuts], side="left")
    return np.unique(firsts)
