r"""Is the difference of two rankers real?  Intervals and tests over queries and seeds.

A ranker that was trained with S seeds has one value of a metric for each seed and query,
``[S, Q]``. What makes the mean of these vary is

.. math:: x_{sq} = \mu + a_q + b_s + e_{sq}

the query, the seed, and both together. The usual tests pair the queries of two runs, and take the
seeds for granted: they answer whether *these two models* differ. Whether two *ways to train*
differ, a test must see the seeds too.

Letters of shapes: S seeds, Q queries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import optimize, special, stats

ROUNDING = 1e-9  # a smaller difference is rounding alone: values have six digits
OFF_BY = 1e-6  # by so much at most a difference of two values of six digits is wrong
BLOCK = 2**24  # signs that are drawn at once
EXACT = 16  # up to so many differences that are not 0, all sign flips are counted
MOST_QUERIES = 10**7  # a plan looks for no more
PLANNED_SEEDS = (3, 5, 10)  # for which plans are shown
DRAWS = 512  # of the variances, over which a power is the mean


@dataclass(frozen=True)
class Estimate:
    r"""A mean over queries and seeds, or the difference of two, with what it varies by.

    Attributes:
        mean: of all values; of a difference, of the first minus the second.
        query_variance: the part of the mean's variance that comes from having drawn these queries:
            :math:`\mathrm{var}(a_q + \bar e_q) / Q`.
        seed_variances: the part that comes from having drawn these seeds:
            :math:`\mathrm{var}(b_s + \bar e_s) / S`, one number for each ranker that has several.
        shared_variances: :math:`\mathrm{var}(e_{sq}) / (Q S)`, which ``query_variance`` and
            ``seed_variances`` both contain: one number for each of ``seed_variances``.
        n_queries: Q.
        n_seeds: S, one for each of ``seed_variances``.
        query_freedom: the degrees of freedom of ``query_variance``; None for Q − 1, those of the
            queries of one data set.
        known_freedoms: of a plan, whose variances other queries and seeds tell: the degrees of
            freedom by which ``query_variance`` and each of ``seed_variances`` are known. None: those
            of Q and S.
        alike: whether one estimate stands for the seeds of both rankers.
    """

    mean: float
    query_variance: float
    seed_variances: tuple[float, ...]
    shared_variances: tuple[float, ...]
    n_queries: int
    n_seeds: tuple[int, ...]
    query_freedom: float | None = None
    known_freedoms: tuple[float, ...] | None = None
    alike: bool = False

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        all_seeds = sum(self.seed_variances)
        whole = self.query_variance + all_seeds - sum(self.shared_variances)
        # ``shared_variances`` are themselves estimates, and may be larger than the parts that contain
        # them: the variance is never taken below either part.
        return math.sqrt(max(whole, self.query_variance, all_seeds))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the error, by Satterthwaite; at least 1."""
        # Satterthwaite: the squared variance over the sum of var_i^2 / freedom_i of its parts.
        denominator = 0.0
        for variance, freedom in zip(
            (self.query_variance, *self.seed_variances), self._freedoms, strict=True
        ):
            denominator += variance**2 / freedom
        if denominator == 0:
            return 1.0
        return max(1.0, self.error**4 / denominator)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The range of means that the values are compatible with."""
        if self.error == 0:
            return self.mean, self.mean  # also where the quantile is infinite
        half = self.error * float(stats.t.ppf((1 + confidence) / 2, self.freedom))
        return self.mean - half, self.mean + half

    @property
    def least_p(self) -> float:
        """The smallest p that Q queries can give, :math:`2^{1 - Q}`: that of the randomisation test,
        where all of them differ in one direction.
        """
        return 2.0 ** (1 - self.n_queries)

    @property
    def p(self) -> float:
        """The probability of a mean at least this far from 0, on either side, if the true mean is
        0.

        It is never below ``least_p``. Few values may vary little or not at all by chance, and
        Student's distribution would make a proof of that.
        """
        if abs(self.mean) < ROUNDING and self.error < ROUNDING:
            return 1.0
        if self.error < ROUNDING:
            return self.least_p
        student_p = float(2 * stats.t.sf(abs(self.mean) / self.error, self.freedom))
        return max(student_p, self.least_p)

    def detectable(self, alpha: float = 0.05, power: float = 0.8) -> float:
        r"""The smallest true difference that a test at level ``alpha`` would find with probability
        ``power``; infinite where so few queries, or a level so low, find none.

        The variances are estimates, of few seeds poor ones. With :math:`\nu_i` degrees of freedom, an
        estimate :math:`\hat v_i` stands for true variances :math:`v_i = \hat v_i \nu_i /
        \chi^2_{\nu_i}` of the queries and of the seeds. The test that is planned estimates them anew.
        Its variance :math:`w`, by draws from theirs, has :math:`n` degrees of freedom, and it finds
        :math:`\delta` with the probability

        .. math:: \mathrm{E}\;\Phi\Bigl(\frac{\delta - t_{n, 1 - \alpha/2} \sqrt{w}}{\sqrt{v}}\Bigr),

        the mean over both, with :math:`v` the true variance of the mean.

        References:
            O'Hagan, Stevens & Campbell (2005), Assurance in clinical trial design: the mean of a
            power over what is not known.
        """
        if self.least_p > alpha or alpha == 0:
            return math.inf
        if self.error == 0:
            return 0.0
        true_draws, test_draws = _draws()
        freedoms = self._freedoms
        known_freedoms = self.known_freedoms or freedoms  # nu_i
        true_parts = []
        drawn_parts = []
        for number, part in enumerate((self.query_variance, *self.seed_variances)):
            # Seeds that vary alike have one true variance: row 1 is that of both rankers.
            row = min(number, 1) if self.alike else number
            true_parts.append(part / _chi_squared(known_freedoms[number], true_draws[row]))
            drawn = _chi_squared(freedoms[number], test_draws[number])
            drawn_parts.append(true_parts[-1] * drawn)
        true_variance = self._whole(true_parts)  # v
        drawn_variance = self._whole(drawn_parts)  # w
        # Satterthwaite's degrees of freedom of what the test estimates, n.
        denominator = np.zeros(DRAWS)
        for part, freedom in zip(drawn_parts, freedoms, strict=True):
            denominator += part**2 / freedom
        freedom_of_test = np.maximum(1.0, drawn_variance**2 / denominator)
        # 1 − alpha / 2 would be 1 for the alpha of an early look.
        critical = -special.stdtrit(freedom_of_test, alpha / 2) * np.sqrt(drawn_variance)
        if not np.isfinite(critical).all():
            return math.inf
        scale = np.sqrt(true_variance)

        def missing(difference: float) -> float:
            return power - float(special.ndtr((difference - critical) / scale).mean())

        high = self.error
        while missing(high) > 0:
            high *= 2
        return float(optimize.brentq(missing, 0, high, rtol=1e-9))

    @property
    def _freedoms(self) -> tuple[float, ...]:
        """Degrees of freedom of ``query_variance`` and of each of ``seed_variances``, of Q and S."""
        query_freedom = self.query_freedom
        if query_freedom is None:
            query_freedom = self.n_queries - 1
        return (query_freedom, *(n_seeds - 1 for n_seeds in self.n_seeds))

    def _whole(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The variance of the mean, as in :attr:`error`, of draws ``[D]`` of ``query_variance`` and of
        each of ``seed_variances``.
        """
        all_seeds = np.sum(parts[1:], axis=0)
        whole = parts[0] + all_seeds - sum(self.shared_variances)
        return np.maximum(np.maximum(whole, parts[0]), all_seeds)

    def planned(self, n_queries: int, n_seeds: int) -> "Estimate":
        """The same with other numbers of queries and seeds, as far as this data tells what they
        vary by.
        """
        # First undo the divisions: the variances of one query, of one seed of each ranker, and of the
        # interaction of query and seed. An estimated difference of variances may come out below 0.
        var_query = max(0.0, self.query_variance - sum(self.shared_variances)) * self.n_queries
        var_seed = []
        var_interaction = []
        for variance, shared, n in zip(
            self.seed_variances, self.shared_variances, self.n_seeds, strict=True
        ):
            var_seed.append(max(0.0, (variance - shared) * n))
            var_interaction.append(shared * self.n_queries * n)
        # Then divide by the new numbers, as the attributes say.
        seed_variances = []
        shared_variances = []
        for seed, interaction in zip(var_seed, var_interaction, strict=True):
            seed_variances.append((seed + interaction / n_queries) / n_seeds)
            shared_variances.append(interaction / (n_queries * n_seeds))
        return Estimate(
            mean=self.mean,
            query_variance=(var_query + sum(var_interaction) / n_seeds) / n_queries,
            seed_variances=tuple(seed_variances),
            shared_variances=tuple(shared_variances),
            n_queries=n_queries,
            n_seeds=(n_seeds,) * len(self.n_seeds),
            known_freedoms=self.known_freedoms or self._freedoms,
            alike=self.alike,
        )

    def queries_needed(
        self, difference: float, n_seeds: int, alpha: float = 0.05, power: float = 0.8
    ) -> int | None:
        """How many queries show a difference with probability ``power``; None if ten million do
        not.
        """

        def shows(n_queries: int) -> bool:
            return self.planned(n_queries, n_seeds).detectable(alpha, power) <= difference

        # Double until it is enough, then halve the range. At each step ``low`` queries do not show
        # the difference, and ``high`` do.
        low = 1
        high = 2
        while not shows(high):
            if high == MOST_QUERIES:
                return None
            low = high
            high = min(2 * high, MOST_QUERIES)
        while high - low > 1:
            middle = (low + high) // 2
            if shows(middle):
                high = middle
            else:
                low = middle
        return high


