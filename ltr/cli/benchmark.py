"""``ltr test RUN --data.path A B …``: a run measured on several data sets, one after the other."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from shlex import quote
from statistics import fmean
from typing import Any, NamedTuple, TypedDict, cast

from ltr.cli.compare import WIDTH
from ltr.cli.messages import one_line
from ltr.cli.parsed import Measurement, checked_test, data_module
from ltr.cli.process import run_in_process
from ltr.cli.words import split_off_option
from ltr.compare.run import is_tested
from ltr.compare.tables import Table
from ltr.compare.terminal import print_tables
from ltr.data.console import table_console
from ltr.data.files import digest_of, digest_of_json
from ltr.data.whole_files import write_whole
from ltr.datamodules import FeatureDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.run.data_sets import HUB, SUITE, DataSet, data_sets
from ltr.run.launchers import has_launched_several
from ltr.run.log import route_messages
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder
from ltr.run.same_options import deciding_options
from ltr.run.trained_with import digests_of_models

log = logging.getLogger(__name__)

OPTION = "--data.path"
SPELLINGS = (OPTION, "--data.init_args.path")
DEPTH = 100  # of a set without pools, where the configuration names no depth


class SetRow(TypedDict):
    """``row.json`` of a set: its row of the table. It is written when all else of the set is."""

    results: str  # a digest of the metrics.json beside it: the row tells of this file alone
    set: str
    path: str
    content: str | None  # a digest of the data; null where nobody knows it
    key: str | None  # of the weights, the data, and how both were measured
    ranked: str
    queries: int
    metrics: dict[str, float | None]


class Planned(NamedTuple):
    """A set that is about to be measured.

    Attributes:
        data_set: its name and path.
        ranked: which documents are, in words.
        options: of ``ltr test`` for this set alone.
        content: a digest of the data; None where nobody knows it.
    """

    data_set: DataSet
    ranked: str
    options: list[str]
    content: str | None


def split_sets(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of ``ltr test`` without ``--data.path``, and its words, where these name several
    data sets or a suite; else all arguments, and no words.
    """
    others, words = split_off_option(args, SPELLINGS)
    if len(words) > 1 or any(word.startswith(SUITE) for word in words):
        return others, words
    return list(args), []


def measure_sets(args: list[str], words: Sequence[str]) -> None:
    """Measure a run on several data sets, and print a table with the mean.

    The results of each set lie in the run folder, below ``sets``. A set that was measured by the
    same weights is not measured again.

    Args:
        args: the command with its options, without ``--data.path``.
        words: of ``--data.path``.

    Raises:
        InputError: before any work, for options that ``ltr test`` refuses, and for a set that can't
            be measured.
    """
    sets = data_sets(words, OPTION)
    with route_messages(is_rank_0=True):
        if has_launched_several():
            raise InputError(
                f"{OPTION}: several data sets are measured one after the other, by processes that ltr starts; start one process without torchrun or srun, and name their number: --trainer.devices"
            )
        measured = checked_test([*args, OPTION, sets[0].path])
        if measured.options["trainer"].get("fast_dev_run"):
            raise InputError(
                f"{OPTION}: a trial run measures nothing; leave out --trainer.fast_dev_run, or name one data set"
            )
        measured.folder.check_writable()
        planned = [_planned(measured.options, data_set) for data_set in sets]
        weights = _digest_of_weights(measured)
    rows: list[SetRow] = []
    known: list[str] = []
    with measured.folder.owned():
        for each in planned:
            _check_place(_place(measured, each), each)
        for each in planned:
            key = _key(measured.options, weights, each)
            place = _place(measured, each)
            row = _read_row(place)
            if row is not None and _tells_of(row, place, key):
                known.append(each.data_set.name)
            else:
                row = _measure(args, measured, each, place, key)
            rows.append(row)
    _show(rows, known, measured)


# What is measured


def _planned(options: Mapping[str, Any], data_set: DataSet) -> Planned:
    """How a set is measured: as the configuration says; where it says pools and the set has none, a
    dual encoder searches the corpus, and other rankers get the best of BM25.

    Raises:
        InputError: for a set that can't be measured.
    """
    own_options: list[str] = []
    ranked = "its lists"
    content = None
    try:
        data = data_module(options, data_set.path)
        data.test_on(options["split"])
        if isinstance(data, PoolDataModule):
            collection = data.measured_collection()
            found = [collection.queries.key, collection.corpus.key]
            found.append(collection.judgements(data.tested_split).digest())
            candidates = data.evaluation.candidates
            depth = data.evaluation.depth
            if candidates == "candidates" and data.tested_split not in collection.candidates:
                ranker = resolve_name(options["model"]["ranker"]["class_path"])
                if issubclass(ranker, DualEncoder):
                    candidates = "corpus"
                    depth = max(depth or 0, DEPTH)  # a search must go as deep as the metrics look
                else:
                    candidates = "bm25"
                    depth = depth or DEPTH
                own_options = [
                    *("--data.evaluation.candidates", candidates),
                    *("--data.evaluation.depth", str(depth)),
                ]
            if candidates == "candidates":
                found.append(collection.candidates[data.tested_split].digest())
            ranked = "its pools" if candidates == "candidates" else str(candidates)
            ranked += f", {depth} deep" if depth is not None else ""
            content = digest_of_json(found)[:16]
        elif isinstance(data, FeatureDataModule):
            split = data.split("test")
            if split is None:
                raise InputError(f"{data_set.path} has no 'test' split")
            content = digest_of_json([split.key])[:16]
    except InputError as error:
        raise InputError(
            f"{OPTION}: {data_set.name} can't be measured, so nothing was: {error.message}"
        ) from None
    except Exception as error:  # whatever a hub raises that can't be reached
        if not data_set.path.startswith(HUB):
            raise
        line = one_line(error) or " ".join(str(error).split())
        raise InputError(
            f"{OPTION}: {data_set.name} can't be fetched, so nothing was measured; fetch it where there is a network, or name a folder ({data_set.path}: {line[:160]})"
        ) from error
    return Planned(data_set, ranked, own_options, content)


