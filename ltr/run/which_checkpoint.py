"""Which checkpoint a command takes: the one that it resumes, or the one that it measures."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from lightning.pytorch.callbacks import Timer

from ltr.checkpoint import check_resumable, read_checkpoint
from ltr.errors import InputError
from ltr.run.identity import check_identity, ranker_options
from ltr.run.launchers import is_rank_0
from ltr.run.run_folder import RunFolder

log = logging.getLogger(__name__)

NEW_RUN = "to start a new run from its weights, take another folder and --init_from"


class NothingToDo(Exception):
    """A run is finished, and was told to resume."""


class Limits(NamedTuple):
    """Where a training ends: the options of the trainer.

    Attributes:
        max_epochs: None or -1 for no limit.
        max_steps: -1 for no limit.
        max_time: over all resumes; None for no limit.
    """

    max_epochs: int | None
    max_steps: int
    max_time: str | timedelta | dict[str, int] | None


def checkpoint_to_resume(
    folder: RunFolder, requested: str | None, identity: Mapping[str, Any], limits: Limits
) -> str | None:
    """The checkpoint that ``fit`` resumes from; None begins a run.

    Args:
        folder: of the run.
        requested: ``--ckpt_path``: ``last``, ``best``, a file, or None.
        identity: of the configuration, see :mod:`ltr.run.identity`.
        limits: of its trainer.

    Raises:
        InputError: if the folder holds a run that is not to be resumed, or nothing can resume from
            what was named.
        NothingToDo: if the run is finished.
    """
    if requested is None:
        # Only rank 0 refuses: where Lightning starts the other processes, each comes here alone and
        # later, and may see what rank 0 has already written for this run.
        if folder.holds_checkpoints() and is_rank_0():
            raise InputError(
                f"{folder.path} already holds a run; resume it (ltr fit {quote(str(folder.path))}), choose another folder "
                "(--trainer.default_root_dir), or remove it"
            )
        return None
    if requested == "last":
        file = folder.file_to_resume()
    else:
        file = Path(_file_of(folder, requested))
    if file is None:
        if folder.holds_checkpoints():
            raise InputError(
                f"{folder.path} holds weights that no run can resume from; to start from them: another folder, --init_from"
            )
        log.info("%s holds no checkpoint yet; the run begins", folder.path)
        return None
    checkpoint = read_checkpoint(file)
    is_of_this_run = file.resolve().parent == folder.checkpoints.resolve()
    if folder.holds_checkpoints() and not is_of_this_run:
        raise InputError(f"--ckpt_path {file} is not of the run in {folder.path}; {NEW_RUN}")
    if "optimizer_states" not in checkpoint:
        raise InputError(
            f"--ckpt_path {file} holds weights only, and no run can resume from it; {NEW_RUN}"
        )
    check_resumable(checkpoint, f"--ckpt_path {file}")
    check_identity(identity, checkpoint.get("run", {}).get("identity", {}), str(file), NEW_RUN)
    done = finished_message(checkpoint, limits)
    if done is None:
        log.info("resuming from %s, step %d", file, checkpoint["global_step"])
        return str(file)
    if not is_of_this_run:
        raise InputError(f"--ckpt_path {file}: {done}, so nothing is left to train; {NEW_RUN}")
    if file == folder.best and is_rank_0():
        folder.complete_last()
    raise NothingToDo(f"{folder.path}: {done}; nothing to do, nothing changed")


def checkpoint_to_measure(
    folder: RunFolder, requested: str | None, identity: Mapping[str, Any]
) -> str | None:
    """The checkpoint that a command measures; None for the weights that the model starts from.

    Args:
        folder: of the run.
        requested: ``--ckpt_path``: ``best``, ``last``, a file, or None.
        identity: of the configuration, see :mod:`ltr.run.identity`.

    Raises:
        InputError: if it is not there, is of another ranker, or none was named where there are
            several.
    """
    if requested is None:
        if folder.holds_checkpoints():
            raise InputError(
                f"{folder.path} holds trained weights; say which to take (--ckpt_path best or last), or choose another folder "
                "(--trainer.default_root_dir) for those that the model starts from"
            )
        log.warning(
            "no --ckpt_path: the weights that the model starts from are used, not trained ones"
        )
        return None
    file = _file_of(folder, requested)
    checkpoint_identity = read_checkpoint(file).get("run", {}).get("identity", {})
    hint = "take the configuration of its run: ltr test RUN"
    check_identity(ranker_options(identity), ranker_options(checkpoint_identity), file, hint)
    return file


def _file_of(folder: RunFolder, requested: str) -> str:
    """The file of ``best`` or ``last``; any other word is a file itself."""
    if requested in ("best", "last"):
        return str(folder.file_named(requested))
    return requested


def finished_message(checkpoint: dict[str, Any], limits: Limits) -> str | None:
    """Why a run has nothing left to train, as a message; None where something is left."""
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    steps = checkpoint["global_step"]
    # It has ended early; "stopped" in the state of Checkpoints says only that it was asked to.
    if checkpoint.get("run", {}).get("stopped"):
        return f"the run was stopped early at step {steps}"
    if 0 <= limits.max_steps <= steps:
        return f"the run has done its {steps} steps (trainer.max_steps)"
    if limits.max_epochs is not None and 0 <= limits.max_epochs <= epochs:
        return f"the run has done its {epochs} epochs (trainer.max_epochs), {steps} steps"
    timer = Timer(limits.max_time)
    timer.load_state_dict(checkpoint.get("callbacks", {}).get(timer.state_key, {}))
    left = timer.time_remaining()
    if left is not None and left <= 0:
        return f"the run has used up its time at step {steps} (trainer.max_time {limits.max_time}; give it more to train on)"
    return None
