"""Feature vectors brought to one scale, with statistics of the training queries only."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ltr.data.files import cached, new_array
from ltr.data.letor import FeatureSplit
from ltr.errors import InputError

Step = Literal["z-score", "log1p", "quantile", "min-max"]
STATISTICS = {"z-score": ("mean", "deviation"), "log1p": (), "quantile": ("knots",), "min-max": ()}
CHUNK_VALUES = 1 << 22
MOST_KNOTS = 1001


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
        if unknown := [step for step in steps if step not in STATISTICS]:
            known = ", ".join(STATISTICS)
            raise InputError(
                f"a step of normalise must be one of {known}, got {unknown[0]!r}",
                option="normalise",
            )
        self.steps = list(steps)
        self.n_features: int | None = None
        self._fitted: list[dict[str, np.ndarray]] = []  # by step, what STATISTICS names

    @property
    def learns(self) -> bool:
        """Whether a step takes statistics: else any split will do to fit."""
        return any(STATISTICS[step] for step in self.steps)

    def fit(self, split: FeatureSplit, n_features: int) -> "Normalisation":
        """Take the statistics from the rows of a split's queries; features of the model that the
        split does not have are 0.
        """
        check_width(split, n_features)
        self.n_features = n_features
        self._fitted = []
        measures = {"z-score": self._moments, "quantile": self._knots}
        for step in self.steps:
            self._fitted.append(measures[step](split) if step in measures else {})
        return self

    def apply(self, split: FeatureSplit) -> np.ndarray:
        """``[R, n_features]`` float32, one row for each row of ``split.features``; made once, then
        memory-mapped.
        """
        assert self.n_features is not None, "fit or load_state_dict comes first"
        check_width(split, self.n_features)
        if not self.steps and split.n_features == self.n_features:
            return split.features
        statistics = [
            statistic.tobytes() for fitted in self._fitted for statistic in fitted.values()
        ]
        content = b"".join(
            [f"normalised-1 {split.key} {self.steps} {self.n_features}".encode(), *statistics]
        )
        folder = cached("normalised", content, lambda folder: self._write(folder, split))
        return np.load(folder / "features.npy", mmap_mode="r")

    def of_list(self, features: np.ndarray) -> np.ndarray:
        """The feature vectors of one query's documents, ``[N, n_features]`` float32, after all
        steps.
        """
        whole = np.array([0]), np.array([len(features)])
        for step, fitted in zip(self.steps, self._fitted, strict=True):
            features = _applied(step, fitted, features, *whole)
        return features

    def state_dict(self) -> dict[str, torch.Tensor | list[str] | int | None]:
        """What a checkpoint keeps."""
        statistics = {
            f"{i}.{name}": value
            for i, fitted in enumerate(self._fitted)
            for name, value in fitted.items()
        }
        tensors = {name: torch.from_numpy(value) for name, value in statistics.items()}
        return {"steps": list(self.steps), "n_features": self.n_features, **tensors}

    def load_state_dict(self, state: dict[str, torch.Tensor | list[str] | int | None]) -> None:
        """Take the statistics from a checkpoint; an InputError if its steps are others."""
        if state["steps"] != self.steps:
            text = f"the checkpoint was trained with the normalisation {state['steps']}, got {self.steps}"
            raise InputError(f"{text}; set normalise as it was", option="normalise")
        assert isinstance(state["n_features"], int | None), "state_dict wrote it"
        self.n_features = state["n_features"]
        statistics = {
            name: value.numpy() for name, value in state.items() if isinstance(value, torch.Tensor)
        }
        self._fitted = [
            {name: statistics[f"{i}.{name}"] for name in STATISTICS[step]}
            for i, step in enumerate(self.steps)
        ]

    def _chunks(
        self, split: FeatureSplit, queries: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Some stored queries at a time: the numbers of their rows, and these rows after the steps
        fitted so far.
        """
        assert self.n_features is not None, "fit sets it first"
        counts = np.diff(split.offsets)[queries]
        chunk_of_query = np.cumsum(counts) * self.n_features // CHUNK_VALUES
        for some in np.split(np.arange(len(queries)), np.flatnonzero(np.diff(chunk_of_query)) + 1):
            starts = np.cumsum(counts[some]) - counts[some]
            rows = np.arange(counts[some].sum()) + np.repeat(
                split.offsets[queries[some]] - starts, counts[some]
            )
            x = np.zeros((len(rows), self.n_features), dtype=np.float32)
            x[:, : split.n_features] = split.features[rows]
            for step, fitted in zip(self.steps, self._fitted, strict=False):
                x = _applied(step, fitted, x, starts, counts[some])
            yield rows, x

    def _moments(self, split: FeatureSplit) -> dict[str, np.ndarray]:
        """Sums are taken about the first row: those of a constant feature are then exactly 0."""
        n_rows = np.diff(split.offsets)[split.queries].sum()
        first = next(self._chunks(split, split.queries[:1]))[1][0].astype(np.float64)
        mean = (
            first
            + sum((x - first).sum(axis=0) for _, x in self._chunks(split, split.queries)) / n_rows
        )
        variance = (
            sum(((x - mean) ** 2).sum(axis=0) for _, x in self._chunks(split, split.queries))
            / n_rows
        )
        return {"mean": mean, "deviation": np.sqrt(variance)}

    def _knots(self, split: FeatureSplit) -> dict[str, np.ndarray]:
        """Quantiles of each feature, ``[n_features, K]``; as many features at a time as fit beside
        each other in memory.
        """
        assert self.n_features is not None, "fit sets it first"
        n_rows = int(np.diff(split.offsets)[split.queries].sum())
        shares = np.linspace(0, 1, min(n_rows, MOST_KNOTS))
        width = max(1, 16 * CHUNK_VALUES // n_rows)
        knots = np.empty((self.n_features, len(shares)), dtype=np.float32)
        for left in range(0, self.n_features, width):
            values = np.concatenate(
                [x[:, left : left + width].copy() for _, x in self._chunks(split, split.queries)]
            )
            knots[left : left + width] = np.quantile(
                values, shares, axis=0, method="nearest", overwrite_input=True
            ).T
        return {"knots": knots}

    def _write(self, folder: Path, split: FeatureSplit) -> None:
        assert self.n_features is not None, "apply looks first"
        table = new_array(
            folder / "features.npy", np.float32, (len(split.features), self.n_features)
        )
        for rows, x in self._chunks(split, np.arange(len(split.offsets) - 1)):
            table[rows] = x
        table.flush()


def _applied(
    step: str, fitted: dict[str, np.ndarray], x: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """One step on rows ``[n, n_features]`` of whole queries, which begin at ``starts`` and have
    ``counts`` rows; float32.
    """
    if step == "z-score":
        varies = fitted["deviation"] > 0
        return np.where(
            varies, (x - fitted["mean"]) / np.where(varies, fitted["deviation"], 1), 0
        ).astype(np.float32)
    if step == "log1p":
        return np.sign(x) * np.log1p(np.abs(x))
    if step == "quantile":
        sides = [
            [np.searchsorted(k, v, side) for k, v in zip(fitted["knots"], x.T, strict=True)]
            for side in ("left", "right")
        ]
        return (np.sum(sides, axis=0).T / (2 * fitted["knots"].shape[1])).astype(np.float32)
    low, high = (
        np.repeat(bound.reduceat(x, starts), counts, axis=0).astype(np.float64)
        for bound in (np.minimum, np.maximum)
    )
    return np.where(high > low, (x - low) / np.where(high > low, high - low, 1), 0).astype(
        np.float32
    )


def check_width(split: FeatureSplit, n_features: int) -> None:
    """Raise an InputError if a split has more features than the model."""
    if split.n_features > n_features:
        text = f"the data has {split.n_features} features, the model {n_features}: set n_features to {split.n_features}"
        raise InputError(text, option="n_features")
