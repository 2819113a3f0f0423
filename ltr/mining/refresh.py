"""The negatives of a training run: when they are mined anew, and the folders that hold them."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ltr.data.artefact import key_of
from ltr.data.collection import Collection
from ltr.entries import check_entries
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.miner import Miner
from ltr.processes import by_every_rank, by_rank_0


class RefreshMoment(NamedTuple):
    """When in a training: epochs and optimiser steps that are done."""

    epoch: int
    step: int


@dataclass(frozen=True)
class NegativesInForce:
    """The negatives that training draws from, as a checkpoint names them.

    Attributes:
        epoch, step: of the refresh that made them; the step is in the name of their folder.
        key: of their folder's manifest.
    """

    epoch: int
    step: int
    key: str

    def state_dict(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return {"epoch": self.epoch, "step": self.step, "key": self.key}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "NegativesInForce":
        """From what a checkpoint has kept."""
        check_entries(state, cls, cls.__name__, "take another checkpoint")
        return cls(state["epoch"], state["step"], state["key"])


@dataclass(frozen=True)
class RefreshSchedule:
    """When a refresh is due: every so many epochs, or optimiser steps; None for never."""

    epochs: int | None
    steps: int | None

    def is_due(self, now: RefreshMoment, last: NegativesInForce | None) -> bool:
        """Whether a refresh has become due since the last one that was."""
        last_epoch = 0 if last is None else last.epoch
        last_step = 0 if last is None else last.step
        # Due when a multiple of `steps` (or `epochs`) was reached since the last refresh was due;
        # several such multiples make one refresh.
        if self.steps is not None:
            return now.step // self.steps > last_step // self.steps
        return self.epochs is not None and now.epoch // self.epochs > last_epoch // self.epochs


class RefreshFolders:
    """The folders ``step=N`` of a run's refreshes.

    Args:
        root: holds them.
        keep: how many of the newest stay; None: all. The one that the last checkpoint needs stays
            in any case.
    """

    def __init__(self, root: Path, keep: int | None) -> None:
        self.root = root
        self.keep = keep

    def path(self, step: int) -> Path:
        """The folder of a refresh."""
        return self.root / f"step={step}"

    def open(self, step: int, collection: Collection) -> MinedNegatives:
        """The negatives of a refresh, on every process."""
        return by_every_rank(lambda: MinedNegatives.open(self.path(step), collection))

    def open_for_checkpoint(
        self, in_force: NegativesInForce, collection: Collection
    ) -> MinedNegatives:
        """The negatives that a checkpoint was trained on, on every process.

        Raises:
            InputError: if they are not there any more.
        """
        folder = self.path(in_force.step)

        def open_if_same() -> MinedNegatives:
            if key_of(folder) != in_force.key:
                raise InputError(
                    f"the checkpoint was trained on the negatives in {folder}, which are not there (any more); resume from another checkpoint, or begin again"
                )
            return MinedNegatives.open(folder, collection)

        return by_every_rank(open_if_same)

    def mine_or_open(
        self,
        miner: Miner,
        moment: RefreshMoment,
        previous: MinedNegatives | None,
        mine: Callable[[], MinedNegatives],
        *,
        write: bool,
    ) -> MinedNegatives:
        """The negatives of this moment, on every process.

        They are mined. A resumed run opens them instead, where it finds those that it had mined at
        this step before it was killed. The very first are mined in any case: a run that begins does
        not rely on what an earlier one has left in its folder.

        Args:
            miner: its key says whether a folder holds what it would find.
            moment: of the training.
            previous: the negatives that were in force until now; None at first.
            mine: lets it find them.
            write: whether they are kept as a folder.
        """
        folder = self.path(moment.step)
        if previous is not None and by_rank_0(lambda: key_of(folder) == miner.key):
            return self.open(moment.step, miner.collection)
        negatives = mine()
        negatives.manifest.update(epoch=moment.epoch, step=moment.step)
        negatives.note_overlap(previous)
        if write:
            by_rank_0(lambda: _replace(folder, negatives, miner.collection))
        return negatives

    def remove_older(self, step: int, needed: int | None) -> None:
        """Remove the folders of refreshes before this step that need not stay. Overlays of an audit
        stay.

        Args:
            step: of the newest refresh.
            needed: the step of the refresh that the last checkpoint names; None: there is none.
        """
        by_rank_0(lambda: self._remove_older(step, needed))

    def _remove_older(self, step: int, needed: int | None) -> None:
        if self.keep is None:
            return
        older_steps = []
        for folder in self.root.glob("step=*"):
            number = folder.name.removeprefix("step=")
            if number.isdecimal() and int(number) < step:  # an overlay's name goes on with letters
                older_steps.append(int(number))
        older_steps.sort(reverse=True)
        n_older_kept = self.keep - 1  # the newest refresh is one of those that stay
        for older_step in older_steps[n_older_kept:]:
            if older_step != needed:
                shutil.rmtree(self.path(older_step))


def _replace(folder: Path, negatives: MinedNegatives, collection: Collection) -> None:
    """Write the folder; negatives of other weights may lie there, of an earlier run in this place."""
    if folder.exists():
        shutil.rmtree(folder)
    negatives.save(folder, collection)
