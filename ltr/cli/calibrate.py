"""``ltr calibrate``: what the scores of a run promise, found on its dev split."""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.cli.compare import WIDTH
from ltr.cli.messages import errors_with_paths
from ltr.cli.parsed import ParsedCommand
from ltr.compare.table_formats import print_tables
from ltr.compare.tables import Table, number_or_empty
from ltr.data.collate import sources_of_queries
from ltr.data.concatenated import concatenated
from ltr.data.console import say, speech_on_stderr, table_console
from ltr.data.layouts import FeatureVectors
from ltr.data.splits import split_named
from ltr.datamodules import RankingDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError
from ltr.run.launchers import has_launched_several
from ltr.run.provenance import made_by
from ltr.run.run_folder import RunFolder
from ltr.run.trainer import leave_out_hints_of_lightning
from ltr.use.calibration.calibrated import (
    PromiseRow,
    calibrate_lists,
    draw_reliability,
    promise_rows,
)
from ltr.use.calibration.calibration import (
    Calibration,
    Provenance,
    calibration_of,
    check_has_calibration,
    digest_of_ranker,
)
from ltr.use.calibration.conformal import PROMISES, SHOWN, queries_needed, rounded_down
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.score_maps import calibration_error
from ltr.use.calibration.shift import (
    LEVEL,
    group_coverages,
    groups_by_trait,
    shifted_traits,
    traits_of,
    worse_groups,
)


def calibrate(run: str, *, on: str | None = None) -> None:
    """Find on dev what the scores of a run promise: probabilities of relevance, and the thresholds
    that keep the relevant documents of so many queries. They are written into the run, and used by
    ltr rank RUN --keep 0.9.

    Args:
        run: A run folder; its best weights are calibrated.
        on: Another split, such as test: measures there what the calibration of the run keeps, whether
            its queries are like those of dev, and changes nothing.
    """
    if has_launched_several():
        raise InputError("ltr calibrate runs in one process; start it without torchrun or srun")
    leave_out_hints_of_lightning()
    split = None if on is None else split_named(on, "on")
    if split == "dev":
        raise InputError(
            "on must be another split than dev, on which the calibration is made; take test, or leave it out",
            option="on",
        )
    folder = RunFolder(run)
    if not folder.config.is_file():  # before a lock is left in what is no run
        raise InputError(f"{run} must be a run folder, but there is no {folder.config}")
    if split is not None:
        _measure(folder, split)
        return
    with folder.owned():
        scored = scores_of_split(folder, "dev")
        # It goes first and comes last, so that a figure is always that of the file beside it.
        folder.calibration_figure.unlink(missing_ok=True)
        try:
            calibration, fitted = calibrate_lists(scored.lists, scored.provenance)
        except InputError as error:
            folder.calibration.unlink(missing_ok=True)
            raise InputError(f"{folder.path}: {error.message}") from None
        calibration.write(folder.calibration)
        draw_reliability(scored.lists, fitted, folder.calibration_figure)
    _show_calibration(folder, calibration, scored)


def _measure(folder: RunFolder, split: str) -> None:
    """Say what a calibration that was made before keeps on a split."""
    check_has_calibration(folder.calibration, folder.path)
    on_split = scores_of_split(folder, split)
    calibration = calibration_of(folder.calibration, on_split.ranker, folder.path)
    on_dev = scores_of_split(folder, "dev")
    # Again: a training that is resumed may have saved other weights meanwhile.
    calibration_of(folder.calibration, on_dev.ranker, folder.path)
    # The digests don't tell how deep a corpus was searched, nor from which grade on a document counts.
    counts = (len(on_dev.lists.scores), int(on_dev.lists.is_relevant.sum()))
    is_same = counts == (calibration.documents, calibration.relevant)
    if on_dev.provenance.evaluated != calibration.evaluated or not is_same:
        raise InputError(
            f"{folder.calibration} was made on another dev split than there is now, or other candidates of it; calibrate the run again: ltr calibrate {quote(str(folder.path))}"
        )
    lists = on_split.lists
    _say_queries(folder, split, lists)
    before = calibration.errors["calibration_error"]
    error = calibration_error(calibration.probabilities(lists.scores), lists.is_relevant)
    say(
        f"probabilities: {calibration.score_map.kind}; calibration error {error:.4f} ({before:.4f} on dev)"
    )
    rows = promise_rows(calibration, lists)
    notes = list(_broken_promises(rows, split))
    for name, p in shifted_traits(on_dev.traits, on_split.traits).items():
        notes.append(
            f"the queries of {split} differ from those of dev in {name} (p = {p:.2g}, mean {on_split.traits[name].mean():.4g}, there {on_dev.traits[name].mean():.4g}): neither promises nor probabilities hold for queries of another kind; calibrate on dev queries like them"
        )
    notes += _worse_groups(calibration, on_split, split)
    print_tables([_table(rows, split)], notes, table_console(WIDTH))


