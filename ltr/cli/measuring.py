"""``ltr test``: a run is measured, on several data sets or splits one after the other."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any, Literal, NamedTuple

from ltr.cli.compare import WIDTH
from ltr.cli.folder_of_command import folder_of_command
from ltr.cli.measured_set import (
    DATA_PATH,
    MeasuredPart,
    how_measured,
    key_of_set,
    known_result,
    make_data_module,
    refuse_other_results,
    write_result,
)
from ltr.cli.parsed import ParsedCommand
from ltr.cli.process import run_in_process
from ltr.cli.training import run_configured
from ltr.cli.words import split_off_option
from ltr.compare.table_formats import print_tables
from ltr.compare.tables import Table, number_or_empty
from ltr.data.console import table_console
from ltr.data.files import digest_of
from ltr.data.splits import split_named
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError
from ltr.run.content_digests import digests_of_models
from ltr.run.data_sets import SUITE, data_sets
from ltr.run.identity import identity_of
from ltr.run.launchers import has_launched_several
from ltr.run.log import route_messages
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder
from ltr.run.which_checkpoint import checkpoint_to_measure

SPLIT = "--split"
DATA_PATHS = (DATA_PATH, "--data.init_args.path")


class MeasuringPlan(NamedTuple):
    """What ``ltr test`` measures, one part after the other.

    Attributes:
        by: what the parts are.
        command_line: the command with the options of all parts.
        folder: of the run.
        split: the one that data sets are measured on; None where the parts are splits.
        parts: in the order of the table.
    """

    by: Literal["set", "split"]
    command_line: list[str]
    folder: RunFolder
    split: str | None
    parts: list[MeasuredPart]


class MeasuredRow(NamedTuple):
    """What the table says of a part."""

    name: str
    metrics: dict[str, float | None]
    queries: int
    ranked: str


def run_test(command_line: list[str]) -> None:
    """Run ``ltr test``. Of several data sets or splits each is measured in a process of its own, and
    a table is printed.

    The results of a data set lie in the run folder, below ``sets``, and those of a split below
    ``splits``. A data set that was measured by the same weights is not measured again.

    Raises:
        InputError: for what can't be measured. Of several parts it is told before any work.
    """
    plan = planned(command_line)
    if plan is None:
        run_configured(command_line)
        return
    rows: list[MeasuredRow] = []
    known: list[str] = []
    with ExitStack() as stack:
        if plan.by == "set":  # what measures a split takes the folder of the run itself
            stack.enter_context(plan.folder.owned())
        for part in plan.parts:
            refuse_other_results(part)
        for part in plan.parts:
            result = known_result(part)
            if result is None:
                run_in_process([*plan.command_line, *part.options])
                rows.append(_measured_row(part))
                continue
            known.append(part.name)
            rows.append(
                MeasuredRow(part.name, result["metrics"], result["queries"], result["ranked"])
            )
    _show(plan, rows, known)


# What is measured


def planned(command_line: list[str]) -> MeasuringPlan | None:
    """What is measured one after the other; None for one split of one data set."""
    others, words = split_off_option(command_line, (SPLIT,))
    if len(words) > 1:
        splits = list(dict.fromkeys(split_named(word, "split") for word in words))
        with route_messages(is_rank_0=True):
            return _plan_of_splits(others, splits)
    others, words = split_off_option(command_line, DATA_PATHS)
    if names_several_sets(words):
        with route_messages(is_rank_0=True):
            return _plan_of_sets(others, words)
    return None


def names_several_sets(paths: Sequence[str]) -> bool:
    """Whether the words of ``--data.path`` name several data sets or a suite."""
    return len(paths) > 1 or any(path.startswith(SUITE) for path in paths)


def _plan_of_splits(command_line: list[str], splits: Sequence[str]) -> MeasuringPlan:
    _, paths = split_off_option(command_line, DATA_PATHS)
    if names_several_sets(paths):
        raise InputError(
            f"{SPLIT}: several data sets are measured on one split at a time, got {', '.join(splits)} and {DATA_PATH} of several; name one split"
        )
    options, folder, checkpoint = _checked_test(command_line, SPLIT, "split")
    data = make_data_module(options)
    for split in splits:
        data.test_on(split)
        if isinstance(data, PoolDataModule):
            data.measured_collection()
    checkpoint_option = [] if checkpoint is None else ["--ckpt_path", checkpoint]
    parts = [
        MeasuredPart(split, [*checkpoint_option, SPLIT, split], folder.folder_of_split(split))
        for split in splits
    ]
    return MeasuringPlan("split", command_line, folder, None, parts)


def _plan_of_sets(command_line: list[str], words: Sequence[str]) -> MeasuringPlan:
    sets = data_sets(words, DATA_PATH)
    # The command on the first set: the parser takes one. All but the data is the same for the others.
    on_first = [*command_line, DATA_PATH, sets[0].path]
    options, folder, checkpoint = _checked_test(on_first, DATA_PATH, "data set")
    how_of_each = [how_measured(options, data_set) for data_set in sets]
    checkpoint_option = []
    weights_digest: object = digests_of_models(options)
    if checkpoint is not None:
        checkpoint_option = ["--ckpt_path", checkpoint]
        weights_digest = digest_of(Path(checkpoint))
    parts = []
    for data_set, how in zip(sets, how_of_each, strict=True):
        set_folder = folder.folder_of_set(data_set.name)
        part_options = [DATA_PATH, data_set.path, *how.options]
        part_options += ["--trainer.default_root_dir", str(set_folder.path), *checkpoint_option]
        part = MeasuredPart(
            data_set.name,
            part_options,
            set_folder.folder_of_split(options["split"]),
            data_set,
            how,
            key_of_set(options, weights_digest, how),
        )
        parts.append(part)
    return MeasuringPlan("set", command_line, folder, options["split"], parts)


def _checked_test(
    command_line: list[str], option: str, kind: str
) -> tuple[dict[str, Any], RunFolder, str | None]:
    """Parse and check ``ltr test`` of several parts without running it: the whole configuration as
    plain dicts, lists and values; the folder of the run; and the checkpoint that is measured, or
    None for the weights that the model starts from.
    """
    if has_launched_several():
        raise InputError(
            f"{option}: several {kind}s are measured one after the other, by processes that ltr starts; start one process without torchrun or srun, and name their number: --trainer.devices"
        )
    command = ParsedCommand(command_line)
    command.options.split = split_named(command.options.split, "split")
    folder = folder_of_command(command)
    command.settle_precision(folder)
    options = command.plain_options()
    checkpoint = checkpoint_to_measure(folder, command.options.ckpt_path, identity_of(options))
    if options["trainer"].get("fast_dev_run"):
        raise InputError(
            f"{option}: a trial run measures nothing; leave out --trainer.fast_dev_run, or name one {kind}"
        )
    folder.check_writable()
    return options, folder, checkpoint


# What came out


def _measured_row(part: MeasuredPart) -> MeasuredRow:
    """The row of a part that was measured now. The result on a data set is kept."""
    report = read_metrics(part.folder.metrics).get("test")
    if report is None:
        raise InputError(
            f"{part.folder.path}: the results on {part.name} are gone, since the run has saved other weights meanwhile; test it again"
        )
    metrics = {name: report[name] for name in report["conventions"]}
    if part.data_set is not None:
        write_result(part, report["queries"], metrics)
    return MeasuredRow(part.name, metrics, report["queries"], part.how.ranked)


def _show(plan: MeasuringPlan, rows: Sequence[MeasuredRow], known: Sequence[str]) -> None:
    """Print the table; of data sets with their mean, and which were measured before."""
    path = plan.folder.path
    metrics = list(rows[0].metrics)
    lines = []
    for row in rows:
        cells = [number_or_empty(row.metrics.get(name), ".4f") for name in metrics]
        lines.append([row.name, *cells, f"{row.queries:,}"])
    header = [plan.by, *metrics, "queries"]
    compare = f"to compare them: ltr compare {quote(str(path))} OTHER"
    notes = []
    if plan.by == "set":
        title = f"{path}, {plan.split}"
        header.append("ranked")  # splits are all ranked alike
        for line, row in zip(lines, rows, strict=True):
            line.append(row.ranked)
        means = [_mean([row.metrics.get(name) for row in rows]) for name in metrics]
        lines.append(
            [f"mean of {len(rows)} sets", *(number_or_empty(mean, ".4f") for mean in means), "", ""]
        )
        if known:
            notes.append(f"measured before, by the same weights: {', '.join(known)}")
        notes.append(f"the results of each set lie in {plan.folder.sets}; {compare} --data …")
    else:
        title = str(path)
        splits = " ".join(row.name for row in rows)
        notes.append(
            f"the results on test lie in {path}, those on another split in {plan.folder.splits}; {compare} {SPLIT} {splits}"
        )
    print_tables([Table(title, header, lines)], notes, table_console(WIDTH))


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the sets; None where a set has no value."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
