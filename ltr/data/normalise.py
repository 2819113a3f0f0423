"""Feature vectors brought to one scale, with statistics of the training queries only."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch

from ltr.data.cache_folder import cached, origin_of
from ltr.data.disk import new_array
from ltr.data.files import map_array
from ltr.data.letor import FeatureSplit
from ltr.entries import check_entries
from ltr.errors import InputError
from ltr.spans import rows_of_spans, spans

Step = Literal["z-score", "log1p", "quantile", "min-max"]
# What each step learns from the training rows, by the names that a checkpoint has for it.
STATISTICS = {"z-score": ("mean", "deviation"), "log1p": (), "quantile": ("knots",), "min-max": ()}
CHUNK_VALUES = 1 << 22  # of rows in memory at a time, at most, unless one query has more
CHUNKS_OF_QUANTILES = 16  # so many times as many values are in memory while quantiles are taken
MOST_KNOTS = 1001
MEND = "take another checkpoint"  # where what it keeps is damaged


Fitted = tuple[str, dict[str, np.ndarray]]  # a step, and its statistics by name


class NormalisationState(TypedDict):
    """What a checkpoint keeps of :class:`Normalisation`, beside its statistics."""

    steps: list[str]
    n_features: int | None


class Normalisation:
    r"""Steps applied to every feature one after the other, each fitted on what those before make of
    the training rows.

    ``z-score``
        :math:`(x - \mu) / \sigma`, mean and population deviation over the training rows; 0 for a
        constant feature.
    ``log1p``
        :math:`\operatorname{sign}(x) \log(1 + |x|)`.
    ``quantile``
        :math:`(P[X < x] + P[X \le x]) / 2` of the training values :math:`X`, read off at most 1,001
        of their quantiles; between 0 and 1.
    ``min-max``
        :math:`(x - \min) / (\max - \min)` over the documents of the same query, 0 where they are
        all equal; not fitted.

    Args:
        steps: their names; none leaves the features as they are.

    Raises:
        InputError: for a step of another name.

    References:
        Qin et al. (2021), Are neural rankers still outperformed by gradient boosted decision trees?
        (log1p, quantile); Qin & Liu (2013), Introducing LETOR 4.0 datasets (min-max, there
        QueryLevelNorm).
    """

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        for step in steps:
            if step not in STATISTICS:
                known = ", ".join(STATISTICS)
                raise InputError(
                    f"a step of normalise must be one of {known}, got {step!r}",
                    option="normalise",
                )
        self.steps = list(steps)
        self.n_features: int | None = None
        self._fitted: list[Fitted] = []  # all steps, once it is fitted

    @property
    def learns(self) -> bool:
        """Whether a step takes statistics from the training rows; if not, :meth:`fit` may be given
        any split.
        """
        return any(STATISTICS[step] for step in self.steps)

    def fit(self, split: FeatureSplit, n_features: int) -> "Normalisation":
        """Take the statistics from the rows of a split's queries; features of the model that the
        split does not have are 0.
        """
        check_width(split, n_features)
        self.n_features = n_features
        fitted: list[Fitted] = []
        for step in self.steps:
            statistics: dict[str, np.ndarray] = {}
            if step == "z-score":
                statistics = self._moments(split, fitted)
            elif step == "quantile":
                statistics = self._knots(split, fitted)
            fitted.append((step, statistics))
        self._fitted = fitted
        return self

    def apply(self, split: FeatureSplit) -> np.ndarray:
        """The features of a split after all steps, ``[R, n_features]`` float32, one row for each
        row of ``split.features``; made once, then memory-mapped.
        """
        assert self.n_features is not None, "fit or load_state_dict comes first"
        check_width(split, self.n_features)
        if not self.steps and split.n_features == self.n_features:
            return split.features
        content = f"normalised-1 {split.key} {self.steps} {self.n_features}".encode()
        for _, statistics in self._fitted:
            for statistic in statistics.values():
                content += statistic.tobytes()
        return cached(
            "normalised",
            content,
            lambda folder: self._write(folder, split),
            lambda folder: map_array(folder / "features.npy"),
            origin_of(split.folder or "features in memory"),
        )

    def apply_to_list(self, features: np.ndarray) -> np.ndarray:
        """The feature vectors of one query's documents, ``[N, n_features]`` float32, after all
        steps.
        """
        assert len(self._fitted) == len(self.steps), "fit or load_state_dict comes first"
        if len(features) == 0:
            return features  # min-max would look for the least of no values
        starts = np.array([0])
        counts = np.array([len(features)])
        for step, statistics in self._fitted:
            features = _apply_step(step, statistics, features, starts, counts)
        return features

    def state_dict(self) -> dict[str, torch.Tensor | list[str] | int | None]:
        """What a checkpoint keeps: a statistic of the first step, say, as ``0.mean``."""
        state: dict[str, torch.Tensor | list[str] | int | None] = {
            "steps": list(self.steps),
            "n_features": self.n_features,
        }
        for number, (_, statistics) in enumerate(self._fitted):
            for name, statistic in statistics.items():
                state[f"{number}.{name}"] = torch.from_numpy(statistic)
        return state

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Normalisation":
        """As a checkpoint keeps it; an InputError if that is damaged."""
        _check_state(state)
        normalisation = cls(state["steps"])
        normalisation.load_state_dict(state)
        return normalisation

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the statistics from a checkpoint; an InputError if its steps are others, or it is
        damaged.
        """
        _check_state(state)
        if state["steps"] != self.steps:
            raise InputError(
                f"the checkpoint was trained with the normalisation {state['steps']}, got {self.steps}; set normalise as it was",
                option="normalise",
            )
        n_features = state["n_features"]
        fitted: list[Fitted] = []
        for number, step in enumerate(self.steps):
            statistics = {}
            for name in STATISTICS[step]:
                tensor = state.get(f"{number}.{name}")
                if not isinstance(tensor, torch.Tensor) or tensor.shape[:1] != (n_features,):
                    raise InputError(
                        f"the normalisation in the checkpoint must have {number}.{name} of {n_features} features, and has not; {MEND}"
                    )
                statistics[name] = tensor.numpy()
            fitted.append((step, statistics))
        self.n_features = n_features
        self._fitted = fitted

    def _chunks(
        self, split: FeatureSplit, queries: np.ndarray, fitted: list[Fitted]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Some queries at a time: the numbers of their rows, and these rows after fitted steps.

        Args:
            split: has the rows.
            queries: ``[Q]``, places in ``split.offsets``; ``split.queries`` are some of them.
            fitted: the steps.
        """
        assert self.n_features is not None, "fit sets it first"
        counts = np.diff(split.offsets)[queries]
        # The query whose rows bring the sum to a multiple of CHUNK_VALUES, or over it, begins a new
        # chunk.
        chunk_of_query = np.cumsum(counts) * self.n_features // CHUNK_VALUES
        first_of_chunk = np.flatnonzero(np.diff(chunk_of_query)) + 1
        for places in np.split(np.arange(len(queries)), first_of_chunk):
            chunk_counts = counts[places]
            starts = np.cumsum(chunk_counts) - chunk_counts  # of each query among the chunk's rows
            rows = rows_of_spans(split.offsets[queries[places]], chunk_counts)
            x = np.zeros((len(rows), self.n_features), dtype=np.float32)
            x[:, : split.n_features] = split.features[rows]
            for step, statistics in fitted:
                x = _apply_step(step, statistics, x, starts, chunk_counts)
            yield rows, x

    def _moments(self, split: FeatureSplit, fitted: list[Fitted]) -> dict[str, np.ndarray]:
        """Mean and population deviation of each feature, ``[n_features]`` float64 each."""
        n_rows = np.diff(split.offsets)[split.queries].sum()
        # Sums are taken about the first row: those of a constant feature are then exactly 0.
        _, rows_of_first_query = next(self._chunks(split, split.queries[:1], fitted))
        origin = rows_of_first_query[0].astype(np.float64)
        total = np.zeros_like(origin)
        for _, x in self._chunks(split, split.queries, fitted):
            total += (x - origin).sum(axis=0)
        mean = origin + total / n_rows
        squares = np.zeros_like(origin)
        for _, x in self._chunks(split, split.queries, fitted):
            squares += ((x - mean) ** 2).sum(axis=0)
        return {"mean": mean, "deviation": np.sqrt(squares / n_rows)}

    def _knots(self, split: FeatureSplit, fitted: list[Fitted]) -> dict[str, np.ndarray]:
        """Quantiles of each feature, ``[n_features, K]`` float32."""
        assert self.n_features is not None, "fit sets it first"
        n_rows = int(np.diff(split.offsets)[split.queries].sum())
        shares = np.linspace(0, 1, min(n_rows, MOST_KNOTS))
        # A quantile needs all values of its feature at once.
        n_at_once = max(1, CHUNKS_OF_QUANTILES * CHUNK_VALUES // n_rows)  # features
        knots = np.empty((self.n_features, len(shares)), dtype=np.float32)
        for some in spans(self.n_features, n_at_once):
            # Copies, as a view would keep its whole chunk in memory.
            columns = [x[:, some].copy() for _, x in self._chunks(split, split.queries, fitted)]
            quantiles = np.quantile(
                np.concatenate(columns), shares, axis=0, method="nearest", overwrite_input=True
            )
            knots[some] = quantiles.T
        return {"knots": knots}

    def _write(self, folder: Path, split: FeatureSplit) -> None:
        """Write the rows of all stored queries after all steps."""
        assert self.n_features is not None, "apply looks first"
        table = new_array(
            folder / "features.npy", np.float32, (len(split.features), self.n_features)
        )
        stored_queries = np.arange(len(split.offsets) - 1)
        for rows, x in self._chunks(split, stored_queries, self._fitted):
            table[rows] = x
        table.flush()


def _check_state(state: Any) -> None:
    check_entries(state, NormalisationState, "the normalisation in the checkpoint", MEND)


def _apply_step(
    step: str,
    statistics: dict[str, np.ndarray],
    x: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
) -> np.ndarray:
    """One step on rows ``[n, n_features]`` of whole queries, which begin at ``starts`` and have
    ``counts`` rows; float32.
    """
    if step == "z-score":
        return _quotient_or_0(x - statistics["mean"], statistics["deviation"])
    if step == "log1p":
        return np.sign(x) * np.log1p(np.abs(x))
    if step == "quantile":
        return _mid_ranks(x, statistics["knots"])
    assert step == "min-max", "there are four steps"
    low = np.repeat(np.minimum.reduceat(x, starts), counts, axis=0).astype(np.float64)
    high = np.repeat(np.maximum.reduceat(x, starts), counts, axis=0).astype(np.float64)
    return _quotient_or_0(x - low, high - low)


def _quotient_or_0(x: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """x / divisor as float32, 0 where the divisor is 0 (a feature that does not vary)."""
    varies = divisor > 0
    return np.where(varies, x / np.where(varies, divisor, 1), 0).astype(np.float32)


def _mid_ranks(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(share of a feature's knots below x + share of those up to x) / 2, float32.

    ``x`` is ``[n, n_features]``, the knots ``[n_features, K]`` ascend in each row.
    """
    # Transposed, as the loop fills one feature at a time. It must stay so: the layout decides the
    # order in which a later step adds up floats.
    ranks = np.empty(x.T.shape, dtype=np.float32)
    for feature, knots_of_feature in enumerate(knots):
        values = x[:, feature]
        n_below = np.searchsorted(knots_of_feature, values, side="left")
        n_up_to = np.searchsorted(knots_of_feature, values, side="right")
        ranks[feature] = (n_below + n_up_to) / (2 * knots.shape[1])
    return ranks.T


def check_width(split: FeatureSplit, n_features: int) -> None:
    """Raise an InputError if a split has more features than the model."""
    if split.n_features > n_features:
        raise InputError(
            f"the data has {split.n_features} features, the model {n_features}: set n_features to {split.n_features}",
            option="n_features",
        )
