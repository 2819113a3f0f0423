"""Tested runs, read from their folders and matched: the seeds of an experiment, the queries of all."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from ltr.compare.wandb_runs import PREFIX, fetched
from ltr.errors import InputError
from ltr.run.folder import RESULTS, RunFolder
from ltr.run.identity import identity
from ltr.run.yaml_files import read_yaml

# What a resumed run may change, and the seeds of an experiment may not.
MODEL = ("lr", "weight_decay", "warmup", "decay")
DATA = ("batch_size", "groups", "evaluation.candidates", "evaluation.depth")
TRAINER = ("max_epochs", "max_steps", "precision")
# What two runs must share for their numbers to be compared, and what to call it.
SHARED = {
    "judgements": "judgements",
    "queries": "texts of queries",
    "documents": "texts of documents",
    "data": "data",
}


@dataclass(frozen=True)
class Run:
    """A run that was tested.

    Attributes:
        folder: where it lies.
        seed: of ``seed_everything``.
        config: its configuration; empty where it has none.
        metrics: what metrics.json says.
        values: by metric and query; NaN where a query has none.
    """

    folder: Path
    seed: int
    config: dict[str, Any] = field(repr=False)
    metrics: dict[str, Any]
    values: dict[str, dict[str, float]] = field(repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        """The options that make it what it is, without the seed."""
        try:
            if not self.config:
                return {}
            options = identity(self.config)
            for part, names in (("model", MODEL), ("data", DATA), ("trainer", TRAINER)):
                own = self.config[part]
                if part == "data":
                    own = own.get("init_args", {})
                options |= {f"{part}.{name}": _option(own, name) for name in names}
        except (KeyError, AttributeError, TypeError):
            text = f"{self.folder}/config.yaml must be the configuration of a run, and is not; restore it"
            raise InputError(text) from None
        del options["seed_everything"]
        return options

    @property
    def test(self) -> dict[str, Any]:
        """The test part of the metrics."""
        return self.metrics["test"]


@dataclass(frozen=True)
class Experiment:
    """One way to train, with one run for each seed.

    Attributes:
        name: what tells it from the others.
        runs: by seed.
    """

    name: str
    runs: list[Run]

    def values(self, metric: str, queries: Sequence[str]) -> np.ndarray:
        """``[S, Q]``."""
        return np.array([[run.values[metric][query] for query in queries] for run in self.runs])

    def means(self, metric: str) -> list[float]:
        """Of each seed, as the run itself says."""
        return [math.nan if run.test[metric] is None else run.test[metric] for run in self.runs]

    def starts(self, metric: str) -> list[float]:
        """On dev before training, of the seeds that measured it."""
        found = (run.metrics.get("start", {}).get(metric) for run in self.runs)
        return [value for value in found if value is not None]


def experiments(paths: Iterable[str]) -> list[Experiment]:
    """Read runs, and put those together that differ in their seed alone.

    Args:
        paths: run folders, folders of runs (``seed=0``, ``seed=1`` …), glob patterns of these, or
            ``wandb:ENTITY/PROJECT[:GROUP]``; in the order of the table.

    Raises:
        InputError: if there is none, one was not tested or is damaged, or seeds of one folder have
            other options.
    """
    given: dict[Path, Path] = {}  # by where they are: links and other spellings name the same run
    for folder in (folder for path in paths for folder in _folders(path)):
        given.setdefault(folder.resolve(), folder)
    folders = list(given.values())
    if not folders:
        raise InputError(
            "there must be runs to compare, got none; name run folders, as in: ltr compare runs/a runs/b"
        )
    names = _short(
        [str(folder.parent if folder.name.startswith("seed=") else folder) for folder in folders]
    )
    groups: dict[str, list[Run]] = {}
    for name, folder in zip(names, folders, strict=True):
        groups.setdefault(name, []).append(read_run(folder))
    made = [
        Experiment(name, sorted(runs, key=lambda run: run.seed)) for name, runs in groups.items()
    ]
    for one in made:
        _check_seeds(one)
    return made


def read_run(folder: Path) -> Run:
    """Read the results of a run.

    Raises:
        InputError: if it was not tested, or its files are damaged or don't fit each other.
    """
    files = RunFolder(folder)
    metrics = _json(files.results)
    if not isinstance(metrics.get("test"), dict) or not files.per_query.is_file():
        raise InputError(f"{folder}: a run must have been tested to be compared; ltr test {folder}")
    if "evaluated" not in metrics["test"]:
        raise InputError(
            f"{folder}: its results do not say what they were measured on; test it again: ltr test {folder}"
        )
    config: dict[str, Any] = {}
    if files.config.is_file():
        config = read_yaml(files.config) or {}
    named = folder.resolve().name.removeprefix("seed=")
    seed = config.get("seed_everything", int(named) if named.isdecimal() else 0)
    return Run(folder, seed, config, metrics, _values(folder, metrics))


def is_tested(folder: Path) -> bool:
    """Whether there is a run whose results can be read."""
    try:
        return bool(read_run(folder))
    except InputError:
        return False


def check_alike(made: Sequence[Experiment], metric: str) -> list[str]:
    """Check that the numbers of all runs may be compared.

    Returns:
        Lines that must stand beside a comparison of runs that rank other candidates.

    Raises:
        InputError: for other data, another way to count the metric, or a run without it.
    """
    runs = [run for one in made for run in one.runs]
    first = runs[0]
    for run in runs:
        if metric not in run.test.get("conventions", {}):
            known = ", ".join(run.test.get("conventions", {}))
            raise InputError(
                f"{run.folder} was not measured by {metric}, but by {known}; name one with --metric",
                option="metric",
            )
        then, now = (one.test["conventions"][metric] for one in (first, run))
        if then != now:
            text = f"{metric} is counted in two ways: {first.folder} says '{then}', {run.folder} says '{now}'"
            raise InputError(f"{text}; test both with the same options")
        for part, name in SHARED.items():
            if first.test["evaluated"].get(part) != run.test["evaluated"].get(part):
                text = f"{first.folder} and {run.folder} were tested on other {name}"
                raise InputError(f"{text}; runs can be compared on the same data alone")
        if run.values[metric].keys() != first.values[metric].keys():
            raise InputError(
                f"{first.folder} and {run.folder} were tested on other queries; test both again on the same data"
            )
    ranked = {_candidates(run): one.name for one in reversed(made) for run in reversed(one.runs)}
    if len({run.test["evaluated"].get("candidates") for run in runs}) == 1 and len(ranked) == 1:
        return []
    told = "; ".join(f"{name}: {candidates}" for candidates, name in reversed(ranked.items()))
    return [f"the runs rank other candidates, so whole systems are compared ({told})"]


def _option(options: dict[str, Any], path: str) -> Any:
    """An option by its path, such as ``evaluation.depth``; None where it is not said."""
    value: Any = options
    for name in path.split("."):
        value = None if value is None else value.get(name)
    return value


def _candidates(run: Run) -> str:
    depth = run.test.get("depth")
    return f"{run.test.get('candidates', 'its own')}{'' if depth is None else f', {depth} deep'}"


def _folders(path: str) -> list[Path]:
    if path.startswith(PREFIX):
        return fetched(path)
    given = Path(path)
    if given.parent.name == "wandb" and given.name.startswith(("offline-run-", "run-")):
        given = given.parent.parent  # what Weights & Biases keeps of a run lies in its folder
    if given.name == RunFolder(given.parent).results.name:
        given = given.parent
    found = (
        [given]
        if given.is_dir()
        else [one for one in map(Path, sorted(glob(path, recursive=True))) if one.is_dir()]
    )
    if not found:
        raise InputError(f"{path}: there is no such folder")
    out = []
    for folder in found:
        if RunFolder(folder).results.is_file():
            out.append(folder)
            continue
        below = [
            file.parent for depth in ("*", "*/seed=*") for file in folder.glob(f"{depth}/{RESULTS}")
        ]
        if not below:
            raise InputError(
                f"{folder} is no run folder, and holds none: there is no metrics.json; ltr fit makes one"
            )
        out += sorted(below, key=_by_seed)
    return out


def _by_seed(folder: Path) -> tuple[str, int, str]:
    seed = folder.name.removeprefix("seed=")
    return (
        (str(folder.parent), int(seed), "")
        if seed.isdecimal()
        else (str(folder.parent), 0, folder.name)
    )


def _short(names: Sequence[str]) -> list[str]:
    """The names without the folders that all of them share."""
    parts = [Path(name).parts for name in names]
    shared = 0
    while (
        len(set(names)) > 1
        and shared < min(map(len, parts)) - 1
        and len({one[: shared + 1] for one in parts}) == 1
    ):
        shared += 1
    return [
        "/".join(one[shared:]) if len(set(names)) > 1 else Path(name).resolve().name
        for one, name in zip(parts, names, strict=True)
    ]


def _check_seeds(one: Experiment) -> None:
    for before, run in zip(one.runs, one.runs[1:], strict=False):
        if before.seed == run.seed:
            raise InputError(
                f"{before.folder} and {run.folder} have the same seed {run.seed}; compare one of them"
            )
        differ = [
            name
            for name in sorted({*before.identity, *run.identity})
            if before.identity.get(name) != run.identity.get(name)
        ]
        if differ:
            told = ", ".join(
                f"{name} ({before.identity.get(name)!r}, {run.identity.get(name)!r})"
                for name in differ[:3]
            )
            text = f"{before.folder} and {run.folder} are no seeds of one experiment, they differ in {told}"
            raise InputError(f"{text}; keep them in folders of their own")


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text()) if file.is_file() else {}
    except ValueError as error:
        raise InputError(f"{file}: the file is damaged ({error}); test the run again") from None
    if not isinstance(found, dict):
        raise InputError(f"{file}: the file is damaged, it is no object; test the run again")
    return found


def _values(folder: Path, metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    file = RunFolder(folder).per_query
    names = list(metrics["test"].get("conventions", {}))
    try:
        with open(file, newline="", encoding="utf-8") as opened:
            header, *rows = [*csv.reader(opened, delimiter="\t", quoting=csv.QUOTE_NONE)] or [[]]
    except UnicodeDecodeError:
        raise InputError(
            f"{file}: the file is damaged, it is no UTF-8; test the run again"
        ) from None
    if header != ["query", *names]:
        raise InputError(
            f"{file}:1: the columns must be those of metrics.json, query, {', '.join(names)}; test the run again"
        )
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    for number, row in enumerate(rows, start=2):
        try:
            query, *cells = row
            for name, cell in zip(names, cells, strict=True):
                values[name][query] = float(cell)
        except ValueError:
            raise InputError(
                f"{file}:{number}: a line must be a query and {len(names)} numbers; test the run again"
            ) from None
    return values
