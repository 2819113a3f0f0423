"""Batches of rows of similar length."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import distributed

from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import Plan
from ltr.data.sampling.rows import Rows

Length = Callable[[LabelledList], float]


class _Window(NamedTuple):
    """Batches that were planned together."""

    key: tuple[int, int]  # epoch, number in the epoch
    batches: list[list[int]]  # the rows of each global batch
    drawn: dict[int, LabelledList]  # lists that are drawn already, by row


class Buckets(Plan):
    """Visits every row once an epoch, with rows of similar length in a batch.

    An epoch is a permutation of all rows, cut into windows of ``window`` global batches. The rows
    of a window are drawn, sorted by length and cut into batches, and the batches are shuffled. The
    processes deal out each global batch row by row; a last, smaller one is kept if it has a row for
    every process.

    Args:
        length: the length to sort by.
        batch_size: rows per step and process.
        window: global batches per window; 1 turns the sorting off.
    """

    def __init__(
        self,
        rows: Rows,
        length: Length,
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        window: int = 64,
    ) -> None:
        self.rows = rows
        self.length = length
        self.n_rows = len(rows)
        self.per_step = batch_size * world_size
        rest = self.n_rows % self.per_step
        self.n_used = self.n_rows - (rest if rest < world_size else 0)
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.window = window
        self._permutation: tuple[int, np.ndarray] | None = None
        self._window: _Window | None = None
        # A window whose batches keep their rows, though other documents are drawn for them now.
        self._frozen: _Window | None = None

    def __len__(self) -> int:
        return -(-self.n_used // self.per_step)

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        number, at = divmod(step, self.window)
        if self._window is None or self._window.key != (
            epoch,
            number,
        ):  # steps come in order: the last window is kept
            self._window = self._planned(epoch, number, together)
        own = self._window.batches[at][self.rank :: self.world_size]
        drawn = self._window.drawn
        return [drawn[row] if row in drawn else self.rows.draw(epoch, row) for row in own]

    def replace(self, rows: Rows) -> None:
        """Draw other documents for the same rows, from the next batch on."""
        assert len(rows) == self.n_rows, "the plan of an epoch counts the rows"
        self.rows = rows
        self._window = None
        self.version = self.version + 1

    def freeze_window(self, epoch: int, step: int) -> None:
        """Freeze the rows of the window that this step is in the middle of: its batches hold the
        same rows after :meth:`replace`, whatever is drawn for them.

        So an epoch visits each row once, though the rows are replaced in its midst. All processes
        must call it together.
        """
        if step % self.window:
            self._frozen = self._planned(epoch, step // self.window, together=True)._replace(
                drawn={}
            )

    def frozen_batches(self, epoch: int, step: int) -> list[list[int]] | None:
        return (
            self._frozen.batches
            if self._frozen is not None and self._frozen.key == (epoch, step // self.window)
            else None
        )

    def freeze(self, epoch: int, step: int, batches: list[list[int]]) -> None:
        self._frozen = _Window((epoch, step // self.window), batches, {})

    def __getstate__(self) -> dict:
        return self.__dict__ | {
            "_permutation": None,
            "_window": None,
        }  # a spawned worker needs neither

    def _planned(self, epoch: int, number: int, together: bool) -> "_Window":
        """The batches of a window, with the lists of this process that were drawn to plan them."""
        if self._frozen is not None and self._frozen.key == (epoch, number):
            return self._frozen
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (
                epoch,
                np.random.default_rng([self.seed, epoch]).permutation(self.n_rows),
            )
        size = self.per_step * self.window
        rows = self._permutation[1][: self.n_used][number * size : (number + 1) * size]
        if self.window == 1:
            return _Window((epoch, number), [rows.tolist()], {})
        drawn = self._drawn(epoch, rows, together)
        order = np.argsort([length for length, _ in drawn], kind="stable")
        batches = [
            order[at : at + self.per_step].tolist() for at in range(0, len(order), self.per_step)
        ]
        shuffled = [
            batches[at]
            for at in np.random.default_rng([self.seed, epoch, number]).permutation(len(batches))
        ]
        own = [at for batch in shuffled for at in batch[self.rank :: self.world_size]]
        planned = [[int(rows[at]) for at in batch] for batch in shuffled]
        return _Window((epoch, number), planned, {int(rows[at]): drawn[at][1] for at in own})

    def _drawn(
        self, epoch: int, rows: np.ndarray, together: bool
    ) -> list[tuple[float, LabelledList]]:
        """Length and list of each row. Processes that ask together draw a share each, and exchange
        them.
        """
        share = (
            together
            and distributed.is_initialized()
            and distributed.get_world_size() == self.world_size > 1
        )
        own = rows[self.rank :: self.world_size] if share else rows
        drawn = [(self.length(one), one) for one in (self.rows.draw(epoch, row) for row in own)]
        if not share:
            return drawn
        parts: list[list] = [[] for _ in range(self.world_size)]
        distributed.all_gather_object(parts, drawn)
        return [parts[at % self.world_size][at // self.world_size] for at in range(len(rows))]
