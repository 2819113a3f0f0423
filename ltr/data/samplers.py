"""Which rows form a batch: a pure function of (seed, epoch, step) and of the rank, so that a run can be resumed exactly."""

from collections.abc import Callable, Iterator

import numpy as np
from torch.utils.data import DistributedSampler


class BucketedBatches:
    """Batches of rows of similar length.

    An epoch is a permutation of all rows, cut into windows of ``window`` global batches. Within a window rows are sorted by
    length and cut into batches, and the batches are shuffled. The ranks share out each global batch row by row; a last,
    smaller one is kept if it has a row for every rank.

    Args:
        n_rows: rows of the data set.
        batch_size: rows per rank and step.
        row_lengths: ``(epoch, rows) -> [len(rows)]``, the length to sort by.
        seed, rank, world_size: as they say.
        window: global batches per window; 1 turns bucketing off.
    """

    def __init__(
        self,
        n_rows: int,
        batch_size: int,
        row_lengths: Callable[[int, np.ndarray], np.ndarray],
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        window: int = 64,
    ) -> None:
        self.n_rows, self.row_lengths = n_rows, row_lengths
        self.global_batch = batch_size * world_size
        rest = n_rows % self.global_batch
        self.n_used = n_rows - (rest if rest < world_size else 0)
        self.seed, self.rank, self.world_size, self.window = seed, rank, world_size, window
        self._permutation: tuple[int, np.ndarray] | None = None
        self._window: tuple[tuple[int, int], list[np.ndarray]] | None = None

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return -(-self.n_used // self.global_batch)

    def rows(self, epoch: int, step: int) -> np.ndarray:
        """Rows of this rank at this step."""
        number, at = divmod(step, self.window)
        if self._window is None or self._window[0] != (epoch, number):  # the one last used is kept: steps come in order
            self._window = (epoch, number), self._batches_of_window(epoch, number)
        return self._window[1][at][self.rank :: self.world_size]

    def _batches_of_window(self, epoch: int, number: int) -> list[np.ndarray]:
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)
        size = self.global_batch * self.window
        rows = self._permutation[1][: self.n_used][number * size : (number + 1) * size]
        if self.window > 1:
            rows = rows[np.argsort(self.row_lengths(epoch, rows), kind="stable")]
        batches = [rows[at : at + self.global_batch] for at in range(0, len(rows), self.global_batch)]
        order = np.random.default_rng([self.seed, epoch, number]).permutation(len(batches)) if self.window > 1 else [0]
        return [batches[at] for at in order]


class StepSampler(DistributedSampler):
    """Names the batches of an epoch, ``(epoch, step)``, from the one the trainer has not consumed yet.

    It is a ``DistributedSampler`` in Lightning's eyes: it knows its rank, so it must not be replaced by one that does not.

    Args:
        n_steps: steps of an epoch.
        position: returns (epoch, first step) to go on from.
    """

    def __init__(self, n_steps: int, position: Callable[[], tuple[int, int]]) -> None:
        self.n_steps, self.position = n_steps, position

    def __len__(self) -> int:
        return self.n_steps

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, first = self.position()
        return iter([(epoch, step) for step in range(first, self.n_steps)])

    def set_epoch(self, epoch: int) -> None:
        """Nothing to do: the position says the epoch."""


class ShareOfRank(DistributedSampler):
    """Every world_size-th of n batches, unpadded: each is evaluated exactly once, whatever the number of ranks."""

    def __init__(self, n_batches: int, rank: int, world_size: int) -> None:
        self.batches = range(rank, n_batches, world_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[int]:
        return iter(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Nothing to do: an evaluation is the same in every epoch."""
