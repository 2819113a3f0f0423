"""What draws the lists of a training epoch, anew in every epoch."""

from typing import Protocol

import numpy as np

from ltr.data.query_lists import LabelledList


class Rows(Protocol):
    """The rows of a training epoch."""

    def __len__(self) -> int: ...

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function of (seed, epoch, row)."""


class Groups(Protocol):
    """The groups of a training epoch.

    Attributes:
        owners: ``[G]`` int64, ascending: a batch never holds two groups of one owner.
    """

    owners: np.ndarray

    def draw(self, epoch: int, group: int) -> LabelledList:
        """The list of a group in an epoch: a pure function of (seed, epoch, group)."""


def in_parts(queries: np.ndarray, n_parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each query once for each of its parts, and the number of the part."""
    return np.repeat(queries, n_parts), np.concatenate([np.arange(n) for n in n_parts])
