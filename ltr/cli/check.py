"""``ltr check``: is this experiment worth running, and may its numbers be believed?"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ProgressBar,
)

from ltr.callbacks import HardNegativeMining
from ltr.check.clean import check_place, write_clean
from ltr.check.cutting import cutting_section
from ltr.check.forecast import forecast_section
from ltr.check.judgements import judgements_section
from ltr.check.labels import labels_section
from ltr.check.leakage import THRESHOLD, find_leakage
from ltr.check.leakage_section import leakage_section
from ltr.check.power import power_section
from ltr.check.report_formats import as_html, as_json, print_sections
from ltr.check.sample import EnoughSampled, TrainingSample
from ltr.check.section import Section
from ltr.check.trained_on import open_trained_on
from ltr.cli.arguments import call_with
from ltr.cli.measured_set import DATA_PATH
from ltr.cli.parsed import ParsedCommand, made_training
from ltr.cli.run_paths import data_path_option, refuse_paths_from_elsewhere
from ltr.cli.words import option_names, split_off_paths
from ltr.compare.experiment import check_alike, read_experiments
from ltr.data.collection import Collection, open_collection
from ltr.data.console import table_console
from ltr.data.judged_lists import lists_of_run
from ltr.data.labelled_texts import LabelledTexts
from ltr.data.layouts import FeatureVectors, TextReads
from ltr.data.outputs import check_file
from ltr.data.whole_files import write_whole
from ltr.datamodules import Evaluation, RankingDataModule
from ltr.datamodules.label_groups import LabelDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.models.encoder.loading.model_folder import resolve
from ltr.module import METRICS
from ltr.run.run_folder import RunFolder
from ltr.run.trainer import leave_out_hints_of_lightning

log = logging.getLogger(__name__)

# Callbacks that a sample of training, without checkpoints, logger and validation, can't have.
NOT_SAMPLED = Checkpoint | DeviceStatsMonitor | EarlyStopping | LearningRateMonitor | ProgressBar

WIDTH = 160  # letters of a line where no terminal says it


def run_check(command_line: list[str]) -> None:
    """Run ``ltr check``. Options with a dot, as ``--data.path``, are those of the configuration.

    Args:
        command_line: the command with its words.
    """
    words, configured = split_off_paths(command_line[1:])
    if option_names(words).count("--config") > 1:
        raise InputError(
            "ltr check takes one --config, got several; write what differs as options, such as --data.path PATH",
            option="config",
        )
    call_with(check, words, "ltr check", configured=configured)


def check(
    folder: str | None = None,
    *,
    configured: Sequence[str] = (),
    config: str | None = None,
    data: str | None = None,
    run: str | None = None,
    backbone: str | None = None,
    trained_on: list[str] | None = None,
    threshold: float = THRESHOLD,
    write: bool = False,
    json: str | None = None,
    html: str | None = None,
) -> None:
    """Check an experiment before it is run: may its numbers be believed? Beside a run or a
    configuration, all options of ltr fit with a dot hold, such as --data.path PATH.

    Args:
        folder: A run folder, whose configuration is checked.
        configured: Options of ltr fit, with their values.
        config: A configuration that ltr fit takes.
        data: A collection, without any configuration; beside one, the same as --data.path.
        run: A run file in TREC format: what of its rankings is judged.
        backbone: Beside --data alone: an encoder whose tokens are counted, a hub id, a folder, or
            package:NAME.
        trained_on: Other data that the ranker was trained on; its split train counts as training.
        threshold: How much of their words near texts share, weighed by how rare these are.
        write: Also write qrels/test.clean.tsv, with the queries of test that do not leak, and
            qrels/test.clean.removed.jsonl, with those that do, and why.
        json: Also write all numbers to this file.
        html: Also write the page to this file.
    """
    check_file(json, "--json")
    check_file(html, "--html")
    if json is not None and html is not None and Path(json).resolve() == Path(html).resolve():
        raise InputError(f"--json and --html must be two files, got {json} for both; name another")
    if folder is not None and config is not None:
        raise InputError(
            f"ltr check takes a run folder or --config, got both, {folder} and {config}; leave one out"
        )
    if configured and folder is None and config is None:
        raise InputError(
            f"{configured[0]} is an option of a configuration, and none is named; add --config FILE or a run folder, or name a collection alone: --data PATH"
        )
    if data is not None and DATA_PATH in option_names(configured):
        raise InputError(f"the data is named twice, by --data and {DATA_PATH}; leave out --data")
    source = folder or config or data
    if source is None:
        raise InputError(
            "ltr check must be told what to check: --config FILE, a run folder, or --data PATH; see ltr check --help"
        )
    leakage_options = _LeakageOptions(trained_on or [], threshold, write)
    if folder is None and config is None:
        reads = None if backbone is None else DualEncoder(backbone).reads
        collection = open_collection(source)
        made = _collection_sections(
            collection, run, reads, METRICS[0], None, leakage_options, backbone
        )
    elif backbone is not None:
        raise InputError(
            "the configuration names the backbone; leave out --backbone", option="backbone"
        )
    else:
        if data is not None:
            configured = [*configured, DATA_PATH, data]
        made = _experiment_sections(folder, config, configured, run, leakage_options)
    sections = list(made)
    if json is not None:
        write_whole(Path(json), [as_json(source, sections)])
    if html is not None:
        write_whole(Path(html), [as_html(source, sections)])
    console = table_console(WIDTH)
    print_sections(sections, console)
    for file in (json, html):
        if file is not None:
            console.print(f"written to {file}", markup=False, highlight=False)


class _LeakageOptions(NamedTuple):
    """The options of the command that are about leakage, by their names."""

    trained_on: list[str]
    threshold: float
    write: bool


def _leakage(
    collection: Collection, leakage_options: _LeakageOptions, backbone: str | None
) -> Section:
    """What leaks; the clean split is written where it is asked for."""
    folder = None if backbone is None else Path(resolve(backbone))
    if leakage_options.write:
        check_place(collection, Path(collection.source))
    trained_on, absent = open_trained_on(leakage_options.trained_on, folder, collection.source)
    leakage = find_leakage(collection, trained_on, leakage_options.threshold)
    section = leakage_section(leakage)
    if absent:
        section.lines.append(
            f"the model card of the backbone names data sets that are not here, and were not looked at: {', '.join(absent)}; name their folders with --trained_on"
        )
    if leakage_options.write:
        clean = write_clean(leakage, Path(collection.source))
        section.lines.append(
            f"{clean.qrels} has {clean.n_left:,} queries, {clean.removed} says what {clean.n_removed:,} others share with other splits"
        )
    return section


def _collection_sections(
    collection: Collection,
    run: str | None,
    reads: TextReads | None,
    metric: str,
    seed_values: np.ndarray | None,
    leakage_options: _LeakageOptions | None,
    backbone: str | None,
    labelled: LabelledTexts | None = None,
    evaluation: Evaluation | None = None,
) -> Iterator[Section]:
    """The sections about data, one after the other.

    Args:
        collection: the data.
        run: a run file whose rankings are judged, or None.
        reads: what a ranker makes of texts; None: no section of what it cuts.
        metric: for the section of power.
        seed_values: of the tested seeds of a run, or None.
        leakage_options: None: no section of leakage.
        backbone: for the section of leakage.
        labelled: the texts that the collection is made of, whose labels stand for judgements.
        evaluation: which candidates a run ranks; None: no run is named.
    """
    ranked = None
    if run is not None:
        ranked = lists_of_run(Path(run), collection.queries, collection.corpus)
    if leakage_options is not None:
        yield _leakage(collection, leakage_options, backbone)
    if labelled is None:
        yield judgements_section(collection, ranked)
    else:
        yield labels_section(labelled)
    if reads is not None:
        yield cutting_section(collection, reads)
    yield power_section(collection, metric, ranked, seed_values, evaluation)


def _experiment_sections(
    folder: str | None,
    config: str | None,
    configured: Sequence[str],
    run: str | None,
    leakage_options: _LeakageOptions,
) -> Iterator[Section]:
    """The sections about a configuration and its data, with some options changed. Its training is sampled first: the other
    checks would take memory that counts in.
    """
    words = []
    seed_values = None
    if folder is not None:
        file = RunFolder(folder).config
        if not file.is_file():
            raise InputError(f"{folder} must be a run folder, but there is no {file}")
        refuse_paths_from_elsewhere(RunFolder(folder), "fit", configured)
        words = ["--config", str(file), *data_path_option(RunFolder(folder))]
    elif config is not None:
        words = ["--config", config]
    words += configured
    leave_out_hints_of_lightning()
    with tempfile.TemporaryDirectory() as temporary, made_training(words) as command:
        data_module = command.datamodule
        _check_one_collection(data_module)
        _check_fits_data(data_module, run, leakage_options)
        _check_files(data_module, run, leakage_options)
        trainer, sample = _sampling_trainer(command, Path(temporary))
        with suppress(EnoughSampled):
            trainer.fit(command.model, datamodule=data_module)
    metric = command.model.ranking_metrics[0].name
    if folder is not None:
        seed_values = _values_of_seeds(Path(folder), metric)
    if isinstance(data_module, PoolDataModule):
        reads = data_module.reads
        assert not isinstance(reads, FeatureVectors), "a collection has texts"
        yield from _collection_sections(
            data_module.collection,
            run,
            reads,
            metric,
            seed_values,
            # The splits of labelled texts are not compared.
            None if isinstance(data_module, LabelDataModule) else leakage_options,
            command.options.get("model.ranker.init_args.backbone"),
            data_module.texts if isinstance(data_module, LabelDataModule) else None,
            data_module.evaluation,
        )
    yield forecast_section(sample.forecast, sample.schedule)


def _check_one_collection(data: RankingDataModule) -> None:
    """Refuse data of several sources."""
    if isinstance(data, PoolDataModule) and len(data.sources) > 1:
        raise InputError(
            f"ltr check looks at one collection, and path names {len(data.sources)}; name one of them: {DATA_PATH} PATH",
            option="data.path",
        )


def _check_fits_data(
    data: RankingDataModule, run: str | None, leakage_options: _LeakageOptions
) -> None:
    """Refuse what the data of a configuration has no answer to."""
    asked = {"run": run, "trained_on": leakage_options.trained_on, "write": leakage_options.write}
    given = [option for option, value in asked.items() if value]
    if not isinstance(data, PoolDataModule):
        for option in given:
            raise InputError(
                f"--{option} is for collections of texts, and {type(data).__name__} reads none; leave it out",
                option=option,
            )
        return
    for option in given:
        if option != "run" and isinstance(data, LabelDataModule):
            raise InputError(
                f"--{option} is of what leaks between the splits of a collection, and those of labelled texts are not compared; leave it out",
                option=option,
            )
    if leakage_options.write and data.evaluation.fold is not None:
        raise InputError(
            "--write makes a clean split of test, and in a fold questions of train and dev take its place; leave --write or the option data.evaluation.fold out",
            option="write",
        )


def _check_files(
    data: RankingDataModule, run: str | None, leakage_options: _LeakageOptions
) -> None:
    """Read the files of options beside the data, and refuse them before any work."""
    if not isinstance(data, PoolDataModule):
        return
    if run is None and not leakage_options.trained_on and not leakage_options.write:
        return
    data.open_collections()
    if run is not None:
        lists_of_run(Path(run), data.collection.queries, data.collection.corpus)
    if leakage_options.write:
        check_place(data.collection, Path(data.collection.source))
    open_trained_on(leakage_options.trained_on, None, data.collection.source)


def _values_of_seeds(folder: Path, metric: str) -> np.ndarray | None:
    """``[S, Q]``: the test values of all tested seeds of a run's experiment; None for fewer than
    two.
    """
    tested = []
    for other in sorted(folder.resolve().parent.glob("seed=*")):
        if RunFolder(other).per_query.is_file():
            tested.append(str(other))
    if len(tested) < 2:
        return None
    try:
        (experiment,) = read_experiments(tested)
        check_alike([experiment], metric)
    except InputError as error:  # others have other options, or were tested on other queries
        log.warning("the seeds beside %s don't count: %s", folder, error.message)
        return None
    by_query = experiment.runs[0].by_query[metric]
    values = experiment.values(metric, list(by_query))
    return values[:, np.isfinite(values).all(axis=0)]


def _sampling_trainer(command: ParsedCommand, folder: Path) -> tuple[Trainer, TrainingSample]:
    """A trainer that only samples what training takes, and the callback by which it does.

    Args:
        command: ``ltr fit``, whose parts are made.
        folder: a temporary one; the caller removes it.
    """
    callbacks = command.callbacks()
    mining = [each for each in callbacks if isinstance(each, HardNegativeMining)]
    others = []
    for callback in callbacks:
        if not isinstance(callback, HardNegativeMining | NOT_SAMPLED):
            others.append(callback)
    sample = TrainingSample(dict(command.made.trainer), mining[0] if mining else None)
    trainer = command.trainer_without_outputs(
        str(folder), [*others, sample], limit_val_batches=0, num_sanity_val_steps=0
    )
    return trainer, sample
