"""The folder of a run: where everything lies, who owns it, and which checkpoint is meant."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ltr.checkpoint import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    NEGATIVES,
    best_checkpoint,
    holds_checkpoints,
    read_checkpoint,
    wait_until_on_disk,
)
from ltr.errors import InputError

log = logging.getLogger(__name__)


class RunFolder:
    """The files of a run, in a folder that need not be there yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.last = self.checkpoints / LAST
        self.best = self.checkpoints / BEST
        self.config = self.path / CONFIG
        self.log = self.path / "train.log"
        self.results = self.path / "metrics.json"
        self.per_query = self.path / "per_query.tsv"
        self.ranking = self.path / "test.run"
        self.prediction = self.path / "predict.run"
        self.metadata = self.path / "ir-metadata.yml"
        self.negatives = self.path / NEGATIVES
        self.cell = self.path / "cell.json"  # which one of a grid it is

    def check_writable(self) -> None:
        """Raise an InputError if nothing can be written here."""
        whole = self.path.absolute()
        there = next(path for path in (whole, *whole.parents) if path.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            hint = "choose another one (--trainer.default_root_dir)"
            raise InputError(
                f"{self.path} must be a folder that can be written to, and {there} can't; {hint}"
            )

    def holds_weights(self) -> bool:
        """Whether something was trained here."""
        return holds_checkpoints(self.path)

    def of_step(self, step: int) -> Path:
        """The file of one of the best weights, where several are kept."""
        return self.checkpoints / f"step={step}.ckpt"

    def steps(self) -> list[int]:
        """The steps of those files."""
        names = (file.stem.removeprefix("step=") for file in self.checkpoints.glob("step=*.ckpt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def kept_scores(self, monitor: str | None) -> dict[int, float]:
        """The scores of the best weights that are kept, by step; those of another metric are left
        out.
        """
        scores: dict[int, float] = {}
        for file in (self.best, *map(self.of_step, self.steps())):
            found = read_checkpoint(file, quick=True) if file.is_file() else {}
            run = found.get("run", {})
            step = found.get("global_step", -1)
            if run.get("monitor") == monitor and step in run.get("scores", {}):
                scores[step] = run["scores"][step]
        return scores

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the folder for one command at a time: results never stand beside weights that they
        are not of.

        Raises:
            InputError: if another process holds it.
        """
        began = self.path.is_dir()
        lock = FileLock(self.path / ".lock")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            hint = "wait for it, or choose another folder (--trainer.default_root_dir)"
            raise InputError(
                f"{self.path}: another command is running in this folder; {hint}"
            ) from None
        try:
            yield
        except BaseException:
            if not began and {file.name for file in self.path.iterdir()} <= {
                ".lock",
                self.log.name,
            }:
                shutil.rmtree(self.path)  # a run that never began leaves nothing
            raise
        finally:
            lock.release()

    def to_resume(self) -> Path | None:
        """The checkpoint that ``--ckpt_path last`` means to ``fit``; None where a run has none yet."""
        if self.last.is_file():
            return self.last
        # Killed between the two files of its first validation: the best weights are the last ones.
        return (
            self.best
            if self.best.is_file() and "optimizer_states" in read_checkpoint(self.best)
            else None
        )

    def to_measure(self, which: str, option: str = "--ckpt_path") -> Path:
        """The checkpoint that ``--ckpt_path best`` or ``last`` means to the other commands; an
        InputError if there is none.
        """
        if which == "best":
            return best_checkpoint(self.path, option)
        if self.last.is_file():
            return self.last
        raise InputError(
            f"{option} {which}: there is no {self.last.absolute()}; "
            "train first, or name a checkpoint file"
        )


def second_name(file: Path, target: Path) -> None:
    """A second name for a file that never changes, or a copy where the disk has no hard links;
    whole or not at all.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(file, temporary)
    except OSError:
        shutil.copyfile(file, temporary)
        wait_until_on_disk(temporary)
    os.replace(temporary, target)