@cache
def _draws() -> np.ndarray:
    """``[2, 3, D]``: numbers from 0 to 1 that fill the cube evenly, the same ones each time: for the
    true variances, and for those that a test estimates; of queries and of the seeds of two rankers.
    """
    return stats.qmc.Sobol(6, seed=0).random(DRAWS).T.reshape(2, 3, DRAWS)


def _chi_squared(freedom: float, probabilities: np.ndarray) -> np.ndarray:
    """Quantiles of the chi-squared distribution over its degrees of freedom."""
    return special.gammaincinv(freedom / 2, probabilities) * 2 / freedom


def estimate(first: np.ndarray, second: np.ndarray | None = None) -> Estimate:
    r"""The mean of a ranker's values, or the difference of two rankers', and what it varies by.

    With :math:`d_q` the difference of the two means over the seeds at query q, the variances are
    :math:`\mathrm{var}(d_q) / Q` for the queries, and :math:`\mathrm{var}(\bar x_s) / S` for the
    seeds of each ranker. Both contain :math:`\mathrm{var}(e_{sq}) / (Q S)`, so it is subtracted
    once for each ranker. The degrees of freedom are Satterthwaite's. Seeds are not paired: seed 0
    of one experiment has nothing to do with seed 0 of another.

    Args:
        first: ``[S, Q]``, by seed and query.
        second: the same queries in the same order, perhaps other seeds; None for the mean of the
            first.

    Returns:
        The mean and its variance, over the queries, and over the seeds of the rankers that have
        several. A ranker with one seed is taken as it is: its seed adds no variance.

    Raises:
        ValueError: for fewer than two queries, other numbers of queries, or values that are not
            finite.

    References:
        Satterthwaite (1946), An approximate distribution of estimates of variance components.
    """
    rankers = [np.asarray(first, dtype=np.float64)]
    if second is not None:
        rankers.append(np.asarray(second, dtype=np.float64))
    _check_values(rankers)
    n_queries = rankers[0].shape[1]
    by_query = rankers[0].mean(axis=0) if second is None else differences_by_query(*rankers)
    seed_variances = []
    shared_variances = []
    n_seeds = []
    for values in rankers:
        if len(values) < 2:
            continue  # a ranker of one seed is taken as it is
        seed_variances.append(float(values.mean(axis=1).var(ddof=1) / len(values)))
        shared_variances.append(_interaction_variance(values) / values.size)
        n_seeds.append(len(values))
    return Estimate(
        mean=float(by_query.mean()),
        query_variance=float(by_query.var(ddof=1) / n_queries),
        seed_variances=tuple(seed_variances),
        shared_variances=tuple(shared_variances),
        n_queries=n_queries,
        n_seeds=tuple(n_seeds),
    )


