"""Tested runs that lie at Weights & Biases: their results come as an artefact, and a comparison goes
there as one.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ltr.data.files import cache_root
from ltr.data.whole_files import write_whole
from ltr.errors import InputError
from ltr.run.wandb_place import entity_and_project, is_offline_by_default

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


def log_comparison(project: str, names: Sequence[str], page: str, csv: str) -> str:
    """Log a comparison as a run of a project: its page as a panel, and page and tables as an artefact.

    Args:
        project: of Weights & Biases, ``PROJECT`` or ``ENTITY/PROJECT``.
        names: of the experiments.
        page: HTML.
        csv: the tables.

    Returns:
        Where it lies: an address, or the folder of a run that was logged offline.

    Raises:
        InputError: if Weights & Biases refuses the project or can't be reached.
    """
    import wandb  # here, not above: it takes a second, which every command would

    entity, name = entity_and_project(project)
    try:
        with (
            TemporaryDirectory() as folder,
            wandb.init(
                project=name,
                entity=entity,
                name=" and ".join(names),
                job_type="compare",
                dir=Path.cwd(),
                mode="offline" if is_offline_by_default() else None,
                settings=wandb.Settings(silent=True),
            ) as run,
        ):
            artifact = wandb.Artifact(f"comparison-{run.id}", type="comparison")
            for file, text in (("comparison.html", page), ("comparison.csv", csv)):
                write_whole(Path(folder, file), [text])
                artifact.add_file(str(Path(folder, file)))
            run.log_artifact(artifact)
            run.log({"comparison": wandb.Html(page)})
            place: str | None = None if run.offline else run.url
            return place or str(Path(run.dir).parent)
    except wandb.errors.Error as error:
        raise InputError(f"--wandb {project}: {' '.join(str(error).split())[:200]}") from None
