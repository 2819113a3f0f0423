"""What the values of a measure lie between: no interval and no difference goes beyond."""

import math

from ltr.compare.statistics import Estimate
from ltr.metrics import bare_name

FROM_0_TO_1 = ("nDCG", "nDCG_exp", "RR", "AP", "P", "R", "Success", "Judged", "ERR")
RANGES = dict.fromkeys(FROM_0_TO_1, (0.0, 1.0))
RANGES |= {"tau": (-1.0, 1.0), "swapped_pairs": (0.0, math.inf)}


def interval_of_mean(mean: Estimate, metric: str) -> tuple[float, float]:
    """The 95 % interval of a mean, as far as the metric has such values."""
    least, most = _range_of(metric)
    low, high = mean.interval()
    return max(low, least), min(high, most)


def interval_of_difference(
    difference: Estimate, metric: str, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of a difference, as far as two values of the metric differ by so much."""
    least, most = _range_of(metric)
    low, high = difference.interval(confidence)
    return max(low, least - most), min(high, most - least)


def infinite_beyond_range(difference: float, metric: str) -> float:
    """A difference that data could show; infinite where no two values of the metric differ by it."""
    least, most = _range_of(metric)
    return difference if difference <= most - least else math.inf


def _range_of(metric: str) -> tuple[float, float]:
    return RANGES.get(bare_name(metric), (-math.inf, math.inf))