def estimate_over_sets(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray] | None = None
) -> Estimate:
    r"""The mean over K data sets of a ranker's values, each set counting alike, or the difference of
    two rankers' such means, and what it varies by.

    The queries of each set are drawn apart from those of the others, and the seeds are the same in
    all sets. With :math:`d_{kq}` the difference at query q of set k, which has :math:`Q_k` queries,
    and :math:`\bar x_{sk}` the mean of seed s there,

    .. math::
        M = \frac{1}{K} \sum_k \frac{1}{Q_k} \sum_q d_{kq}, \qquad
        \mathrm{query\_variance} = \sum_k v_k, \quad v_k = \frac{\mathrm{var}_q(d_{kq})}{K^2 Q_k}, \qquad
        \mathrm{seed\_variance} = \frac{1}{S} \mathrm{var}_s\Bigl(\frac{1}{K} \sum_k \bar x_{sk}\Bigr),
        \qquad
        \mathrm{shared\_variance} = \sum_k \frac{\mathrm{var}(e_{ksq})}{K^2 Q_k S}.

    The first is what resampling the queries within each set gives. Its degrees of freedom are
    Satterthwaite's, :math:`(\sum_k v_k)^2 / \sum_k \frac{v_k^2}{Q_k - 1}`.

    Args:
        first: of each set ``[S, Q_k]``, by seed and query; the seeds in one order.
        second: the same queries of the same sets, perhaps other seeds; None for the mean of the
            first.

    Raises:
        ValueError: as :func:`estimate`, and for other numbers of seeds or of sets.
    """
    if second is not None and len(second) != len(first):
        raise ValueError(f"both must have the same sets, got {len(first)} and {len(second)}")
    n_sets = len(first)
    parts = []
    for number in range(n_sets):
        parts.append(estimate(first[number], None if second is None else second[number]))
    seed_variances = []
    n_seeds = []
    for ranker in (first, second or ()):
        if len({len(values) for values in ranker}) > 1:
            raise ValueError("a ranker must have the same seeds on each data set")
        if not ranker or len(ranker[0]) < 2:
            continue  # a ranker of one seed is taken as it is
        by_seed = np.mean([values.mean(axis=1) for values in ranker], axis=0)
        seed_variances.append(float(by_seed.var(ddof=1) / len(by_seed)))
        n_seeds.append(len(by_seed))
    shared_variances = [part.shared_variances for part in parts]
    # The part of each set in the variance of the mean.
    set_variances = np.array([part.query_variance for part in parts]) / n_sets**2
    freedoms = np.array([part.n_queries - 1 for part in parts])
    whole = float(set_variances.sum())
    squares_over_freedoms = float((set_variances**2 / freedoms).sum())  # Satterthwaite's
    return Estimate(
        mean=float(np.mean([part.mean for part in parts])),
        query_variance=whole,
        seed_variances=tuple(seed_variances),
        shared_variances=tuple((np.array(shared_variances).sum(axis=0) / n_sets**2).tolist()),
        n_queries=sum(part.n_queries for part in parts),
        n_seeds=tuple(n_seeds),
        query_freedom=(
            whole**2 / squares_over_freedoms if squares_over_freedoms > 0 else float(freedoms.sum())
        ),
    )


