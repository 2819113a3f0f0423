"""Runs by experiment: those of its seeds together, all tested on the same queries."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import numpy as np

from ltr.compare.folds import joined_folds
from ltr.compare.tested_run import Run, read_run, run_differences, seed_in_name
from ltr.compare.wandb_runs import PREFIX, fetch_runs
from ltr.errors import InputError, local_path
from ltr.run.data_sets import DataSet
from ltr.run.run_folder import RunFolder

# Runs can be compared only if these digests are equal. The key is the name in metrics.json (in
# test.evaluated), the value is what an error calls it.
SAME_DATA = {
    "judgements": "judgements",
    "queries": "texts of queries",
    "documents": "texts of documents",
    "data": "data",
}


@dataclass(frozen=True)
class Experiment:
    """One way to train, with one run for each seed.

    Attributes:
        name: what tells it from the others.
        runs: by seed.
    """

    name: str
    runs: list[Run]

    @property
    def split(self) -> str:
        """The split that all of its runs were tested on."""
        return self.runs[0].split

    def queries(self, metric: str) -> list[str]:
        """The queries that all of its runs were tested on, with or without a value."""
        return list(self.runs[0].by_query[metric])

    def values(self, metric: str, queries: Sequence[str]) -> np.ndarray:
        """``[S, Q]``, the queries in this order."""
        rows = []
        for run in self.runs:
            value_of = run.by_query[metric]
            rows.append([value_of[query] for query in queries])
        return np.array(rows)

    def means(self, metric: str) -> list[float]:
        """Of each seed, see :meth:`ltr.compare.tested_run.Run.mean`."""
        return [run.mean(metric) for run in self.runs]

    def starts(self, metric: str) -> list[float]:
        """On dev before training, of the seeds that measured it."""
        starts = []
        for run in self.runs:
            start = run.results.get("start", {}).get(metric)
            if start is not None:
                starts.append(start)
        return starts

    def training_seconds(self) -> list[float]:
        """Of the seeds that say it."""
        seconds = []
        for run in self.runs:
            if "fit" in run.results:
                seconds.append(run.results["fit"]["seconds"])
        return seconds


def read_experiments(
    paths: Iterable[str], data_set: DataSet | None = None, split: str = "test"
) -> list[Experiment]:
    """Read runs, and put those together that differ in their seed alone.

    Args:
        paths: run folders, folders of runs (``seed=0``, ``seed=1`` …, each perhaps with its folds,
            ``fold=1``, ``fold=2`` …), glob patterns of these, or ``wandb:ENTITY/PROJECT[:GROUP]``;
            in the order of the table.
        data_set: whose results are read; None for the run's own data.
        split: whose results are read.

    Raises:
        InputError: if there is none, one was not tested or is damaged, or seeds of one folder have
            other options.
    """
    folder_of_place: dict[Path, Path] = {}  # a link or another spelling names the same place
    for path in paths:
        for folder in run_folders(path):
            folder_of_place.setdefault(folder.resolve(), folder)
    if not folder_of_place:
        raise InputError(
            "there must be runs to compare, got none; name run folders, as in: ltr compare runs/a runs/b"
        )
    folders = list(folder_of_place.values())
    names = short_names([experiment_folder(folder) for folder in folders])
    runs_of_name: dict[str, list[Run]] = {}
    for name, folder in zip(names, folders, strict=True):
        runs_of_name.setdefault(name, []).append(read_run(folder, data_set, split))
    read = []
    for name, runs in runs_of_name.items():
        whole = joined_folds(runs)
        read.append(Experiment(name, sorted(whole, key=lambda run: run.seed)))
    for experiment in read:
        check_seeds(experiment.runs)
    return read


def check_alike(experiments: Sequence[Experiment], metric: str) -> None:
    """Check that the numbers of all runs may be compared.

    Raises:
        InputError: for other data, another way to count the metric, or a run without it.
    """
    first = experiments[0].runs[0]
    for experiment in experiments:
        for run in experiment.runs:
            if run.sources:
                raise InputError(
                    f"{run.folder} was tested on several sources, {', '.join(run.sources)}, and a mean over all queries is none of its metrics; measure each (ltr test {run.folder} --data.path A B), and compare there (--data A B)"
                )
            _check_pair(first, run, metric)


def _check_pair(first: Run, run: Run, metric: str) -> None:
    """Check that a run was tested on what the first one was, and counts the metric as it does."""
    conventions = run.report["conventions"]
    if metric not in conventions:
        raise InputError(
            f"{run.folder} was not measured by {metric}, but by {', '.join(conventions)}; name one with --metric",
            option="metric",
        )
    expected = first.report["conventions"][metric]
    if conventions[metric] != expected:
        raise InputError(
            f"{metric} is counted in two ways: {first.folder} says '{expected}', {run.folder} says '{conventions[metric]}'; test both with the same options"
        )
    for part, words in SAME_DATA.items():
        if first.report["evaluated"].get(part) != run.report["evaluated"].get(part):
            raise InputError(
                f"{first.folder} and {run.folder} were tested on other {words}; runs can be compared on the same data alone"
            )
    if run.by_query[metric].keys() != first.by_query[metric].keys():
        raise InputError(
            f"{first.folder} and {run.folder} were tested on other queries; test both again on the same data"
        )


def run_folders(path: str) -> list[Path]:
    """The run folders that a path on the command line names, or a pattern or an address there."""
    if path.startswith(PREFIX):
        return fetch_runs(path)
    local_path("run", path)
    folder = _without_inner_path(Path(path))
    if folder.is_dir():
        return _runs_in(folder)
    matches = [match for match in map(Path, sorted(glob(path, recursive=True))) if match.is_dir()]
    if not matches:
        raise InputError(f"{path}: there is no such folder, and no such ranking")
    runs = []
    for match in matches:
        runs += _runs_in(match)
    return runs


def _without_inner_path(path: Path) -> Path:
    """The run of a path to its metrics.json, or to ``wandb/run-…`` in it; else the path."""
    if path.parent.name == "wandb" and path.name.startswith(("offline-run-", "run-")):
        return path.parent.parent
    if path.name == RunFolder(path.parent).metrics.name:
        return path.parent
    return path


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run; else the runs in it, and in the experiments in it."""
    if _is_run(folder):
        return [folder]
    runs = []
    # Runs of any name; seeds of experiments; folds of a seed; folds of the seeds of experiments.
    for pattern in ("*", "*/seed=*", "*/fold=*", "*/*/fold=*"):
        runs += [inner for inner in folder.glob(pattern) if _is_run(inner)]
    if not runs:  # the cells of a grid of several axes lie deeper
        for pattern in ("**/seed=*", "**/fold=*"):
            runs += [inner for inner in folder.glob(pattern) if _is_run(inner)]
    if not runs:
        raise InputError(
            f"{folder} is no run folder, and holds none: there is no metrics.json; ltr fit makes one"
        )
    return sorted(runs, key=_by_seed)


