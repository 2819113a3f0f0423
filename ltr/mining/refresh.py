"""The negatives of a training run: when they are mined anew, and the folders that hold them."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltr.data.artefact import key_of
from ltr.data.collection import Collection
from ltr.errors import InputError
from ltr.mining.miner import Miner
from ltr.mining.negatives import MinedNegatives
from ltr.processes import by_every_rank, by_rank_0


@dataclass(frozen=True)
class InForce:
    """The negatives that training draws from, as a checkpoint names them.

    Attributes:
        epoch, step: when a refresh was last due. Where a sample shows that the negatives are still
            fresh, these two move on, and the others stay.
        mined: the step of the refresh that made them.
        key: of their folder's manifest.
    """

    epoch: int
    step: int
    mined: int
    key: str

    def state_dict(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return asdict(self)


@dataclass(frozen=True)
class Schedule:
    """When a refresh is due: every so many epochs, or optimiser steps; None for never."""

    epochs: int | None
    steps: int | None

    def is_due(self, epoch: int, step: int, last: InForce | None) -> bool:
        """Whether a refresh has become due since the last one that was."""
        last_epoch = 0 if last is None else last.epoch
        last_step = 0 if last is None else last.step
        if self.steps is not None:
            return step // self.steps > last_step // self.steps
        return self.epochs is not None and epoch // self.epochs > last_epoch // self.epochs


class RefreshFolders:
    """The folders ``step=N`` of a run's refreshes.

    Args:
        root: holds them.
        keep: how many stay, the newest, that of this refresh among them; None: all. The one that
            the last checkpoint needs stays in any case.
    """

    def __init__(self, root: Path, keep: int | None) -> None:
        self.root = root
        self.keep = keep

    def of_step(self, step: int) -> Path:
        """The folder of a refresh."""
        return self.root / f"step={step}"

    def open(self, step: int, collection: Collection) -> MinedNegatives:
        """The negatives of a refresh, on every process."""
        return by_every_rank(lambda: MinedNegatives.open(self.of_step(step), collection))

    def of_checkpoint(self, in_force: InForce, collection: Collection) -> MinedNegatives:
        """The negatives that a checkpoint was trained on, on every process.

        Raises:
            InputError: if they are not there any more.
        """
        folder = self.of_step(in_force.mined)

        def opened() -> MinedNegatives:
            if key_of(folder) != in_force.key:
                raise InputError(
                    f"the checkpoint was trained on the negatives in {folder}, which are not there (any more); resume from another checkpoint, or begin again"
                )
            return MinedNegatives.open(folder, collection)

        return by_every_rank(opened)

    def mined(
        self,
        miner: Miner,
        epoch: int,
        step: int,
        before: MinedNegatives | None,
        context: Callable[[], AbstractContextManager],
        *,
        write: bool,
    ) -> MinedNegatives:
        """The negatives of this moment, on every process: mined, or opened where a resumed run
        finds those that it had mined here before it was killed. The very first are always mined:
        nothing yet binds the folder to this run.

        Args:
            miner: finds them.
            epoch, step: of the training.
            before: those that were in force until now; None at first.
            context: of the forward passes, for their precision.
            write: whether they are kept as a folder.
        """
        folder = self.of_step(step)
        if before is not None and by_rank_0(lambda: key_of(folder) == miner.key):
            return self.open(step, miner.collection)
        negatives = miner.mine(self.root.parent, context)
        negatives.manifest.update(epoch=epoch, step=step)
        if before is not None:
            negatives.manifest["overlap"] = round(negatives.overlap(before), 4)
        if write:
            by_rank_0(lambda: _write(negatives, folder, miner.collection))
        return negatives

    def remove_older(self, step: int, needed: int | None) -> None:
        """Remove the folders of earlier refreshes that need not stay. Overlays of an audit stay."""
        by_rank_0(lambda: self._remove_older(step, needed))

    def _remove_older(self, step: int, needed: int | None) -> None:
        if self.keep is None:
            return
        names = [folder.name.removeprefix("step=") for folder in self.root.glob("step=*")]
        older = [int(name) for name in names if name.isdecimal() and int(name) < step]
        for old in sorted(older, reverse=True)[self.keep - 1 :]:
            if old != needed:
                shutil.rmtree(self.of_step(old))


def _write(negatives: MinedNegatives, folder: Path, collection: Collection) -> None:
    if folder.exists():  # of other weights: an earlier run in this folder
        shutil.rmtree(folder)
    negatives.save(folder, collection)
