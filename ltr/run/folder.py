"""The folder of a run: where everything lies, who owns it, and which checkpoint is meant."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from filelock import FileLock, Timeout
from lightning.fabric.utilities.cloud_io import _load

from ltr.errors import InputError

log = logging.getLogger(__name__)


class RunFolder:
    """The files of a run, in a folder that need not be there yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.last, self.best = self.checkpoints / "last.ckpt", self.checkpoints / "best.ckpt"
        self.config, self.log = self.path / "config.yaml", self.path / "train.log"
        self.results = self.path / "metrics.json"

    def check_writable(self) -> None:
        """Raise an InputError if nothing can be written here."""
        whole = self.path.absolute()
        there = next(path for path in (whole, *whole.parents) if path.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            hint = "choose another one (--trainer.default_root_dir)"
            raise InputError(f"{self.path} must be a folder that can be written to, and {there} can't; {hint}")

    def holds_weights(self) -> bool:
        """Whether something was trained here."""
        return any(self.checkpoints.glob("*.ckpt"))

    def of_step(self, step: int) -> Path:
        """The file of one of the best weights, where several are kept."""
        return self.checkpoints / f"step={step}.ckpt"

    def steps(self) -> list[int]:
        """The steps of those files."""
        names = (file.stem.removeprefix("step=") for file in self.checkpoints.glob("step=*.ckpt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def kept_scores(self, monitor: str | None) -> dict[int, float]:
        """The scores of the best weights that are kept, by step; those of another metric are left out."""
        scores: dict[int, float] = {}
        for file in (self.best, *map(self.of_step, self.steps())):
            found = read_checkpoint(file, quick=True) if file.is_file() else {}
            run, step = found.get("run", {}), found.get("global_step", -1)
            if run.get("monitor") == monitor and step in run.get("scores", {}):
                scores[step] = run["scores"][step]
        return scores

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the folder for one command at a time: results never stand beside weights that they are not of.

        Raises:
            InputError: if another process holds it.
        """
        began, lock = self.path.is_dir(), FileLock(self.path / ".lock")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            hint = "wait for it, or choose another folder (--trainer.default_root_dir)"
            raise InputError(f"{self.path}: another command is running in this folder; {hint}") from None
        try:
            yield
        except BaseException:
            if not began and {file.name for file in self.path.iterdir()} <= {".lock", self.log.name}:
                shutil.rmtree(self.path)  # a run that never began leaves nothing
            raise
        finally:
            lock.release()

    def to_resume(self) -> Path | None:
        """The checkpoint that ``--ckpt_path last`` means to ``fit``; None where a run has none yet."""
        if self.last.is_file():
            return self.last
        # Killed between the two files of its first validation: the best weights are the last ones.
        return self.best if self.best.is_file() and "optimizer_states" in read_checkpoint(self.best) else None

    def to_measure(self, which: str, option: str = "--ckpt_path") -> Path:
        """The checkpoint that ``--ckpt_path best`` or ``last`` means to the other commands; an InputError if there is none."""
        file = self.best if which == "best" else self.last
        if file.is_file():
            return file
        if which == "best" and self.last.is_file():
            log.warning("%s: there is no best.ckpt; taking last.ckpt", self.path)
            return self.last
        raise InputError(f"{option} {which}: there is no {file.absolute()}; train first, or name a checkpoint file")


def read_checkpoint(path: str | Path, option: str = "--ckpt_path", *, quick: bool = False) -> dict[str, Any]:
    """A checkpoint of Lightning, from a file or a URL. It is data: nothing in it is ever run.

    Args:
        path: the file.
        option: the one that names it, for errors.
        quick: leave out the checksums of its tensors, for what needs none of them.

    Raises:
        InputError: if it is not there, can't be read, is damaged, or is something else.
    """
    remote = "://" in str(path)
    if not remote and not Path(path).is_file():
        raise InputError(f"{option} {path}: there is no such file")
    try:
        if not (remote or quick):
            with ZipFile(path) as archive:  # torch itself compares no checksums, and takes damaged numbers for weights
                if damaged := archive.testzip():
                    raise BadZipFile(damaged)
        # A file is mapped: its tensors are read when they are used.
        found = _load(path, "cpu", weights_only=True) if remote else torch.load(path, "cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever a broken file makes the reader stumble over
        raise InputError(f"{option} {path}: the checkpoint can't be read ({type(error).__name__}); take another one") from None
    needed = {"state_dict", "pytorch-lightning_version"}
    if not isinstance(found, dict) or not needed <= found.keys():
        hint = "weights alone can be loaded in Python"
        raise InputError(f"{option} {path}: this is no Lightning checkpoint, it has no {' or no '.join(sorted(needed))}; {hint}")
    return found


def write_checkpoint(checkpoint: dict[str, Any], file: Path) -> None:
    """Write a checkpoint of Lightning, and wait until it is on the disk.

    Lightning itself would write one copy into memory, and another into the folder of temporary files.
    """
    file.unlink(missing_ok=True)  # what a killed process left may be a second name of other weights, which stay as they are
    try:
        with open(file, "wb") as opened:
            torch.save(checkpoint, opened)
    except (OSError, RuntimeError) as error:  # torch hides what the file has said
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, str(file)) from None
    to_disk(file)


def second_name(file: Path, target: Path) -> None:
    """A second name for a file that never changes, or a copy where the disk has no hard links; whole or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(file, temporary)
    except OSError:
        shutil.copyfile(file, temporary)
        to_disk(temporary)
    os.replace(temporary, target)


def to_disk(file: Path) -> None:
    """Wait until a file is on the disk."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
