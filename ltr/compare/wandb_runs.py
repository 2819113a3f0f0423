"""Tested runs that lie at Weights & Biases: their results come as an artefact."""

import shutil
from pathlib import Path

from ltr.data.files import cache_root
from ltr.errors import InputError

PREFIX = "wandb:"


def fetch_runs(address: str) -> list[Path]:
    """Fetch the results of the tested runs of a project, or of one group of it, into the folder of
    derived data.

    Args:
        address: ``wandb:ENTITY/PROJECT``, or ``wandb:ENTITY/PROJECT:GROUP``.

    Returns:
        A folder for each run, as ``GROUP/seed=0``.

    Raises:
        InputError: if there is no such project, it can't be reached, or none of its runs has
            results.
    """
    import wandb  # here, not above: it takes a second, which every command would

    project, _, group = address.removeprefix(PREFIX).partition(":")
    folders: list[Path] = []
    try:
        for run in wandb.Api().runs(project, filters={"group": group} if group else {}):
            results = [
                artifact for artifact in run.logged_artifacts() if artifact.type == "results"
            ]
            if not results:
                continue
            seed = int(run.config.get("seed_everything", 0))
            folder = _folder_of(project, run.group or run.id, seed)
            if folder in folders:
                raise InputError(
                    f"{address}: two runs of the group {run.group} have the seed {seed}; give one of them another group there, or compare run folders"
                )
            shutil.rmtree(folder, ignore_errors=True)
            results[-1].download(root=str(folder))
            folders.append(folder)
    except InputError:  # it is a ValueError, and needs no other words
        raise
    except (wandb.errors.Error, ValueError, TypeError) as error:
        raise InputError(f"{address}: {' '.join(str(error).split())[:200]}") from None
    if not folders:
        raise InputError(
            f"{address}: no run there has results; test them with Weights & Biases: ltr test RUN --wandb PROJECT"
        )
    return sorted(folders)


def _folder_of(project: str, group: str, seed: int) -> Path:
    """Where the results of a run are kept. Anybody may have written the names: the parts ``.`` and
    ``..``, which could lead out of the folder, are dropped.
    """
    parts = [part for part in f"{project}/{group}".split("/") if part.strip(".")]
    return Path(cache_root(), "wandb", *parts, f"seed={seed}")