def estimate_of_change(
    first: np.ndarray,
    second: np.ndarray,
    first_queries: Sequence[str],
    second_queries: Sequence[str],
) -> Estimate:
    r"""A ranker's mean over the queries of a second split minus that over those of a first one, and
    what it varies by. The splits may share queries: one may be a part of the other.

    Queries are drawn, and in which of the splits a query is comes with it. Of n queries in all, A are
    in the first split, with values x, and B in the second, with values y. The difference of the means
    then varies as the mean over all n queries of

    .. math::
        z_q = \frac{n}{|B|} 1_{q \in B} (y_q - \bar y) - \frac{n}{|A|} 1_{q \in A} (x_q - \bar x),

    its linear part, as for the mean of a domain in a survey. So :math:`\mathrm{query\_variance} =
    \mathrm{var}(z_q) / n`. Queries are of three kinds, in the first alone, in both, or in the second
    alone; the degrees of freedom are those of the kind that has fewest, less 1: where few queries
    were taken out, few tell what that changes. Seeds are counted as in :func:`estimate`, by the
    differences of the means of each.

    Args:
        first: ``[S, A]``, by seed and query of the first split.
        second: ``[S, B]``, of the second, by the same seeds.
        first_queries, second_queries: their names, each once.

    Raises:
        ValueError: as :func:`estimate`, and for other numbers of seeds.

    References:
        Särndal, Swensson & Wretman (1992), Model assisted survey sampling, chapter 5.
    """
    if len(first) != len(second):
        raise ValueError(f"both splits must have the same seeds, got {len(first)}, {len(second)}")
    names = list(dict.fromkeys([*first_queries, *second_queries]))
    place_of = {name: place for place, name in enumerate(names)}
    linear_sq = np.zeros((len(first), len(names)))
    for values, queries, sign in ((first, first_queries, -1.0), (second, second_queries, 1.0)):
        places = [place_of[name] for name in queries]
        weight = sign * len(names) / len(queries)
        linear_sq[:, places] += weight * (values - values.mean(axis=1, keepdims=True))
    changes_s = second.mean(axis=1, keepdims=True) - first.mean(axis=1, keepdims=True)
    # linear_sq sums to 0 over the queries, so the mean of both together is that of changes_s.
    both = {*first_queries} & {*second_queries}
    kinds = (len(first_queries) - len(both), len(both), len(second_queries) - len(both))
    fewest = min(number for number in kinds if number > 0)
    return replace(estimate(changes_s + linear_sq), query_freedom=float(max(1, fewest - 1)))