# The scores of a split


class Scored:
    """The lists of a split with their scores, by the best weights of a run."""

    def __init__(self, command: ParsedCommand, split: str, collected: "CollectScores") -> None:
        self.ranker = command.model.ranker
        self.lists = collected.lists(split)
        self.traits = traits_of(self.lists)
        query_rows = collected.query_rows()
        words = _words(command.datamodule, query_rows)
        if words is not None:
            self.traits["words of the query"] = words
        self.groups = groups_by_trait(self.lists, self.traits)
        answerable = query_rows[self.lists.has_relevant]
        self.groups |= _queries_of_sources(command.datamodule, answerable)
        self.provenance = Provenance(
            ranker=digest_of_ranker(self.ranker),
            relevant_elsewhere=collected.n_relevant - int(self.lists.is_relevant.sum()),
            evaluated=command.datamodule.evaluation_digests("dev" if split == "dev" else "test"),
            made=made_by(),
        )


class CollectScores(Callback):
    """Keeps the scores of an evaluation with their labels.

    Args:
        relevant_from: the grade from which on a document is relevant; None: any above 0.

    Attributes:
        n_relevant: how many documents are judged relevant, among the candidates or not.
    """

    def __init__(self, relevant_from: float | None) -> None:
        self.n_relevant = 0
        self._relevant_from = relevant_from
        # Of each query that has candidates.
        self._query_rows: list[int] = []
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def _collect(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        scores = outputs["scores"].float().cpu().numpy()
        mask = outputs["mask"].cpu().numpy()
        labels = self._is_relevant(outputs["labels"].float().cpu().numpy())
        for row, query_row in enumerate(outputs["query_rows"].tolist()):
            if mask[row].any():
                self._query_rows.append(query_row)
                self._scores.append(scores[row, mask[row]])
                self._labels.append(labels[row, mask[row]])
        known = labels & mask
        if outputs["ideal"] is not None:
            known = self._is_relevant(outputs["ideal"].float().cpu().numpy())
        self.n_relevant += int(known.sum())

    on_validation_batch_end = _collect
    on_test_batch_end = _collect

    def _is_relevant(self, labels: np.ndarray) -> np.ndarray:
        is_relevant: np.ndarray = labels > 0
        if self._relevant_from is not None:
            is_relevant = labels >= self._relevant_from
        return is_relevant

    def query_rows(self) -> np.ndarray:
        """``[Q]`` int64: the queries of :meth:`lists`, by row."""
        return np.asarray(self._query_rows, np.int64)

    def lists(self, split: str) -> LabelledScores:
        """What was scored.

        Raises:
            InputError: if nothing was.
        """
        if not self._scores:
            raise InputError(
                f"the split {split!r} must have queries with candidates to calibrate by, and has none; add qrels/{split}.tsv"
            )
        return LabelledScores.from_lists(self._scores, self._labels)


def scores_of_split(folder: RunFolder, split: str, options: Sequence[str] = ()) -> Scored:
    """The scores of a split by the best weights of a run; with further options, as words."""
    words = ["validate"] if split == "dev" else ["test"]
    words += [str(folder.path), *options]
    command = ParsedCommand(words)
    command.seed()
    with (
        errors_with_paths(command.options),
        tempfile.TemporaryDirectory() as temporary,
        warnings.catch_warnings(),
    ):
        command.settle_precision(folder)
        with speech_on_stderr():
            command.make()
        to_measure = command.datamodule.options_to_measure  # of a run that was trained without dev
        if to_measure:
            return scores_of_split(folder, split, to_measure.split())
        command.datamodule.reads = command.model.reads
        of_data = command.plain_options()["data"].get("init_args") or {}
        collected = CollectScores(of_data.get("relevant_from"))
        # All of the split, whatever part of it a training looked at.
        trainer = command.trainer_without_outputs(
            temporary,
            [collected],
            limit_val_batches=1.0,
            limit_test_batches=1.0,
            overfit_batches=0.0,
        )
        # Of callbacks that only write while a run is trained.
        warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")
        evaluate = trainer.validate
        if split != "dev":
            command.datamodule.test_on(split)
            evaluate = trainer.test
        evaluate(
            command.model,
            datamodule=command.datamodule,
            ckpt_path=command.options.ckpt_path,
            verbose=False,
            weights_only=True,
        )
        return Scored(command, split, collected)


def _words(data: RankingDataModule, query_rows: np.ndarray) -> np.ndarray | None:
    """``[Q]``: how many words queries have; None where they have no text."""
    if not isinstance(data, PoolDataModule):
        return None
    texts = concatenated([source.collection.queries.texts for source in data.sources])
    return np.array([len(texts[row].split()) for row in query_rows.tolist()], np.float64)


def _queries_of_sources(
    data: RankingDataModule, query_rows: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Of each of several sources ``[Q]`` bool, which queries are its; nothing of one that stands alone."""
    number_of_query = sources_of_queries(np.asarray(data.first_queries), query_rows)
    for number, name in enumerate(data.source_names):
        if name:
            yield f"source {name}", number_of_query == number


# What is said


def _say_queries(folder: RunFolder, split: str, lists: LabelledScores) -> None:
    n = int(lists.has_relevant.sum())
    say(
        f"{folder.path}: {n:,} {split} queries with a relevant document among their candidates, {len(lists) - n:,} without; {len(lists.scores) / len(lists):.3g} candidates each"
    )


def _show_calibration(folder: RunFolder, calibration: Calibration, scored: Scored) -> None:
    """Print what was found on dev."""
    lists = scored.lists
    _say_queries(folder, "dev", lists)
    errors = calibration.errors
    say(
        f"probabilities: {calibration.score_map.kind}; calibration error {errors['calibration_error']:.4f} (scores read as logits: {errors['calibration_error_of_logits']:.4f}), log loss {errors['log_loss']:.4f} (a constant: {errors['log_loss_of_constant']:.4f}), on queries held out"
    )
    notes = [*_notes(calibration), *_worse_groups(calibration, scored, "dev")]
    print_tables([_table(promise_rows(calibration, lists), "dev")], notes, table_console(WIDTH))
    run = quote(str(folder.path))
    is_enough = len(calibration.lowest_relevant) >= queries_needed(SHOWN)
    promise = SHOWN if is_enough else PROMISES[0]
    use = f"ltr rank {run} --query WORDS --documents FILE --keep {promise:g}"
    if isinstance(scored.ranker.reads, FeatureVectors):
        use = f"in Python, ltr.load({str(folder.path)!r}).calibration"
    say(f"{folder.calibration} is written, and {folder.calibration_figure.name}; next: {use}")


def _table(rows: Sequence[PromiseRow], split: str) -> Table:
    """The promises: on dev with the interval for new queries, elsewhere with the coverage, too."""
    header = ["keep", "promise", "new queries", "threshold", "documents", "falsely empty", "filled"]
    if split != "dev":
        header.insert(3, split)
    lines = []
    for row in rows:
        line = [f"{row.kept} relevant", f"{row.promise:g}"]
        if row.threshold is None:
            line.append("dev is too small")
            lines.append(line + [""] * (len(header) - len(line)))
            continue
        low, high = row.interval
        line.append(f"{low:.3f} to {high:.3f}")
        if split != "dev":
            line.append(number_or_empty(row.coverage, ".3f"))
        line += [rounded_down(row.threshold, 4), f"{row.documents:.1f}"]
        line += [number_or_empty(row.falsely_empty, ".3f")]
        line += [number_or_empty(row.falsely_filled, ".3f")]
        lines.append(line)
    return Table(f"what thresholds keep on {split}", header, lines)


def _notes(calibration: Calibration) -> Iterator[str]:
    yield "promise: the share of queries that keep their relevant documents, in the mean over draws of dev; new queries: where it lies for this dev, in 90 % of draws"
    yield "documents: kept of a query, in the mean; falsely empty: queries with a relevant document among their candidates that keep nothing"
    if calibration.highest_of_unanswerable:
        yield "filled: queries without a relevant document among their candidates that keep one all the same"
    else:
        yield "dev has no query without a relevant document among its candidates, so it can't show how often such a query gets an empty list"
    elsewhere = calibration.relevant_elsewhere
    if elsewhere:
        share = elsewhere / (calibration.relevant + elsewhere)
        yield f"{share:.1%} of the relevant documents are not among the candidates: no threshold keeps these, and the promise is of the others"
    n = len(calibration.lowest_relevant)
    if n < queries_needed(0.95):
        yield f"dev is too small for a promise of 0.95, which needs {queries_needed(0.95)} queries with a relevant document"


def _broken_promises(rows: Sequence[PromiseRow], split: str) -> Iterator[str]:
    """What is served so rarely that the queries can't be exchangeable with those of dev."""
    for row in rows:
        if row.coverage is not None and row.p_value <= LEVEL / len(rows):
            yield f"{row.kept} relevant, {row.promise:g}: only {row.coverage:.1%} of the queries of {split} are served, which is no chance (p = {row.p_value:.2g}): the promise does not hold there"


def _worse_groups(calibration: Calibration, scored: Scored, split: str) -> list[str]:
    """The groups of queries that are served less often than all together."""
    if len(calibration.lowest_relevant) < queries_needed(SHOWN):
        return []
    threshold = calibration.threshold(SHOWN)
    groups = group_coverages(scored.lists, scored.groups, threshold, SHOWN)
    return [
        f"{group.group}: only {group.coverage:.1%} of {group.queries} such queries of {split} keep all relevant documents at {SHOWN:g} (p = {group.p_value:.2g}); the promise is of all queries together"
        for group in worse_groups(groups)
    ]
