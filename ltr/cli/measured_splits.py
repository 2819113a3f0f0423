"""``ltr test RUN --split A B …``: a run measured on several splits, one after the other."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from ltr.cli.benchmark import OPTION as SETS
from ltr.cli.benchmark import measure_sets, split_sets
from ltr.cli.compare import WIDTH
from ltr.cli.parsed import Measurement, checked_test, data_module
from ltr.cli.process import run_in_process
from ltr.cli.training import run_configured
from ltr.cli.words import split_off_option
from ltr.compare.tables import Table
from ltr.compare.terminal import print_tables
from ltr.data.console import table_console
from ltr.data.splits import split_named
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError
from ltr.run.launchers import has_launched_several
from ltr.run.log import route_messages
from ltr.run.metrics_file import read_metrics

OPTION = "--split"


def run_test(args: list[str]) -> None:
    """Run ``ltr test``: of several splits or data sets one after the other.

    Args:
        args: the command with its options.
    """
    others, splits = split_off_option(args, (OPTION,))
    if len(splits) > 1:
        measure_splits(others, splits)
        return
    others, sets = split_sets(args)
    if sets:
        measure_sets(others, sets)
        return
    run_configured(args)


def measure_splits(args: list[str], words: Sequence[str]) -> None:
    """Measure a run on several splits, each in a process of its own, and print a table.

    Args:
        args: the command with its options, without ``--split``.
        words: of ``--split``.

    Raises:
        InputError: before any work, for options that ``ltr test`` refuses, and for a split that
            can't be measured.
    """
    splits = list(dict.fromkeys(split_named(word, "split") for word in words))
    with route_messages(is_rank_0=True):
        if has_launched_several():
            raise InputError(
                f"{OPTION}: several splits are measured one after the other, by processes that ltr starts; start one process without torchrun or srun, and name their number: --trainer.devices"
            )
        if split_sets(args)[1]:
            raise InputError(
                f"{OPTION}: several data sets are measured on one split at a time, got {', '.join(splits)} and {SETS} of several; name one split"
            )
        measured = checked_test(args)
        if measured.options["trainer"].get("fast_dev_run"):
            raise InputError(
                f"{OPTION}: a trial run measures nothing; leave out --trainer.fast_dev_run, or name one split"
            )
        _check_splits(measured.options, splits)
    weights = []
    if measured.checkpoint is not None:
        weights = ["--ckpt_path", measured.checkpoint]
    for split in splits:
        run_in_process([*args, *weights, OPTION, split])
    _show(measured, splits)


def _check_splits(options: Mapping[str, Any], splits: Sequence[str]) -> None:
    """Raise an InputError for a split that is not there, or is broken, before any is measured."""
    data = data_module(options)
    for split in splits:
        data.test_on(split)
        if isinstance(data, PoolDataModule):
            data.measured_collection()


def _show(measured: Measurement, splits: Sequence[str]) -> None:
    """Print a row for each split."""
    lines = []
    metrics: list[str] = []
    for split in splits:
        place = measured.folder.folder_of_split(split)
        report = read_metrics(place.results).get("test")
        if report is None:
            raise InputError(
                f"{place.path}: the results on {split} are gone, since the run has saved other weights meanwhile; test it again"
            )
        metrics = list(report["conventions"])
        values = [report[name] for name in metrics]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        lines.append([split, *cells, f"{report['queries']:,}"])
    folder = measured.folder
    notes = [
        f"the results on test lie in {folder.path}, those on another split in {folder.splits}; to compare them: ltr compare {quote(str(folder.path))} OTHER {OPTION} {' '.join(splits)}"
    ]
    console = table_console(WIDTH)
    print_tables([Table(str(folder.path), ["split", *metrics, "queries"], lines)], notes, console)