def _digest_of_weights(measured: Measurement) -> object:
    """What tells the measured weights from others."""
    if measured.checkpoint is not None:
        return digest_of(Path(measured.checkpoint))
    return digests_of_models(measured.options)


def _key(options: Mapping[str, Any], weights: object, planned: Planned) -> str | None:
    """What tells whether a set was measured by the same weights, in the same way; None where nobody
    knows what the data is.
    """
    if planned.content is None:
        return None
    said: dict[str, Any] = {"weights": weights, "content": planned.content}
    said["own"] = planned.options
    return digest_of_json(said | deciding_options(options, "set"))[:16]


# Measuring


def _measure(
    args: Sequence[str],
    measured: Measurement,
    planned: Planned,
    place: RunFolder,
    key: str | None,
) -> SetRow:
    """Run ``ltr test`` on one set, in a process of its own, and write the row of the set."""
    words = [*args, OPTION, planned.data_set.path, *planned.options]
    folder = measured.folder.folder_of_set(planned.data_set.name)
    words += ["--trainer.default_root_dir", str(folder.path)]
    if measured.checkpoint is not None:
        words += ["--ckpt_path", measured.checkpoint]
    run_in_process(words)
    report = read_metrics(place.results)["test"]
    row: SetRow = {
        "results": digest_of(place.results),
        "set": planned.data_set.name,
        "path": _absolute(planned.data_set.path),
        "content": planned.content,
        "key": key,
        "ranked": planned.ranked,
        "queries": report["queries"],
        "metrics": {name: report[name] for name in report["conventions"]},
    }
    write_whole(place.row, [json.dumps(row, indent=1, ensure_ascii=False), "\n"])
    return row


def _read_row(place: RunFolder) -> SetRow | None:
    """The row of a set that was measured; None where it was not.

    Raises:
        InputError: if the file is damaged.
    """
    if not place.row.is_file():
        return None
    mend = "remove it, and the set is measured again"
    row = read_json(place.row, mend)
    check_entries(row, SetRow, place.row, mend)
    return cast(SetRow, row)


def _tells_of(row: SetRow, place: RunFolder, key: str | None) -> bool:
    """Whether a row tells what this key stands for, and the results beside it are its own, and
    whole.
    """
    if key is None or row["key"] != key or not is_tested(place.path):
        return False
    return row["results"] == digest_of(place.results)


def _place(measured: Measurement, planned: Planned) -> RunFolder:
    """Where the results on a set go."""
    return measured.folder.folder_of_set(planned.data_set.name).folder_of_split(
        measured.options["split"]
    )


def _check_place(place: RunFolder, planned: Planned) -> None:
    """Raise an InputError where the results of another data set of this name lie."""
    path = planned.data_set.path
    row = _read_row(place)
    if row is None or row["content"] == planned.content or row["path"] == _absolute(path):
        return
    raise InputError(
        f"{OPTION}: {place.path} has the results on {row['path']}, which is another data set than {path}; remove it, or name one of them otherwise in a file: {SUITE}FILE"
    )


def _absolute(path: str) -> str:
    return path if path.startswith(HUB) else str(Path(path).resolve())


def _show(rows: Sequence[SetRow], known: Sequence[str], measured: Measurement) -> None:
    """Print the table, with the mean of the sets as its last row."""
    folder = measured.folder
    metrics = list(rows[0]["metrics"])
    lines = []
    for row in rows:
        cells = [_number(row["metrics"].get(name)) for name in metrics]
        lines.append([row["set"], *cells, f"{row['queries']:,}", row["ranked"]])
    means = [_number(_mean([row["metrics"].get(name) for row in rows])) for name in metrics]
    lines.append([f"mean of {len(rows)} sets", *means, "", ""])
    notes = []
    if known:
        notes.append(f"measured before, by the same weights: {', '.join(known)}")
    notes.append(
        f"the results of each set lie in {folder.sets}; to compare them: ltr compare {quote(str(folder.path))} OTHER --data …"
    )
    console = table_console(WIDTH)
    print_tables(
        [
            Table(
                f"{folder.path}, {measured.options['split']}",
                ["set", *metrics, "queries", "ranked"],
                lines,
            )
        ],
        notes,
        console,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the sets; None where a set has no value."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
