"""``ltr import``: data in any form that can be opened becomes a data folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Literal

from ltr.data import progress
from ltr.data.cache_folder import details
from ltr.data.collection import Collection, open_collection, scores_by_split
from ltr.data.console import counted
from ltr.data.data_folder import WrittenFolder, write_data_folder
from ltr.data.folder_files import find_corpus
from ltr.data.judge_labels import judges_of, machine_judged_lines
from ltr.data.letor import read_letor
from ltr.data.letor_folder import write_letor_folder
from ltr.data.letor_splits import find_splits, holds_features
from ltr.data.outputs import check_new_folder
from ltr.errors import InputError

# Lines go through the log, see ltr.cli.commands.Stdout.MESSAGES.
log = logging.getLogger(__name__)

CONFIG = "recipe:cross_encoder"
CONFIG_OF_FEATURES = "recipe:lambdarank"


def import_data(
    source: str,
    folder: str,
    *,
    columns: list[str] | None = None,
    fold: int | None = None,
    first_feature: Literal[0, 1] = 1,
) -> None:
    """Write data in any form as a data folder: texts, judgements and pools, all of it checked; or
    feature vectors.

    Args:
        source: Anything that data.path takes: files of triples, pairs or labelled pairs, or of rows
            with named columns, ir_datasets:NAME, a data folder, or a folder of feature vectors.
        folder: The new data folder. It is written whole or not at all.
        columns: What columns of rows are for, as query=question positive=answer. None: as they are
            called.
        fold: Which one, where a folder of feature vectors has folds.
        first_feature: The number of the first feature in files of feature vectors; in those that are
            written it is 1.
    """
    check_new_folder(folder, "the output")
    # Beside texts with ids, files that end as those of features are something else.
    is_of_ids = find_corpus(Path(source)) is not None
    if columns is None and not is_of_ids and holds_features(Path(source)):
        _import_features(source, folder, fold, first_feature)
        return
    if fold is not None:
        raise InputError(f"--fold is for feature vectors, and {source} has none; leave it out")
    chosen = None if columns is None else _columns_of_roles(columns)
    with _noted() as notes:
        collection = open_collection(source, chosen)
        written = write_data_folder(collection, Path(folder), scores_by_split(collection))
    told = [note.getMessage() for note in notes]
    if judges := judges_of(collection):
        told.append(
            f"labels of judges are left out ({', '.join(judges)}): import them again with ltr labels import"
        )
    told += machine_judged_lines(collection)
    train = written.collection.qrels.get("train")
    data = f"--data.path {quote(folder)}"
    use = f"to measure a run on it, as it has no split train: ltr test RUN {data}"
    if train is not None:
        use = f"to train on it: ltr fit --config {CONFIG} {data}"
    _log_page(source, folder, told, _lines_of(written), use)
    if train is not None and train.largest_fraction() > 0:
        log.info(
            "labels of train have fractions; what learns them: --data ltr.datamodules.ListDataModule --model.loss ltr.losses.RankNetLoss"
        )
    for split in written.n_scores:
        file = Path(folder, "scores", f"{split}.tsv")
        log.info("to learn the scores of %s: --data.labels.scores %s", split, quote(str(file)))


def _columns_of_roles(words: list[str]) -> dict[str, str]:
    """The columns of each role, with commas between where it is named several times."""
    chosen: dict[str, str] = {}
    for word in words:
        role, _, column = word.partition("=")
        if not column:
            raise InputError(
                f"--columns must be words as query=question, a role and the name of a column, got {word!r}"
            )
        chosen[role] = f"{chosen[role]},{column}" if role in chosen else column
    return chosen


def _import_features(source: str, folder: str, fold: int | None, first_feature: int) -> None:
    splits = {}
    read = []
    with _noted() as notes:
        for name, files in find_splits(Path(source), fold).items():
            splits[name] = read_letor(files, first_feature)
            listed = ", ".join(map(str, files))
            n_rows = len(splits[name].labels)
            read.append(f"{listed}: rows of {name} read: {n_rows:,}; all kept")
    write_letor_folder(splits, Path(folder))
    lines = []
    for name, split in splits.items():
        queries = counted(len(split), "query")
        rows = counted(len(split.labels), "row")
        lines.append(f"{name}: {queries} with {rows} of {counted(split.n_features, 'feature')}")
    options = "" if "dev" in splits else " --data.dev_share 0.2"
    told = [*read, *(note.getMessage() for note in notes)]
    use = f"to train on it: ltr fit --config {CONFIG_OF_FEATURES}{options} --data.path {quote(folder)}"
    _log_page(source, folder, told, lines, use)


@contextmanager
def _noted() -> Iterator[list[logging.LogRecord]]:
    """Inside the block, what the readers of data say is kept for the page, with the details; how far
    they are is told at once. Where an error ends the block, what they have said is told before it,
    without the details.
    """
    logger = logging.getLogger("ltr.data")
    keeper = _Keeper()
    level = details.level
    logger.addHandler(keeper)
    details.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield keeper.records
    except InputError as error:
        error.option = None  # the source is no option here
        for record in keeper.records:
            if record.name != details.name:
                log.handle(record)
        raise
    finally:
        logger.removeHandler(keeper)
        details.setLevel(level)
        logger.propagate = True


class _Keeper(logging.Handler):
    """Keeps messages; those of progress are handed on."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == progress.__name__:
            log.handle(record)
        else:
            self.records.append(record)


def _log_page(source: str, folder: str, told: list[str], written: list[str], use: str) -> None:
    """Say what was read, what of it was left out, what is there now, and what to do with it.

    Args:
        source, folder: the words of the command.
        told: what the readers said.
        written: a line for each thing that is there now.
        use: what can be done with it, and the command.
    """
    log.info("read from %s", source)
    # Once each: what is opened again says the same again.
    for line in dict.fromkeys(told):
        log.info("  %s", line)
    log.info("written to %s", folder)
    for line in written:
        log.info("  %s", line)
    log.info(use)


def _lines_of(written: WrittenFolder) -> list[str]:
    """What a data folder holds, counted."""
    collection = written.collection
    docs = counted(len(collection.corpus), "document")
    lines = [f"{docs}, {counted(len(collection.queries), 'query')}"]
    for split in collection.qrels:
        lines.append(f"{split}: {_of_split(collection, split)}")
    for split, n_scores in written.n_scores.items():
        line = f"scores/{split}.tsv: {counted(n_scores, 'score')}"
        n_repeated = written.n_repeated_scores[split]
        if n_repeated:
            line += (
                f"; {n_repeated:,} more of the same pairs are left out, the first of each is kept"
            )
        lines.append(line)
    if written.n_trimmed:
        texts = counted(written.n_trimmed, "text")
        lines.append(f"white space at the ends of {texts} is left out")
    return lines


def _of_split(collection: Collection, split: str) -> str:
    """The queries, the judgements and the pools of a split, counted."""
    judged = collection.qrels[split]
    n_relevant = int((judged.values > 0).sum())
    n_queries = len(judged.query_rows)
    text = f"{counted(n_queries, 'query')} with {counted(len(judged.values), 'judgement')}, {n_relevant:,} of them above 0"
    pools = collection.candidates.get(split)
    if pools is None:
        return f"{text}; no candidates"
    n_docs = len(pools.doc_rows)
    return f"{text}; {counted(n_docs, 'candidate')} of {counted(len(pools.query_rows), 'query')}"
