"""Tested runs that lie at Weights & Biases: their results come as an artefact."""

import shutil
from pathlib import Path

from ltr.data.files import cache_root
from ltr.errors import InputError

PREFIX = "wandb:"


def fetched(address: str) -> list[Path]:
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
            results = [one for one in run.logged_artifacts() if one.type == "results"]
            if not results:
                continue
            parts = f"{project}/{run.group or run.id}".split(
                "/"
            )  # text of others: it may not lead out of the folder
            seed = int(run.config.get("seed_everything", 0))
            folder = Path(
                cache_root(), "wandb", *(one for one in parts if one.strip(".")), f"seed={seed}"
            )
            if folder in folders:
                text = f"{address}: two runs of the group {run.group} have the seed {seed}"
                raise InputError(
                    f"{text}; give one of them another group there, or compare run folders"
                )
            shutil.rmtree(folder, ignore_errors=True)
            results[-1].download(root=str(folder))
            folders.append(folder)
    except (wandb.errors.Error, ValueError, TypeError) as error:
        raise InputError(f"{address}: {' '.join(str(error).split())[:200]}") from None
    if not folders:
        raise InputError(
            f"{address}: no run there has results; test them with Weights & Biases: ltr test RUN --wandb PROJECT"
        )
    return sorted(folders)
