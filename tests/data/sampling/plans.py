"""Rows that are numbers, and plans of them."""

from pathlib import Path

import numpy as np

from ltr.data.collate import FeatureCollator
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.buckets import Buckets


class Bare(FeatureCollator):
    """The lists alone, without features."""

    def __init__(self) -> None:
        super().__init__(np.zeros((10, 1), np.float32))


class Numbered:
    """Rows of given lengths, whose documents tell the epoch. Every draw appends a line to a file,
    in whichever process.
    """

    def __init__(self, lengths: np.ndarray, log: Path | None = None) -> None:
        self.lengths = np.asarray(lengths)
        self.log = log

    def __len__(self) -> int:
        return len(self.lengths)

    def draw(self, epoch: int, row: int) -> LabelledList:
        if self.log is not None:
            with open(self.log, "a") as file:  # a short line is appended at once
                file.write(f"{epoch} {row}\n")
        return LabelledList(
            int(row), np.full(self.lengths[row], epoch), np.ones(self.lengths[row], np.float32)
        )


def plan_of(
    lengths: np.ndarray, batch_size: int, log: Path | None = None, **options: int
) -> Buckets:
    return Buckets(Numbered(lengths, log), Bare().sort_length, batch_size, **{"seed": 3} | options)