def _check_values(rankers: Sequence[np.ndarray]) -> None:
    for values in rankers:
        is_table = values.ndim == 2 and values.shape[1] >= 2
        if not is_table or values.shape[1] != rankers[0].shape[1]:
            shapes = [values.shape for values in rankers]
            raise ValueError(f"values must be [S, Q] of the same two queries or more, got {shapes}")
    for values in rankers:
        if not np.isfinite(values).all():
            raise ValueError("values must be finite; leave queries without a value out")


def differences_by_query(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The difference of two rankers' means over their seeds by query, ``[Q]``: exactly 0 where only
    rounding is left.
    """
    differences = first.mean(axis=0) - second.mean(axis=0)
    return np.where(abs(differences) < ROUNDING, 0.0, differences)


def _interaction_variance(values: np.ndarray) -> float:
    """The variance of :math:`e_{sq}`, which neither the query nor the seed explains."""
    rest = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    return float((rest**2).sum() / ((len(values) - 1) * (values.shape[1] - 1)))


def randomisation_p(
    differences: np.ndarray, n_draws: int = 100_000, seed: int = 0, off_by: float = OFF_BY
) -> float:
    r"""Two-sided p of a paired randomisation test: do two models, as they are, differ over such
    queries?

    If they do not, each query's difference is as likely to have the other sign. p is the share of
    all sign flips whose mean lies as far from 0 as the one that was seen: all flips are counted
    where up to 16 differences are not 0. With more, ``n_draws`` are drawn, and :math:`p = (1 +
    n_{as\,far}) / (1 + n_{draws})`.

    Args:
        differences: ``[Q]``, one for each query.
        n_draws: of sign flips.
        seed: of the draws.
        off_by: by how much a difference may be wrong. Flips count as far if they may be: of the values
            1/3, 1/6 and 1/2 sums are equal that six digits, or floats, tell apart.

    Raises:
        ValueError: if a difference is not finite.

    References:
        Smucker, Allan & Carterette (2007), A comparison of statistical significance tests for
        information retrieval evaluation.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("differences must be finite; leave queries without a value out")
    values = values[values != 0]
    if not len(values):
        return 1.0
    observed = abs(values.sum()) - len(values) * off_by
    if len(values) <= EXACT:
        return float((abs(_all_signs(len(values)) @ values) >= observed).mean())
    rng = np.random.default_rng(seed)
    as_far = 0
    left = n_draws
    while left:
        n = min(left, max(1, BLOCK // len(values)))
        signs = 1.0 - 2.0 * rng.integers(2, size=(n, len(values)), dtype=np.int8)
        as_far += int((abs(signs @ values) >= observed).sum())
        left -= n
    return (1 + as_far) / (1 + n_draws)


def _all_signs(n: int) -> np.ndarray:
    """``[2^n, n]``: every way to give n numbers a sign. The bits of the row's number are the signs,
    with 1 for a minus: of n = 2 the rows are ++, -+, +- and --.
    """
    numbers = np.arange(2**n)[:, None]
    bits = (numbers >> np.arange(n)) & 1
    return 1.0 - 2.0 * bits


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's correction: if corrected values up to alpha count as differences, the chance of even
    one false difference in the family is at most alpha.

    The i-th smallest of m becomes :math:`\max_{j \le i} \min(1, (m - j + 1)\, p_{(j)})`.

    Raises:
        ValueError: for a p value that is NaN or not from 0 to 1: a comparison that failed must not
            pass for one that was made.

    References:
        Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"p values must be from 0 to 1, got {values.tolist()}")
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)  # m for the smallest p, 1 for the largest
    products = np.minimum(1.0, values[order] * factors)
    corrected = np.empty_like(values)
    corrected[order] = np.maximum.accumulate(products)
    return corrected.tolist()
