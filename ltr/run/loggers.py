"""Where the curves of a run go: CSV files, and Weights & Biases where a project is named."""

import logging
import netrc
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from ltr.data.files import write_whole
from ltr.run.folder import RunFolder

log = logging.getLogger(__name__)


def loggers(
    folder: Path, wandb_project: str | None, fits: bool, tags: Sequence[str] = ()
) -> list[Logger]:
    """The loggers of a run.

    Args:
        folder: the run folder.
        wandb_project: of Weights & Biases; None for none. A resumed run continues the same run
            there.
        fits: whether the command is ``fit``.
        tags: of the run there. Its group is the experiment: the folder of its seeds.
    """
    made: list[Logger] = [
        CSVLogger(folder, name="logs")
    ]  # a version for every start: a resumed run erases nothing
    if wandb_project:
        offline = "WANDB_MODE" not in os.environ and not has_wandb_key()
        if offline:
            log.info("Weights & Biases: no key found, logging offline into %s", folder / "wandb")
        file = folder / "wandb" / "run-id"
        if fits and not file.is_file():
            write_whole(
                file, [os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)]
            )  # an agent of a sweep says it
        known = file.read_text().strip() if file.is_file() else None
        parts = folder.absolute().resolve().parts
        below = (
            parts[len(parts) - parts[::-1].index("runs") :] if "runs" in parts[:-1] else parts[-3:]
        )
        experiment = below[:-1] if below[-1].startswith("seed=") and len(below) > 1 else below
        options: dict[str, Any] = {
            "project": wandb_project,
            "name": "/".join(below),
            "resume": "allow",
        }
        options |= {"group": "/".join(experiment), "tags": [*tags]}
        made.append(WandbLogger(save_dir=folder.absolute(), offline=offline, id=known, **options))
    return made


@contextmanager
def wandb_run_ended() -> Iterator[None]:
    """End the run of Weights & Biases that a command has begun: its process may go on to another
    run, or end without hooks.
    """
    before = _wandb_run()
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        if (run := _wandb_run()) is not None and run is not before:
            run.finish(exit_code)


def _wandb_run() -> Any:
    return sys.modules["wandb"].run if "wandb" in sys.modules else None


def log_results(known: Sequence[Logger], run: RunFolder) -> None:
    """Tell Weights & Biases what a test has left in a run folder: an artefact of its files, and the
    table of its queries.
    """
    for logger in known:
        if not isinstance(logger, WandbLogger):
            continue
        import wandb  # here, not above: it takes a second, which every command would

        artifact = wandb.Artifact(f"results-{logger.experiment.id}", type="results")
        for file in (run.results, run.per_query, run.ranking, run.metadata, run.config):
            if file.is_file():
                artifact.add_file(str(file))
        logger.experiment.log_artifact(artifact)
        lines = run.per_query.read_text(encoding="utf-8").splitlines()
        header = lines[0].split("\t")
        values: list[list[str | float | None]] = []
        for line in lines[1:]:
            query, *cells = line.split("\t")
            values.append([query, *(None if cell == "nan" else float(cell) for cell in cells)])
        logger.experiment.log({"test/per_query": wandb.Table(columns=header, data=values)})


def has_wandb_key() -> bool:
    """Whether ``wandb login`` was run here, or the environment holds a key."""
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return (
            "WANDB_API_KEY" in os.environ
            or netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
        )
    except (OSError, netrc.NetrcParseError):
        return False
