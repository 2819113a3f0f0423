r"""Few human labels and many of a machine: the difference of two rankers by prediction-powered inference.

Of n queries people have judged the documents, and a machine too; of N more the machine alone. A metric
then has two values for each ranker and query, one by the labels of people and one by those of the
machine. The machine's mean over many queries is precise and biased; what people say of n queries
measures the bias and takes it away, whatever it is:

.. math::
    \hat\theta = \frac{1}{n} \sum_{i=1}^{n} (y_i - \lambda_i x_i) + \bar\lambda\, \bar u

with :math:`y_i` the difference of the rankers at query i by people, :math:`x_i` the same by the machine,
:math:`\bar u` the machine's mean over the N other queries, and :math:`\lambda_i` how far the machine is
followed. It is not known and estimated from all judged queries but i, so the expectation of
:math:`\lambda_i (\bar u - x_i)` is exactly 0: the estimate is unbiased for any machine. The n queries
must be drawn as the N others are.

Letters of shapes: S seeds, n judged queries, N queries of the machine alone.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from ltr.compare.statistics import Estimate, differences_by_query, estimate

FEWEST = 5  # queries that people have judged; fewer tell no weight of the machine

# The values of two rankers by seed and query, each [S, Q].
Values = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class PoweredDifference:
    """The difference of two rankers with and without the labels of a machine.

    Attributes:
        humans: over the n queries that people have judged, by their labels alone.
        both: of these and the machine's labels together.
        weight: the mean of the weights, from 0 (the machine is not followed) upwards.
        correlation: of the differences by people and by the machine, over the n queries; NaN where
            either does not vary.
        n_human: n.
        n_machine: N.
        sample_p: of Welch's test whether the machine's differences have one mean over the n queries and
            over the others; small where people have judged no random sample.
    """

    humans: Estimate
    both: Estimate
    weight: float
    correlation: float
    n_human: int
    n_machine: int
    sample_p: float

    @property
    def relative_width(self) -> float:
        """The width of the interval of both over that of people alone; 1 where neither has one."""
        alone = _width(self.humans)
        return _width(self.both) / alone if alone > 0 else 1.0

    def planned(self, n_more: int) -> Estimate:
        r"""What both would be if people judged ``n_more`` queries more, first some of the machine's N.

        The variance over queries is in proportion to

        .. math:: \frac{1}{n} \Bigl(1 - \rho^2 \frac{N}{N + n}\Bigr),

        with :math:`\rho^2` as it is estimated here, less what n queries show by chance.
        """
        r_squared = 0.0 if math.isnan(self.correlation) else self.correlation**2
        explained = max(0.0, 1 - (1 - r_squared) * (self.n_human - 1) / (self.n_human - 2))
        if self.weight == 0:
            explained = 0.0

        def variance(n: int, n_machine: int) -> float:
            return (1 - explained * n_machine / (n_machine + n)) / n

        n = self.n_human + n_more
        ratio = variance(n, max(0, self.n_machine - n_more))
        ratio /= variance(self.n_human, self.n_machine)
        shared_variances = tuple(shared * ratio for shared in self.both.shared_variances)
        seed_variances = []
        for whole, shared in zip(self.both.seed_variances, self.both.shared_variances, strict=True):
            seed_variances.append(max(0.0, whole - shared) + shared * ratio)
        return replace(
            self.both,
            query_variance=self.both.query_variance * ratio,
            seed_variances=tuple(seed_variances),
            shared_variances=shared_variances,
            n_queries=n,
            # More queries take nothing away from what is known of the variance.
            query_freedom=max(float(n - 2), self.both.query_freedom or 0.0),
        )


def powered_difference(human: Values, machine: Values, machine_only: Values) -> PoweredDifference:
    r"""The difference of two rankers by the labels of people and of a machine, and what it varies by.

    The query is the unit: weights follow from the means over the seeds. Seeds add to the variance as in
    :func:`ltr.compare.statistics.estimate`, by the estimates :math:`\hat\theta_s` of each. Over the
    queries

    .. math::
        \mathrm{query\_variance} = \frac{\mathrm{var}(r_i)}{n} + \frac{\bar\lambda^2\, \mathrm{var}(u_j)}{N},
        \qquad r_i = y_i - \lambda_i (x_i - \bar u).

    As no query has a say in its own weight, :math:`r_i` varies by what the weights are unsure of, too.
    The degrees of freedom are Satterthwaite's, of n − 2 and N − 1.

    Args:
        human: of the two rankers, by the labels of people: ``[S, n]`` of each.
        machine: the same queries in the same order by the labels of the machine.
        machine_only: N others by the labels of the machine: ``[S, N]``.

    Raises:
        ValueError: for shapes that differ, values that are not finite, fewer than five judged queries,
            or fewer than two others.

    References:
        Angelopoulos, Bates, Fannjiang, Jordan & Zrnic (2023), Prediction-powered inference;
        Angelopoulos, Duchi & Zrnic (2023), PPI++: efficient prediction-powered inference, whose tuned
        weight is here estimated by leaving one out; Zrnic & Candès (2024), Cross-prediction-powered
        inference.

    Example:
        A machine that is off by the same everywhere is as good as people:

        >>> truth = np.random.default_rng(0).normal(0.1, 1, (1, 1010))
        >>> none = np.zeros((1, 1010))
        >>> found = powered_difference(
        ...     (truth[:, :10], none[:, :10]),
        ...     (truth[:, :10] + 3, none[:, :10]),
        ...     (truth[:, 10:] + 3, none[:, 10:]),
        ... )
        >>> bool(abs(found.both.mean - truth.mean()) < 0.01)
        True
    """
    n = human[0].shape[1]
    n_machine = machine_only[0].shape[1]
    for of_human, of_machine, of_others in zip(human, machine, machine_only, strict=True):
        if of_human.shape != of_machine.shape or len(of_human) != len(of_others):
            shapes = [of_human.shape, of_machine.shape, of_others.shape]
            raise ValueError(f"values must be [S, n], [S, n] and [S, N], got {shapes}")
        if not np.isfinite(of_machine).all() or not np.isfinite(of_others).all():
            raise ValueError("values must be finite; leave queries without a value out")
    if n < FEWEST or n_machine < 2:
        raise ValueError(
            f"{FEWEST} judged queries or more and two others or more are needed, got {n} and {n_machine}"
        )
    humans = estimate(*human)
    y = differences_by_query(*human)
    x = differences_by_query(*machine)
    u = differences_by_query(*machine_only)
    weights = leave_one_out_weights(y, x, n_machine)
    weight = float(weights.mean())
    parts = zip(human, machine, machine_only, strict=True)
    linear = [_linear_values(*values, weights) for values in parts]
    residuals = y - weights * (x - u.mean())
    of_humans = float(residuals.var(ddof=1)) / n
    of_machine_only = weight**2 * float(u.var(ddof=1)) / n_machine
    denominator = of_humans**2 / (n - 2) + of_machine_only**2 / (n_machine - 1)
    freedom = n - 1.0
    if weight > 0 and denominator > 0:
        freedom = (of_humans + of_machine_only) ** 2 / denominator
    both = replace(estimate(*linear), n_queries=n, query_freedom=freedom)
    sample_p = 1.0
    if np.ptp(x) > 0 or np.ptp(u) > 0:
        sample_p = float(stats.ttest_ind(x, u, equal_var=False).pvalue)
    return PoweredDifference(humans, both, weight, correlation(y, x), n, n_machine, sample_p)


def leave_one_out_weights(y: np.ndarray, x: np.ndarray, n_machine: int) -> np.ndarray:
    r"""``[n]``: how far the machine is followed at each judged query, by the others.

    The variance is smallest at :math:`\lambda = \frac{N}{N + n} \frac{\mathrm{cov}(x, y)}{\mathrm{var}(x)}`.
    Below 0 it is taken for 0: a machine that says the opposite of people is not followed.

    Args:
        y: ``[n]``, the differences by people.
        x: ``[n]``, those by the machine.
        n_machine: N.
    """
    n = len(y)
    y = y - y.mean()
    x = x - x.mean()
    # The sums of squares and products without query i, about the means without it.
    products = (x * y).sum() - n / (n - 1) * x * y
    squares = (x * x).sum() - n / (n - 1) * x * x
    varies = squares > 1e-12 * max(1e-300, float((x * x).sum()))
    slopes = np.divide(products, squares, out=np.zeros(n), where=varies)
    return np.maximum(0.0, slopes) * n_machine / (n_machine + n)


def correlation(y: np.ndarray, x: np.ndarray) -> float:
    """Pearson's; NaN where either does not vary."""
    if np.ptp(y) == 0 or np.ptp(x) == 0:
        return math.nan
    return float(np.corrcoef(y, x)[0, 1])


def _linear_values(
    human: np.ndarray, machine: np.ndarray, machine_only: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """``[S, n + N]``: values of a ranker whose means over all n + N queries are its estimates by seed,
    and whose variance over queries, divided by n + N, is that of the estimate.
    """
    n = human.shape[1]
    n_machine = machine_only.shape[1]
    n_all = n + n_machine
    weight = weights.mean()
    # [S, n], whose means are the estimates: what the machine says of other queries has become 0.
    residuals = human - weights * (machine - machine_only.mean(axis=1, keepdims=True))
    parts = []
    for values in (residuals, weight * machine_only):
        size = values.shape[1]
        # The variance divides by n + N - 1, and that of a part must by its size - 1.
        factor = n_all / size * math.sqrt(size * (n_all - 1) / (n_all * (size - 1)))
        parts.append(factor * (values - values.mean(axis=1, keepdims=True)))
    return residuals.mean(axis=1, keepdims=True) + np.concatenate(parts, axis=1)


def _width(found: Estimate) -> float:
    low, high = found.interval()
    return high - low
