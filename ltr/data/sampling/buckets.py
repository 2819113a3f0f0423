"""Buckets: batches of rows of similar length."""

import math
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
from torch import distributed

from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import SourcePlan
from ltr.data.sampling.rows import Rows
from ltr.errors import InputError

LengthOf = Callable[[LabelledList], float]
# Lists by the number of their row; and a list with its length.
ListsByRow = dict[int, LabelledList]
LengthAndList = tuple[float, LabelledList]


class _Window(NamedTuple):
    """Global batches that were planned together."""

    key: tuple[int, int]  # its epoch, and its number in the epoch
    batches: list[list[int]]  # the rows of each global batch


class Buckets(SourcePlan):
    """Visits every row once an epoch, with rows of similar length in a batch.

    An epoch is a permutation of all rows, cut into windows of ``window`` global batches. The rows
    of a window are drawn, sorted by length and cut into batches, and the batches are shuffled. The
    processes deal out each global batch row by row. The global batches don't depend on how many
    processes there are; where one has fewer rows than that, some processes get none.

    Args:
        rows: draw the lists.
        length: the length of a list, to sort by.
        batch_size: rows per step, over all processes.
        seed: of the order of the rows.
        rank, world_size: this process, and how many there are.
        window: global batches per window; 1 turns the sorting off.
    """

    def __init__(
        self,
        rows: Rows,
        length: LengthOf,
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
        self.per_step = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.batches_per_window = window
        self._version = 0
        # The epoch that was asked for last, and its permutation of the rows.
        self._permutation: tuple[int, np.ndarray] | None = None
        # The window that was planned last: steps come in order, so the next one mostly needs it.
        self._planned: _Window | None = None
        # Of its rows those that were drawn to plan it, and that this process needs.
        self._lists_by_row: ListsByRow = {}
        # A window whose batches keep their rows, though other documents are drawn for them now.
        self._frozen: _Window | None = None

    @property
    def version(self) -> int:
        return self._version

    def __len__(self) -> int:
        return math.ceil(self.n_rows / self.per_step)

    def lists_per_step(self, epoch: int) -> np.ndarray:
        counts = np.full(len(self), self.per_step)
        left_over = self.n_rows % self.per_step
        if left_over:
            # Of the sorted batches of the last window the last one, of its longest rows, is smaller. It
            # comes where the order has the largest number.
            number = (len(self) - 1) // self.batches_per_window
            first = number * self.batches_per_window
            order = self._order_of_batches(epoch, number, len(self) - first)
            counts[first + int(np.argmax(order))] = left_over
        return counts

    def lists(self, epoch: int, step: int, *, together: bool = False) -> list[LabelledList]:
        window_number, batch_number = divmod(step, self.batches_per_window)
        if self._planned is None or self._planned.key != (epoch, window_number):
            self._planned, self._lists_by_row = self._plan_window(epoch, window_number, together)
        lists = []
        for row in self._planned.batches[batch_number][self.rank :: self.world_size]:
            if row in self._lists_by_row:
                lists.append(self._lists_by_row[row])
            else:
                lists.append(self.rows.draw(epoch, row))
        return lists

    def draw_from(self, rows: Rows) -> None:
        """Draw other documents for the same rows, from the next batch on."""
        assert len(rows) == self.n_rows, "the plan of an epoch counts the rows"
        self.rows = rows
        self._planned = None
        self._lists_by_row = {}
        self._version += 1

    def freeze_window(self, epoch: int, step: int) -> None:
        """Freeze the rows of the window that this step is in the middle of: its batches hold the
        same rows after :meth:`draw_from`, whatever is drawn for them.

        So an epoch visits each row once, though the rows are replaced in its midst. All processes
        must call it together.
        """
        window_number, batch_number = divmod(step, self.batches_per_window)
        if batch_number == 0:  # a window begins here, and is planned with the new rows
            return
        self._frozen, _ = self._plan_window(epoch, window_number, together=True)

    def frozen_batches(self, epoch: int, step: int) -> list[list[int]] | None:
        if self._frozen is None or self._frozen.key != (epoch, step // self.batches_per_window):
            return None
        return self._frozen.batches

    def restore_frozen(self, epoch: int, step: int, batches: list[list[int]]) -> None:
        number = step // self.batches_per_window
        rows = self._rows_of_window(epoch, number).tolist()
        frozen_rows = sorted(chain.from_iterable(batches))
        n_batches = math.ceil(len(rows) / self.per_step)
        if len(batches) != n_batches or frozen_rows != sorted(rows):
            raise InputError(
                f"the checkpoint must keep {n_batches} batches that hold {len(rows)} rows around step {step} of epoch {epoch} once each, and does not; take another checkpoint"
            )
        self._frozen = _Window((epoch, number), batches)

    def __getstate__(self) -> dict:
        # A spawned worker needs none of these: it only collates.
        return self.__dict__ | {"_permutation": None, "_planned": None, "_lists_by_row": {}}

    def _plan_window(self, epoch: int, number: int, together: bool) -> tuple[_Window, ListsByRow]:
        """The batches of a window, and the lists of this process that were drawn to plan them."""
        if self._frozen is not None and self._frozen.key == (epoch, number):
            return self._frozen, {}
        rows = self._rows_of_window(epoch, number)
        if self.batches_per_window == 1:
            return _Window((epoch, number), [rows.tolist()]), {}
        lengths_and_lists = self._draw_all(epoch, rows, together)
        # From here on a row is known by its place in the window, 0 to len(rows) - 1.
        order = np.argsort([length for length, _ in lengths_and_lists], kind="stable")
        sorted_batches = []
        for start in range(0, len(order), self.per_step):
            sorted_batches.append(order[start : start + self.per_step])
        batches = []
        lists_by_row: ListsByRow = {}
        for batch_number in self._order_of_batches(epoch, number, len(sorted_batches)):
            places = sorted_batches[batch_number]
            batches.append(rows[places].tolist())
            for place in places[self.rank :: self.world_size]:
                _, drawn_list = lengths_and_lists[place]
                lists_by_row[int(rows[place])] = drawn_list
        return _Window((epoch, number), batches), lists_by_row

    def _order_of_batches(self, epoch: int, number: int, n_batches: int) -> np.ndarray:
        """In which order the batches of a window come, which are sorted by length."""
        return np.random.default_rng([self.seed, epoch, number]).permutation(n_batches)

    def _rows_of_window(self, epoch: int, number: int) -> np.ndarray:
        if self._permutation is None or self._permutation[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._permutation = (epoch, rng.permutation(self.n_rows))
        size = self.per_step * self.batches_per_window
        return self._permutation[1][number * size : (number + 1) * size]

    def _draw_all(self, epoch: int, rows: np.ndarray, together: bool) -> list[LengthAndList]:
        """Draw the lists of some rows. If all processes ask together, each draws a share of them,
        and they exchange the shares.
        """
        shared = (
            together
            and self.world_size > 1
            and distributed.is_initialized()
            and distributed.get_world_size() == self.world_size
        )
        if not shared:
            return self._draw_here(epoch, rows)
        # Row n is drawn by process n % world_size, as the n // world_size-th of its share.
        own_share = self._draw_here(epoch, rows[self.rank :: self.world_size])
        shares: list[list[LengthAndList]] = [[] for _ in range(self.world_size)]
        distributed.all_gather_object(shares, own_share)
        drawn = []
        for n in range(len(rows)):
            drawn.append(shares[n % self.world_size][n // self.world_size])
        return drawn

    def _draw_here(self, epoch: int, rows: np.ndarray) -> list[LengthAndList]:
        drawn = []
        for row in rows:
            drawn_list = self.rows.draw(epoch, row)
            drawn.append((self.length(drawn_list), drawn_list))
        return drawn
