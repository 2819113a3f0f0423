"""Where the curves of a run go: CSV files, Weights & Biases where a project is named, and
TensorBoard where its logger is. All starts of a run are one run there.
"""

import logging
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment

from ltr.checkpoint import read_checkpoint
from ltr.data.whole_files import write_whole
from ltr.errors import InputError
from ltr.run import lightning_internals as internals
from ltr.run.launchers import is_rank_0
from ltr.run.run_folder import RunFolder
from ltr.run.wandb_place import entity_and_project, is_offline_by_default

log = logging.getLogger(__name__)

# More rows than a start of a run logs to Weights & Biases.
ROWS_OF_A_START = 10**9


def build_loggers(
    folder: Path, wandb_name: str | None, is_fit: bool, tags: Sequence[str] = ()
) -> list[Logger]:
    """The loggers of a run. In Weights & Biases, runs that differ in their seed (the folders
    ``seed=N`` of one folder) share a group.

    Args:
        folder: the run folder, which this command holds.
        wandb_name: of the project of Weights & Biases, see
            :func:`ltr.run.wandb_place.entity_and_project`; None for none. A resumed run continues
            the same run there.
        is_fit: whether the command is ``fit``.
        tags: of the run there.
    """
    run_folder = RunFolder(folder)
    # CSVLogger makes a new subfolder for every start, so a resumed run erases nothing.
    loggers: list[Logger] = [CSVLogger(folder, name=run_folder.curves.name)]
    if wandb_name is None:
        return loggers
    entity, project = entity_and_project(wandb_name)
    offline = is_offline_by_default()
    if offline:
        log.info("Weights & Biases: no key found, logging offline into %s", run_folder.wandb)
    # Only rank 0 logs. Were each rank to make an id, the last one would stay for the resume.
    if is_fit and is_rank_0() and not run_folder.wandb_id.is_file():
        # In a sweep, the agent of wandb has already made the run, and gives its id.
        new_id = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        write_whole(run_folder.wandb_id, [new_id])
    known_id = run_folder.wandb_id.read_text().strip() if run_folder.wandb_id.is_file() else None
    names = _name_parts(folder)
    experiment = names
    if len(names) > 1 and names[-1].startswith("seed="):
        experiment = names[:-1]
    n_starts = len(list(run_folder.wandb.glob("offline-run-*")))
    wandb_logger = _OneRunLogger(
        n_starts * ROWS_OF_A_START,
        save_dir=folder.absolute(),
        offline=offline,
        id=known_id,
        entity=entity,
        project=project,
        name="/".join(names),
        resume="allow",
        group="/".join(experiment),
        tags=list(tags),
    )
    loggers.append(wandb_logger)
    return loggers


class _OneRunLogger(WandbLogger):
    """Numbers the rows of each offline start above those of the starts before. Weights & Biases
    would begin at 0 again, and its server would take rows of one number for one row. What Weights &
    Biases refuses is an InputError.
    """

    def __init__(self, first_row: int, **options: Any) -> None:
        super().__init__(**options)
        self._first_row = first_row

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        import wandb  # here, not above: it takes a second, and most commands don't need it

        try:
            wandb_run = super().experiment
        except wandb.errors.Error as error:
            raise InputError(
                f"--wandb: {' '.join(str(error).split())[:200]}; mend that, or let WANDB_MODE=offline keep the records here for wandb sync"
            ) from None
        if wandb_run.offline and wandb_run.step < self._first_row:
            wandb_run.log({}, step=self._first_row)
        return wandb_run


def continue_tensorboards(
    loggers: Sequence[Logger], folder: Path, is_fit: bool, checkpoint: str | None
) -> None:
    """Let TensorBoard show all starts of a run as one, under the name that it has in Weights &
    Biases, unless its logger was given a version. What was logged behind the checkpoint that a
    resume starts from is left out there, since the resume logs it again.

    Args:
        loggers: of the trainer, before they log.
        folder: the run folder.
        is_fit: whether the command is ``fit``.
        checkpoint: that it resumes from; None begins a run.
    """
    tensorboards = [logger for logger in loggers if isinstance(logger, TensorBoardLogger)]
    if not tensorboards:
        return
    purge_step = None
    if is_fit:
        # A start before this one may have been killed before its first checkpoint.
        purge_step = 0 if checkpoint is None else read_checkpoint(checkpoint)["global_step"]
    for logger in tensorboards:
        internals.continue_tensorboard(logger, "/".join(_name_parts(folder)), purge_step)


def _name_parts(folder: Path) -> tuple[str, ...]:
    """What of a path names a run: the part below the innermost ``runs``, or three folders."""
    parts = folder.absolute().resolve().parts
    for start in range(len(parts) - 1, 0, -1):
        if parts[start - 1] == "runs":
            return parts[start:]
    return parts[-3:]


@contextmanager
def ending_wandb_run() -> Iterator[None]:
    """End the run of Weights & Biases that a command has begun: its process may go on to another
    run, or end without hooks.
    """
    run_before = _wandb_run()
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        wandb_run = _wandb_run()
        if wandb_run is not None and wandb_run is not run_before:
            wandb_run.finish(exit_code)


def _wandb_run() -> Any:
    """The run of this process; None without one. The package takes a second to import, and where
    nobody has imported it there is no run.
    """
    if "wandb" not in sys.modules:
        return None
    return sys.modules["wandb"].run


def log_test_to_wandb(loggers: Sequence[Logger], folder: RunFolder, step: int) -> None:
    """Tell Weights & Biases what a test has left in a run folder: an artefact of its files, and the
    table of its queries.

    Args:
        loggers: of the trainer.
        folder: of the run.
        step: at which the weights are logged that were tested.
    """
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            continue
        import wandb  # here, not above: it takes a second, and most commands don't need it

        artifact = wandb.Artifact(f"results-{logger.experiment.id}", type="results")
        for file in (
            folder.metrics,
            folder.per_query,
            folder.test_run,
            folder.ir_metadata,
            folder.config,
            folder.grid_cell,
        ):
            if file.is_file():
                artifact.add_file(str(file))
        logger.experiment.log_artifact(artifact)
        lines = folder.per_query.read_text(encoding="utf-8").splitlines()
        header = lines[0].split("\t")
        rows: list[list[str | float | None]] = []
        for line in lines[1:]:
            query, *cells = line.split("\t")
            row: list[str | float | None] = [query]
            for cell in cells:
                row.append(None if cell == "nan" else float(cell))
            rows.append(row)
        table = wandb.Table(columns=header, data=rows)
        logger.log_metrics({"test/per_query": table}, step=step)


def log_weights_to_wandb(loggers: Sequence[Logger], folder: RunFolder) -> None:
    """Give Weights & Biases the best weights of a run, or else its last ones, with what ``ltr`` needs
    to read them: an artefact that, once downloaded, is a run folder.
    """
    weights = folder.best if folder.best.is_file() else folder.last
    for logger in loggers:
        if not isinstance(logger, WandbLogger) or not weights.is_file():
            continue
        import wandb  # here, not above: it takes a second, and most commands don't need it

        artifact = wandb.Artifact(f"model-{logger.experiment.id}", type="model")
        for file in (weights, folder.config, folder.metrics):
            artifact.add_file(str(file), name=str(file.relative_to(folder.path)))
        logger.experiment.log_artifact(artifact)
