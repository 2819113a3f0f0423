"""``ltr import``: data in any form that can be opened becomes a data folder."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ltr.data import progress
from ltr.data.collection import Collection, open_collection
from ltr.data.data_folder import WrittenFolder, write_data_folder
from ltr.data.outputs import check_new_folder
from ltr.data.whole_files import write_new

# Lines go through the log, see ltr.cli.commands.Stdout.MESSAGES.
log = logging.getLogger(__name__)

CONFIG = "experiments/cross_encoder/own.yaml"


def import_data(source: str, folder: str) -> None:
    """Write data in any form as a data folder: texts, judgements and pools, all of it checked.

    Args:
        source: Anything that data.path takes: files of triples, pairs or labelled pairs,
            ir_datasets:NAME, or a data folder.
        folder: The new data folder. It is written whole or not at all.
    """
    check_new_folder(folder, "the output")
    with _noted() as notes:
        collection = open_collection(source)
    written: list[WrittenFolder] = []
    write_new(
        Path(folder),
        lambda temporary: written.append(write_data_folder(collection, temporary)),
        "the output",
    )
    for line in _page(source, folder, notes, written[0]):
        log.info("%s", line)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """Inside the block, what the readers of data say is kept for the page; how far they are is told
    at once. After an error, what they have said is told before it.
    """
    logger = logging.getLogger("ltr.data")
    notes: list[str] = []
    keeper = _Keeper(notes)
    logger.addHandler(keeper)
    logger.propagate = False
    try:
        yield notes
    except BaseException:
        logger.propagate = True
        for note in notes:
            log.warning("%s", note)
        raise
    finally:
        logger.removeHandler(keeper)
        logger.propagate = True


class _Keeper(logging.Handler):
    """Keeps messages; those of progress are handed on.

    Args:
        notes: that messages are appended to.
    """

    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.INFO)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == progress.__name__:
            log.handle(record)
        else:
            self._notes.append(record.getMessage())


def _page(source: str, folder: str, notes: list[str], written: WrittenFolder) -> Iterator[str]:
    """What was read, what of it was left out, what is there now, and what to do with it."""
    collection = written.collection
    yield f"read from {source}:"
    for note in notes:
        yield f"  {note}"
    if not notes:
        yield "  nothing is left out"
    yield f"written to {folder}:"
    yield f"  {_count(len(collection.corpus), 'document')}, {_count(len(collection.queries), 'query')}"
    for split in collection.qrels:
        yield f"  {split}: {_of_split(collection, split)}"
    if written.n_trimmed:
        yield f"  white space at the ends of {_count(written.n_trimmed, 'text')} is left out"
    yield f"to train on it: ltr fit --config {CONFIG} --data.path {shlex.quote(folder)}"


def _of_split(collection: Collection, split: str) -> str:
    """The queries, the judgements and the pools of a split, counted."""
    judged = collection.qrels[split]
    n_relevant = int((judged.values > 0).sum())
    n_queries = len(judged.query_rows)
    text = f"{_count(n_queries, 'query')} with {_count(len(judged.values), 'judgement')}, {n_relevant:,} of them above 0"
    pools = collection.candidates.get(split)
    if pools is None:
        return f"{text}; no candidates"
    n_docs = len(pools.doc_rows)
    return f"{text}; {_count(n_docs, 'candidate')} of {_count(len(pools.query_rows), 'query')}"


def _count(n: int, noun: str) -> str:
    """``1,204 documents``, ``1 query``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"
