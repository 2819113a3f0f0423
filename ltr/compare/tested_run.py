"""A run that was tested, read from its folder."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ltr.data.cross_validation import Fold
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.run.config_file import read_config
from ltr.run.data_sets import DataSet
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder
from ltr.run.training_recipe import TrainingRecipe


@dataclass(frozen=True)
class Run:
    """A run that was tested.

    Attributes:
        folder: where it lies.
        seed: of ``seed_everything``.
        config: its configuration; empty where it has none.
        results: what metrics.json says.
        by_query: the values by metric and query; NaN where a query has none.
        split: that the results are on.
        file: a ranking of others, where the run is one; None: the folder holds it.
        budget: the seeds of the grid that made it by ``ltr grid --until_shown``, in the order in which
            they are trained; empty: no such grid did.
    """

    folder: Path
    seed: int
    config: dict[str, Any] = field(repr=False)
    results: dict[str, Any]
    by_query: dict[str, dict[str, float]] = field(repr=False)
    split: str = "test"
    file: Path | None = None
    budget: tuple[int, ...] = ()

    @property
    def recipe(self) -> TrainingRecipe | None:
        """How it was trained, but for its seed; None without a configuration.

        Raises:
            InputError: if its metrics.json was lost, and with it what it was trained with.
        """
        if not self.config:
            return None
        if "trained_with" not in self.results:
            raise InputError(
                f"{RunFolder(self.folder).metrics}: trained_with must say what the run was trained with, and is not there; train the run again"
            )
        return TrainingRecipe.of(self.config, self.results["trained_with"])

    @property
    def fold(self) -> Fold | None:
        """Its part of a cross-validation; None where it is of none."""
        fold = self.report.get("fold")
        return None if fold is None else Fold(**fold)

    @property
    def weights(self) -> str:
        """The file of the weights that were tested, without its folder, which may be named in several
        ways; or ``untrained``.
        """
        checkpoint = self.report["checkpoint"]
        return "untrained" if checkpoint is None else Path(checkpoint).name

    @property
    def kind_of_weights(self) -> str:
        """Which weights were tested: ``best.ckpt``, ``last.ckpt``, ``step=N.ckpt`` for those of any
        one step, or ``untrained``.
        """
        return "step=N.ckpt" if self.weights.startswith("step=") else self.weights

    @property
    def sources(self) -> list[str]:
        """The names of the sources that it was tested on together; empty: one collection."""
        return self.report.get("sources", [])

    @property
    def place(self) -> RunFolder:
        """Where the results on its own data lie."""
        return RunFolder(self.folder).folder_of_split(self.split)

    @property
    def ranking(self) -> Path:
        """The file of what was ranked on its own data."""
        return self.place.test_run if self.file is None else self.file

    @property
    def report(self) -> dict[str, Any]:
        """What the test of its split says, a part of the results."""
        return self.results["test"]

    def mean(self, metric: str) -> float:
        """The value of a metric over all queries, as the run says; NaN where no query has one."""
        mean = self.report[metric]
        return math.nan if mean is None else mean


def read_run(folder: Path, data_set: DataSet | None = None, split: str = "test") -> Run:
    """Read the results of a run.

    Args:
        folder: of the run.
        data_set: on which the results are; None for the run's own data.
        split: of the data on which the results are.

    Raises:
        InputError: if it was not tested, or its files are damaged or don't fit each other.
    """
    files = RunFolder(folder)
    results = read_metrics(files.metrics)
    place = files
    again = f"ltr test {folder}"
    measured_on = []
    if data_set is not None:
        place = files.folder_of_set(data_set.name)
        # Metrics on dev before training are of the run's own data.
        results = {name: value for name, value in results.items() if name != "start"}
        again += f" --data.path {data_set.path} …"
        measured_on.append(data_set.name)
    if split != "test":
        place = place.folder_of_split(split)
        again += f" --split {split}"
        measured_on.append(split)
    where = ""
    if measured_on:
        results = results | {"test": read_metrics(place.metrics).get("test")}
        where = f" on {', '.join(measured_on)}"
    if not isinstance(results.get("test"), dict) or not place.per_query.is_file():
        raise InputError(f"{folder}: a run must have been tested{where} to be compared; {again}")
    config: dict[str, Any] = {}
    if files.config.is_file():
        config = read_config(files.config)
    seed = config.get("seed_everything", seed_in_name(folder.resolve()) or 0)
    values = _values(place, results)
    return Run(folder, seed, config, results, values, split, budget=_budget(files.grid_cell))


class BudgetContent(TypedDict):
    """What the file of a grid's cell says of looks."""

    until_shown: NotRequired[list[int]]  # the seeds of the budget


