"""``metrics.json`` of a run: what each of its entries is. It is read and written here; only
:func:`ltr.checkpoint.directory_of_start`, on a floor below, reads its own entry.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ltr.checkpoint import FORMAT, check_format
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries, read_json
from ltr.errors import InputError


class Made(TypedDict):
    """With what a report was made, see :func:`ltr.run.provenance.made_by`, which adds the version
    of Python.
    """

    ltr: str
    packages: dict[str, str]
    date: str
    machine: str
    commit: NotRequired[str]


class TestedFold(TypedDict):
    """Which part of a cross-validation was tested, see :class:`ltr.data.cross_validation.Fold`."""

    number: int
    of: int


class Report(TypedDict):
    """Of an evaluation. Beside these it has the value of each metric, by its name; and its seconds,
    and of a test how many queries it has.
    """

    conventions: dict[str, str]  # how each metric is counted
    lower_is_better: list[str]
    evaluated: dict[str, str | None]  # digests of the data
    path: NotRequired[Any]  # of the data, as data.path names it
    candidates: NotRequired[str]
    bm25: NotRequired[str]  # what was done to its words, if anything
    depth: NotRequired[int | None]
    split: NotRequired[str]  # that was tested in the place of test
    fold: NotRequired[TestedFold]
    ceiling: NotRequired[dict[str, float | None]]  # by metric
    sources: NotRequired[list[str]]  # where there are several: the names that stand before queries
    options: NotRequired[dict[str, Any]]  # by path, where a test had others than the run
    checkpoint: str | None
    made: Made


class Fit(TypedDict):
    """What training took."""

    seconds: float
    steps: int


class InitDigests(TypedDict):
    """What tells the weights that a run starts from: a digest of them, and one of the recipe of the
    run that they come from, null where nobody knows it.
    """

    weights: str
    recipe: str | None


class TrainedWith(TypedDict):
    """What a configuration can't say of a training, since paths don't tell what is in the files. See
    :mod:`ltr.run.content_digests`.
    """

    data: dict[str, str]  # digests of the training data, and of the dev data that choose the best
    models: dict[str, str]  # digests of the local models that options name, by option
    taken: NotRequired[dict[str, str]]  # by options that say auto, by option and split
    init_from: NotRequired[InitDigests]  # of a run that starts from the weights of another


class Validation(TypedDict):
    """A validation while training. Beside these it has its epoch and the value of each metric."""

    step: int
    seconds: float  # of training until then, over all resumes, without validations


class ForecastEntry(TypedDict):
    """What a training was to take, made after its first batches."""

    seconds: float
    after_batches: int
    works: dict[str, float]  # seconds of each kind of work


class Took(TypedDict):
    """What a training took that was not interrupted."""

    seconds: float
    validations: float  # seconds of these
    refreshes: float  # seconds of these, where negatives are mined
    memory: int  # bytes of the process at most
    disk: int  # bytes of the run folder


class Metrics(TypedDict):
    """The whole file; see :class:`ltr.run.results.ResultsWriter`."""

    format: int
    directory: NotRequired[str]
    start: NotRequired[dict[str, float | None]]
    init_from: NotRequired[str]
    trained_with: NotRequired[TrainedWith]
    validations: NotRequired[list[Validation]]
    fit: NotRequired[Fit]
    forecast: NotRequired[ForecastEntry]
    took: NotRequired[Took]
    validate: NotRequired[Report]
    test: NotRequired[Report | None]


MEND = "remove it, which loses its numbers, and test the run again"


def read_metrics(file: Path) -> dict[str, Any]:
    """What ``metrics.json`` of a run holds; nothing where there is no file.

    Raises:
        InputError: if the file is damaged, is of a run of another format, or an entry is not what
            it must be.
    """
    if not file.is_file():
        return {}
    metrics = read_json(file, MEND)
    check_format(metrics, file)
    check_entries(metrics, Metrics, file, MEND)
    for name in ("validate", "test"):
        report = metrics.get(name)
        if report is not None:
            _check_values(report, file, name)
    for number, validation in enumerate(metrics.get("validations", [])):
        values = dict[str, float | None]
        check_entries(validation, values, file, MEND, path=f"validations.{number}")
    return metrics


def write_metrics(file: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` of a run, whole or not at all."""
    text = json.dumps({"format": FORMAT} | dict(metrics), indent=1, ensure_ascii=False)
    write_whole(file, [text, "\n"])


def _check_values(report: dict[str, Any], file: Path, name: str) -> None:
    """Check that each metric that says how it is counted has a value; null where no query had one."""
    for metric in report["conventions"]:
        if metric not in report:
            raise InputError(
                f"{file}: the file is damaged, {name}.{metric} must be there, and is not; {MEND}"
            )
        check_entries(report[metric], float | None, file, MEND, path=f"{name}.{metric}")