def _is_run(folder: Path) -> bool:
    """Whether it was trained or tested, be it on other data or splits than its own test alone."""
    files = RunFolder(folder)
    if files.metrics.is_file() or any(files.sets.rglob(files.set_row.name)):
        return True
    return any(files.splits.glob(f"*/{files.metrics.name}"))


def _by_seed(folder: Path) -> tuple[str, int, str]:
    """A key that sorts seed=10 behind seed=9, and all other folders by name."""
    seed = seed_in_name(folder)
    if seed is None:
        return str(folder.parent), 0, folder.name
    return str(folder.parent), seed, ""


def experiment_folder(run: Path) -> str:
    """The folder that the seeds of an experiment share; absolute, so it has one name."""
    absolute = Path(os.path.abspath(run))
    for part in ("fold=", "seed="):
        if absolute.name.startswith(part):
            absolute = absolute.parent
    return str(absolute)


def short_names(names: Sequence[str]) -> list[str]:
    """The names without their common folders. Where all names are equal: the last part."""
    if len(set(names)) == 1:
        return [Path(name).resolve().name for name in names]
    paths = [Path(name).parts for name in names]
    folders = [parts[:-1] for parts in paths]
    n_shared = 0
    for at_one_depth in zip(*folders, strict=False):
        if len(set(at_one_depth)) > 1:
            break
        n_shared += 1
    return ["/".join(parts[n_shared:]) for parts in paths]


def check_seeds(runs: Sequence[Run]) -> None:
    """Check that the runs of an experiment differ in their seeds, and in nothing else."""
    for first, second in zip(runs, runs[1:], strict=False):
        if first.seed == second.seed:
            raise InputError(
                f"{first.folder} and {second.folder} have the same seed {second.seed}; compare one of them"
            )
        differences = run_differences(first, second)
        if differences:
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise InputError(
                f"{first.folder} and {second.folder} are no seeds of one experiment, they differ in {', '.join(differences[:3])}{more}; keep them in folders of their own"
            )