def _budget(grid_cell: Path) -> tuple[int, ...]:
    """See :class:`Run`."""
    if not grid_cell.is_file():
        return ()
    mend = "restore it, or remove the run"
    content = read_json(grid_cell, mend)
    check_entries(content, BudgetContent, grid_cell, mend)
    return tuple(content.get("until_shown", []))


def is_tested(folder: Path) -> bool:
    """Whether there is a run that was tested, and whose results are whole.

    Raises:
        InputError: if its configuration or its metrics.json is damaged: testing it again mends
            neither.
    """
    files = RunFolder(folder)
    read_metrics(files.metrics)
    if files.config.is_file():
        read_config(files.config)
    try:
        read_run(folder)
    except InputError:
        return False
    return True


def seed_in_name(folder: Path) -> int | None:
    """3 of a folder named ``seed=3`` or ``3``; None of other names."""
    seed = folder.name.removeprefix("seed=")
    return int(seed) if seed.isdecimal() else None


def run_differences(first: Run, second: Run) -> list[str]:
    """What two runs differ in beside their seed, with both values: options, and which of their
    weights were tested.
    """
    differences = recipe_differences(first, second)
    if first.kind_of_weights != second.kind_of_weights:
        differences.append(
            f"the tested weights ({first.kind_of_weights}, {second.kind_of_weights})"
        )
    return differences


def recipe_differences(first: Run, second: Run) -> list[str]:
    """Each option that two runs do not share, but for the seed, with both values."""
    recipe = first.recipe
    other = second.recipe
    if recipe is None and other is None:
        return []
    if recipe is None:
        return ["config.yaml (missing, there)"]
    if other is None:
        return ["config.yaml (there, missing)"]
    return recipe.differences(other)


def _values(place: RunFolder, results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Read per_query.tsv: by metric and query."""
    file = place.per_query
    names = list(results["test"]["conventions"])
    try:
        with open(file, newline="", encoding="utf-8") as opened:
            lines = list(csv.reader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))
    except UnicodeDecodeError:
        raise InputError(
            f"{file}: the file is damaged, it is no UTF-8; test the run again"
        ) from None
    except csv.Error as error:  # a line without an end
        raise InputError(f"{file}: the file is damaged ({error}); test the run again") from None
    if not lines or lines[0] != ["query", *names]:
        raise InputError(
            f"{file}:1: the columns must be those of metrics.json, query, {', '.join(names)}; test the run again"
        )
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    queries = set()
    for number, line in enumerate(lines[1:], start=2):
        query, *cells = line or [""]
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            numbers = []
        if len(numbers) != len(names) or any(math.isinf(value) for value in numbers):
            raise InputError(
                f"{file}:{number}: a line must be a query and {len(names)} numbers; test the run again"
            )
        if query in queries:
            raise InputError(
                f"{file}:{number}: the query {query!r} must stand there once, and has a line above; test the run again"
            )
        queries.add(query)
        for name, value in zip(names, numbers, strict=True):
            values[name][query] = value
    sources = results["test"].get("sources", [])
    for name in names:
        on_sources = [values[name]]
        if sources:
            on_sources = list(values_by_source(values[name], sources).values())
        _check_mean(file, name, results["test"][name], on_sources)
    return values


def values_by_source(
    values: Mapping[str, float], sources: Sequence[str]
) -> dict[str, dict[str, float]]:
    """By source the values of its own queries, before whose names that of the source stands."""
    by_source: dict[str, dict[str, float]] = {source: {} for source in sources}
    for name, value in values.items():
        source, _, query = name.partition("/")
        by_source.setdefault(source, {})[query] = value
    return by_source


def _check_mean(
    file: Path, name: str, mean: float | None, values_of_sources: Iterable[Mapping[str, float]]
) -> None:
    """Check that the values of the queries have the mean that metrics.json says, which is that over
    the sources; None where no query has a value. The values are rounded to 6 digits, the mean is a
    float32.
    """
    means = []
    for values in values_of_sources:
        counted = [value for value in values.values() if not math.isnan(value)]
        if counted:
            means.append(math.fsum(counted) / len(counted))
    if not means and mean is None:
        return
    expected = math.nan if mean is None else mean
    mean_of_values = math.fsum(means) / len(means) if means else math.nan
    if not math.isclose(mean_of_values, expected, rel_tol=1e-5, abs_tol=1e-5):
        raise InputError(
            f"{file}: the mean of {name} must be that of metrics.json, {expected:.6f}, got {mean_of_values:.6f}; test the run again"
        )
