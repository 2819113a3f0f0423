"""Checkpoints of runs, written whole and read as data: nothing in them is executed."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from zipfile import BadZipFile, ZipFile

import torch

from ltr.entries import check_entries, parse_json, shown
from ltr.errors import InputError, local_path

log = logging.getLogger(__name__)

# Those names in the folder of a run that the floors below ltr.run need, too; RunFolder has the
# others.
CONFIG = "config.yaml"
RESULTS = "metrics.json"
CHECKPOINTS = "checkpoints"
NEGATIVES_FOLDER = "negatives"
# Files in the folder of checkpoints.
BEST = "best.ckpt"
LAST = "last.ckpt"
# In which form a run is written: ``format`` of metrics.json, and of ``run`` in each checkpoint. It
# counts up when a run of before could be read wrongly.
FORMAT = 1


class RunEntry(TypedDict):
    """What a run of ltr adds to its checkpoints, see :mod:`ltr.run.checkpoints`."""

    format: int
    identity: dict[str, Any]
    monitor: str | None
    precision: NotRequired[str]
    scores: dict[int, float]
    stopped: bool


class CheckpointEntries(TypedDict):
    """Those entries of Lightning's checkpoint that are read here."""

    state_dict: dict[str, Any]
    hyper_parameters: NotRequired[dict[str, Any]]
    global_step: NotRequired[int]
    callbacks: NotRequired[dict[str, Any]]
    run: NotRequired[RunEntry]


# The part of a checkpoint of Lightning that tells how far training is.


class _CounterEntry(TypedDict):
    processed: int


class _EpochProgressEntry(TypedDict):
    current: _CounterEntry


class _FitLoopEntry(TypedDict):
    epoch_progress: _EpochProgressEntry


class _LoopsEntry(TypedDict):
    fit_loop: _FitLoopEntry


class ResumableEntries(TypedDict):
    """What a checkpoint must have to be resumed, beside its weights."""

    global_step: int
    loops: _LoopsEntry
    callbacks: dict[str, Any]
    optimizer_states: list[dict[str, Any]]
    lr_schedulers: list[dict[str, Any]]


REQUIRED_KEYS = {"state_dict", "pytorch-lightning_version"}  # in every checkpoint of Lightning


def check_format(entries: dict[str, Any], where: str | Path) -> None:
    """Check that a run is written as this ltr writes runs.

    Args:
        entries: of its metrics.json, or of ``run`` in a checkpoint.
        where: the file, for errors.

    Raises:
        InputError: if it is not.
    """
    if entries.get("format") != FORMAT:
        raise InputError(
            f"{where}: this ltr reads runs of format {FORMAT}, got {shown(entries.get('format'))}; train the run again, or test again what was never trained, in another folder"
        )


def check_resumable(checkpoint: Mapping[str, Any], file: str | Path) -> None:
    """Raise an InputError for a checkpoint that says in no known way where its run stands."""
    check_entries(checkpoint, ResumableEntries, file, "take another one")


def holds_checkpoints(folder: Path) -> bool:
    """Whether a folder is that of a run that has been trained."""
    return any((folder / CHECKPOINTS).glob("*.ckpt"))


def best_or_last_checkpoint(folder: Path, option: str) -> Path:
    """The best weights of a run, or the last ones where it kept no best.

    Args:
        folder: of the run.
        option: the one that asked for them, for errors.

    Raises:
        InputError: if it has neither.
    """
    best = folder / CHECKPOINTS / BEST
    last = folder / CHECKPOINTS / LAST
    if best.is_file():
        return best
    if last.is_file():
        log.warning("%s: there is no best.ckpt; taking last.ckpt", folder)
        return last
    raise InputError(
        f"{option} best: there is no {best.absolute()}; train first, or name a checkpoint file"
    )


def directory_of_start(checkpoint: Path) -> Path | None:
    """The working directory in which the run of a checkpoint was started; None where that is not
    known.
    """
    try:
        content = parse_json((checkpoint.absolute().parents[1] / RESULTS).read_bytes())
    except (OSError, ValueError, IndexError):
        return None
    directory = content.get("directory") if isinstance(content, dict) else None
    return Path(directory) if isinstance(directory, str) else None


def read_checkpoint(
    path: str | Path, option: str = "--ckpt_path", *, checksums: bool = True
) -> dict[str, Any]:
    """A checkpoint of Lightning.

    Args:
        path: the file.
        option: the one that names it, for errors.
        checksums: whether to compare them; a caller that reads no tensors need not.

    Raises:
        InputError: if it is not there, can't be read, is damaged, or is something else.
    """
    local_path(option, path)
    if not Path(path).is_file():
        raise InputError(f"{option} {path}: there is no such file")
    if Path(path).name == CONFIG:  # as fit takes it: users name a run by it, too
        raise InputError(
            f"{option} {path}: the file is no checkpoint; a run is named by its folder, {Path(path).parent}"
        )
    try:
        checkpoint = _from_file(Path(path), checksums)
    except Exception as error:  # a broken file may raise anything in the reader
        raise InputError(
            f"{option} {path}: the checkpoint can't be read ({type(error).__name__}); take another one"
        ) from None
    keys = checkpoint.keys() if isinstance(checkpoint, dict) else set()
    missing_keys = sorted(REQUIRED_KEYS - keys)
    if missing_keys:
        missing = " and no ".join(missing_keys)
        raise InputError(
            f"{option} {path}: this is no Lightning checkpoint, it has no {missing}; weights alone can be loaded in Python"
        )
    if isinstance(checkpoint.get("run"), dict):  # else Lightning has written it for no run of ltr
        check_format(checkpoint["run"], f"{option} {path}")
    check_entries(checkpoint, CheckpointEntries, f"{option} {path}", "take another one")
    return checkpoint


def _from_file(path: Path, checksums: bool) -> Any:
    if checksums:
        # torch compares no checksums, and would take damaged numbers for weights.
        with ZipFile(path) as archive:
            damaged = archive.testzip()
            if damaged:
                raise BadZipFile(damaged)
    # The file is mapped: its tensors are read when they are used.
    return torch.load(path, "cpu", weights_only=True, mmap=True)


def write_checkpoint(checkpoint: dict[str, Any], file: Path) -> None:
    """Write a checkpoint of Lightning, and wait until it is on the disk.

    Lightning itself would write one copy into memory, and another into the folder of temporary
    files.
    """
    # A killed process may have left ``file`` as a hard link to another checkpoint, to best.ckpt for
    # example. To write into it would overwrite that one too.
    file.unlink(missing_ok=True)
    try:
        with open(file, "wb") as stream:
            torch.save(checkpoint, stream)
    except (OSError, RuntimeError) as error:
        # While torch handles the OSError of the file, it raises a RuntimeError of its own: the
        # OSError is the context of that one.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, str(file)) from None
    wait_until_on_disk(file)


def wait_until_on_disk(file: Path) -> None:
    """Wait until a file is there even after a crash of the machine."""
    with open(file, "rb") as stream:
        os.fsync(stream.fileno())
