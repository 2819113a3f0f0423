"""The folder of a run: where its files lie, who owns it, and which checkpoint is meant.

What training keeps for itself alone is not named here: the folder ``encodings``
(:mod:`ltr.search.encoding_places`).
"""

import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ltr.checkpoint import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    NEGATIVES_FOLDER,
    RESULTS,
    best_or_last_checkpoint,
    holds_checkpoints,
    read_checkpoint,
    wait_until_on_disk,
)
from ltr.data.outputs import check_inside
from ltr.data.whole_files import remove
from ltr.errors import InputError, local_path
from ltr.processes import by_every_rank, by_rank_0, gather_objects, rank, world_size

log = logging.getLogger(__name__)

CALIBRATION = "calibration.json"  # in a run folder, and in what is exported of one

# A process waits so long for the files of the others to appear in a common folder.
COMMON_SECONDS = 5.0


class RunFolder:
    """The files of a run, in a folder that need not be there yet.

    Attributes:
        path: the folder.
        checkpoints: the folder of the checkpoints.
        last: the newest checkpoint.
        best: the checkpoint of the best weights.
        temporary_checkpoint: a whole checkpoint while it is written, before it is named.
        temporary_best: the weights of the best one alone, likewise.
        config: the whole configuration of ``fit``.
        log: every message, also those of other packages.
        metrics: the metrics of training, validation and test.
        per_query: the metrics of each test query.
        test_run: the test candidates in their order, as a run file.
        predict_run: the same, written by ``predict``.
        ir_metadata: what made ``test_run``.
        calibration: what the scores of the best weights promise, written by ``ltr calibrate``.
        calibration_figure: its reliability figure.
        negatives: the folder of the negatives that were mined while training.
        grid_cell: written by ``ltr grid``: which options of the grid this run has.
        set_row: of a folder :meth:`folder_of_set`: its row of the table of measured sets. It is
            written last, so where it is, all that was measured is there.
        sets: the folder of what was measured on other data sets, see :meth:`folder_of_set`.
        splits: the folder of what was measured on other splits than test, see :meth:`folder_of_split`.
        lock: held by the command that works in the folder.
        curves: the folder of the CSV files of the loggers.
        wandb: the folder of Weights & Biases.
        wandb_id: the id of the run there.
    """

    def __init__(self, path: str | Path) -> None:
        local_path("the run folder", path)
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.last = self.checkpoints / LAST
        self.best = self.checkpoints / BEST
        self.temporary_checkpoint = self.checkpoints / ".checkpoint.tmp"
        self.temporary_best = self.checkpoints / ".best.tmp"
        self.config = self.path / CONFIG
        self.log = self.path / "train.log"
        self.metrics = self.path / RESULTS
        self.per_query = self.path / "per_query.tsv"
        self.test_run = self.path / "test.run"
        self.predict_run = self.path / "predict.run"
        self.ir_metadata = self.path / "ir-metadata.yml"
        self.calibration = self.path / CALIBRATION
        self.calibration_figure = self.path / "calibration.svg"
        self.negatives = self.path / NEGATIVES_FOLDER
        self.grid_cell = self.path / "cell.json"
        self.set_row = self.path / "row.json"
        self.sets = self.path / "sets"
        self.splits = self.path / "splits"
        self.lock = self.path / ".lock"
        self.curves = self.path / "logs"
        self.wandb = self.path / "wandb"
        self.wandb_id = self.wandb / "run-id"

    def folder_of_set(self, name: str) -> "RunFolder":
        """Where the results on another data set lie: laid out as those on the run's own data, which
        they leave as they are.
        """
        return RunFolder(self.sets / name)

    def folder_of_split(self, split: str) -> "RunFolder":
        """Where the results on a split lie: those of ``test`` here, those of each other split in a
        folder below. A folder :meth:`folder_of_set` has splits, too.
        """
        return self if split == "test" else RunFolder(self.splits / split)

    def run_path(self) -> Path:
        """The path of the run, also of a :meth:`folder_of_set` and a :meth:`folder_of_split`."""
        path = self.path
        while path.parent.name in (self.sets.name, self.splits.name):
            path = path.parent.parent
        return path

    def experiment(self) -> str:
        """The name of the folder that the run lies in; empty where its path has none."""
        return self.run_path().parent.name

    def remove_rankings(self) -> None:
        """Remove what the weights of before have ranked, on all data sets and splits."""
        for file in (self.test_run, self.ir_metadata, self.per_query, self.predict_run):
            file.unlink(missing_ok=True)
        for folder in (self.sets, self.splits):
            remove(folder)

    def check_writable(self) -> None:
        """Raise an InputError if nothing can be written here."""
        check_inside(self.path, "--trainer.default_root_dir")

    def check_no_hpc_checkpoint(self) -> None:
        """Raise an InputError if Lightning has left a checkpoint here at a signal of SLURM: in a job
        it would load it unasked and without our checks.
        """
        files = sorted(self.path.glob("hpc_ckpt*"))
        if files:
            raise InputError(
                f"{files[0]} is a checkpoint of Lightning and not of this run, and a job of SLURM would load it unasked; remove it, or choose another folder (--trainer.default_root_dir)"
            )

    def check_seen_by_all(self) -> None:
        """Raise an InputError on every rank unless all processes see one folder here. Else the one
        that resumes would go on from the last checkpoint, and another begin anew. Rank 0 has the
        folder already (:meth:`owned`).
        """
        if world_size() == 1:
            return
        token = by_rank_0(lambda: secrets.token_hex(4))
        # Each process writes a file and looks for those of all. Writing makes a network disk forget
        # what it held to be in the folder.
        names = [f".process-{token}-{number}" for number in range(world_size())]
        file = self.path / names[rank()]
        new_folders = self._new_folders()

        def write() -> None:
            self.path.mkdir(parents=True, exist_ok=True)
            file.touch()

        by_every_rank(write)
        until = time.monotonic() + COMMON_SECONDS
        while not (sees_all := {*names} <= {*os.listdir(self.path)}) and time.monotonic() < until:
            time.sleep(0.1)
        all_see = all(gather_objects(sees_all))
        file.unlink()
        if all_see:
            self._warn_of_local_locks()
            return
        if rank() != 0:  # rank 0 owns its folder, and leaves it as it was
            _remove_empty(new_folders)
        raise InputError(
            f"{self.path.absolute()} must be one folder that all processes of a run see, and process {rank()} of {world_size()} does not see the files of all others there; name a folder on a common disk (--trainer.default_root_dir)"
        )

    def _warn_of_local_locks(self) -> None:
        """Warn where another rank could take the lock that rank 0 holds."""
        if any(gather_objects(rank() != 0 and self._could_take_lock())):
            log.warning(
                "%s lies on a disk whose locks hold on one machine alone (of NFS: nolock or local_lock, of Lustre: localflock); start no second command in this folder from another machine",
                self.path,
            )

    def _could_take_lock(self) -> bool:
        """Whether this process gets the lock. False, too, where the disk has no locks, and where
        the lock is not there: to ask for it would write it.
        """
        if not self.lock.is_file():
            return False
        try:
            with FileLock(self.lock, timeout=0):
                return True
        except OSError:  # a Timeout is one
            return False

    def _new_folders(self) -> list[Path]:
        """The run folder and those above it that are not there yet, the innermost first."""
        new_folders = []
        for folder in (self.path, *self.path.parents):
            if folder.is_dir():
                break
            new_folders.append(folder)
        return new_folders

    def holds_checkpoints(self) -> bool:
        """Whether something was trained here."""
        return holds_checkpoints(self.path)

    def step_file(self, step: int) -> Path:
        """The file of the weights of one step: such files are there where several of the best are
        kept.
        """
        return self.checkpoints / f"step={step}.ckpt"

    def kept_steps(self) -> list[int]:
        """The steps N whose weights are kept in a file step=N.ckpt, in order."""
        steps = []
        for file in self.checkpoints.glob("step=*.ckpt"):
            number = file.stem.removeprefix("step=")
            if number.isdecimal():
                steps.append(int(number))
        return sorted(steps)

    def kept_scores(self, monitor: str | None) -> dict[int, float]:
        """The scores of the best weights that are kept, by step; higher is better, see
        :attr:`ltr.run.checkpoint_options.BestOptions.sign`. Scores by another metric than
        ``monitor`` are left out.
        """
        files = [self.best]
        for step in self.kept_steps():
            files.append(self.step_file(step))
        scores: dict[int, float] = {}
        for file in files:
            if not file.is_file():
                continue
            checkpoint = read_checkpoint(file, checksums=False)
            step = checkpoint.get("global_step", -1)
            entry = checkpoint.get("run", {})  # what ltr.run.checkpoints adds to each checkpoint
            # Its "scores" has one for each checkpoint that was kept when it was written. We take that
            # of the checkpoint itself.
            if entry.get("monitor") == monitor and step in entry.get("scores", {}):
                scores[step] = entry["scores"][step]
        return scores

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the folder for one command at a time. Two at once could leave the results of one
        beside the weights of the other.

        Raises:
            InputError: if another process holds it.
        """
        new_folders = self._new_folders()
        lock = FileLock(self.lock)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.path}: another command is running in this folder; wait for it, or choose another folder (--trainer.default_root_dir)"
            ) from None
        logs_before = self._logs()
        metrics_before = _written_at(self.metrics)
        try:
            yield
        except BaseException:
            # Once training has begun, ResultsWriter has written metrics.json.
            has_begun = _written_at(self.metrics) != metrics_before
            self._remove_traces(self._logs() - logs_before, new_folders, has_begun)
            raise
        finally:
            lock.release()

    def _remove_traces(
        self, new_logs: set[Path], new_folders: Sequence[Path], has_begun: bool
    ) -> None:
        """Remove what a failed start has left.

        * Logs of Weights & Biases stay if training has begun, curves if they have a row.
        * Folders of logs go if no start has left anything in them.
        * Of a run that is new, all goes if there is no more than its lock, log and configuration.
        """
        for logs in new_logs:
            in_wandb = logs.parent == self.wandb
            is_kept = has_begun if in_wandb else (logs / "metrics.csv").exists()
            if not is_kept:
                remove(logs)
        for file in self.wandb.glob("*"):
            if not file.exists():  # a link to what has been removed
                file.unlink()
        for folder in (self.curves, self.wandb):
            with suppress(OSError):  # logs of other starts, or none
                folder.rmdir()
        names = {file.name for file in self.path.iterdir()}
        if new_folders and names <= {self.lock.name, self.log.name, self.config.name}:
            shutil.rmtree(self.path)
            _remove_empty(new_folders[1:])

    def _logs(self) -> set[Path]:
        """Folders of the loggers, one for each start; files and links of Weights & Biases."""
        return {*self.curves.glob("*"), *self.wandb.glob("*")}

    def file_to_resume(self) -> Path | None:
        """The checkpoint that ``--ckpt_path last`` means to ``fit``; None where a run has none yet."""
        if self.last.is_file():
            return self.last
        # A run that was killed between the two files of its first validation has best.ckpt alone:
        # its best weights are its last ones. Kept with best.save_weights_only, they resume nothing.
        if self.best.is_file() and "optimizer_states" in read_checkpoint(self.best):
            return self.best
        return None

    def complete_last(self) -> None:
        """Let ``best.ckpt`` be ``last.ckpt``, too, where a run was killed between writing the two,
        which hold the same weights.
        """
        if not self.last.is_file():
            link_or_copy(self.best, self.last)

    def file_named(self, which: str, option: str = "--ckpt_path") -> Path:
        """The file ``best`` (the last one where no best was kept) or ``last``; an InputError if there
        is none. What ``--ckpt_path last`` means to ``fit`` is :meth:`file_to_resume`.
        """
        if which == "best":
            return best_or_last_checkpoint(self.path, option)
        if self.last.is_file():
            return self.last
        raise InputError(
            f"{option} {which}: there is no {self.last.absolute()}; train first, or name a checkpoint file"
        )


def run_of_checkpoint(file: Path) -> RunFolder | None:
    """The run whose folder of checkpoints a file lies in, by the path of the file; None for a file
    with less than two folders above it.
    """
    parents = file.absolute().parents
    if len(parents) < 2:
        return None
    return RunFolder(parents[1])


def _written_at(file: Path) -> int | None:
    """When a file was written last, in nanoseconds; None where it is not there."""
    return file.stat().st_mtime_ns if file.is_file() else None


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, the innermost first, up to one that others have put something into."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def link_or_copy(file: Path, target: Path) -> None:
    """Give a file that never changes a second name, or copy it where the disk has no hard links.
    The second name appears whole or not at all.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(file, temporary)
        except OSError:
            shutil.copyfile(file, temporary)
            wait_until_on_disk(temporary)
        os.replace(temporary, target)
    finally:
        # After a copy that failed. Also where both names are links to one file: os.replace then
        # leaves both.
        temporary.unlink(missing_ok=True)
