"""A collection written as a data folder: texts as JSON lines, judgements and pools as text."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from json.encoder import encode_basestring
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.collection import Collection, with_split
from ltr.data.lines import LineRows, look_up
from ltr.data.progress import tracking
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.data.trec import BEIR_HEADER, text_of_grade
from ltr.data.whole_files import write_new
from ltr.errors import InputError
from ltr.spans import spans

log = logging.getLogger(__name__)

BLOCK = 4096  # texts that are in memory at a time, and lines between two reports
GRADES = 4096  # whose texts are kept: most data have few
TAG = "ltr-import"  # the last column of pools


class WrittenFolder(NamedTuple):
    """What :func:`write_data_folder` has written, and what of it differs from the source."""

    collection: Collection  # with all splits
    n_trimmed: int  # texts that begin or end with white space, which a data folder does not keep
    n_scores: dict[str, int]  # by split
    n_repeated_scores: dict[str, int]  # by split, of a pair that has one already; left out


def write_data_folder(
    collection: Collection, folder: Path, scores: Mapping[str, Iterator[tuple[str, str, float]]]
) -> WrittenFolder:
    """Write corpus.jsonl, queries.jsonl, qrels/ and, where there are pools or scores, candidates/ and
    scores/, whole or not at all. Opened as a collection, the folder has the same texts, judgements
    and pools under the same ids.

    Args:
        collection: is read from disk as it is written.
        folder: is not there yet.
        scores: by split, see :func:`ltr.data.collection.scores_by_split`.

    Raises:
        InputError: if the folder is there, or the disk is full.
    """
    collection = _with_all_splits(collection)
    n_scores: dict[str, int] = {}
    n_repeated_scores: dict[str, int] = {}
    n_trimmed = 0

    def write(temporary: Path) -> None:
        nonlocal n_trimmed
        n_trimmed = _write(collection, temporary)
        for split, lines in scores.items():
            all_rows = look_up(enumerate(lines), collection.queries, collection.corpus)
            rows = all_rows.select((all_rows.query_rows >= 0) & (all_rows.doc_rows >= 0))
            if len(rows) < len(all_rows):
                log.warning(
                    "%s: %d of %d scores of %s are of absent queries or documents and left out",
                    collection.source,
                    len(all_rows) - len(rows),
                    len(all_rows),
                    split,
                )
            if len(rows):
                firsts = rows.without_repeats()
                (temporary / "scores").mkdir(exist_ok=True)
                _write_scores(temporary / "scores" / f"{split}.tsv", collection, firsts)
                n_scores[split] = len(firsts)
                n_repeated_scores[split] = len(rows) - len(firsts)

    write_new(folder, write, "the output")
    return WrittenFolder(collection, n_trimmed, n_scores, n_repeated_scores)


def write_judgements(collection: Collection, split: str, parts: Sequence[QueryLists]) -> None:
    """Write a new split of a data folder, whole or not at all.

    Args:
        collection: of the folder.
        split: its name.
        parts: its judgements; no two have a query in common.

    Raises:
        InputError: if its file is there, or the disk is full.
    """
    assert collection.files is not None

    def write(temporary: Path) -> None:
        with open(temporary, "w", encoding="utf-8", newline="\n") as opened:
            opened.writelines(_judgement_lines(collection, QueryLists.end_to_end(parts)))

    file = collection.files.path / "qrels" / f"{split}.tsv"
    write_new(file, write, "the file of a new split")


def _write(collection: Collection, folder: Path) -> int:
    """Write all but scores; how many texts begin or end with white space."""
    lists = [*collection.qrels.values(), *collection.candidates.values()]
    n_lines = sum(len(each.doc_rows) for each in lists)
    total = len(collection.corpus) + len(collection.queries) + n_lines
    folder.mkdir()
    with tracking(total, "writing", "texts and lines") as report:
        lines = _CountedLines(report)
        lines.write(folder / "corpus.jsonl", lines.of_texts(collection.corpus))
        lines.write(folder / "queries.jsonl", lines.of_texts(collection.queries))
        (folder / "qrels").mkdir()
        for split, judged in collection.qrels.items():
            lines.write(folder / "qrels" / f"{split}.tsv", _judgement_lines(collection, judged))
        if collection.candidates:
            (folder / "candidates").mkdir()
        for split, pools in collection.candidates.items():
            lines.write(folder / "candidates" / f"{split}.trec", _pool_lines(collection, pools))
    return lines.n_trimmed


def _write_scores(file: Path, collection: Collection, scores: LineRows) -> None:
    """Write scores below names: they may look like ranks."""
    queries = collection.queries.ids.in_order(scores.query_rows)
    docs = collection.corpus.ids.in_order(scores.doc_rows)
    with open(file, "w", encoding="utf-8", newline="\n") as opened:
        opened.write("query_id\tdoc_id\tscore\n")
        for query, doc, score in zip(queries, docs, scores.values, strict=True):
            opened.write(f"{query.decode()}\t{doc.decode()}\t{score!s}\n")


def _with_all_splits(collection: Collection) -> Collection:
    """The collection with the splits of other names that its folder has and that can be read."""
    if collection.files is None:
        return collection
    for split in collection.files.splits:
        try:
            collection = with_split(collection, split)
        except InputError as error:  # what no other command reads unasked, such as notes
            log.warning("the split %r is left out: %s", split, error)
    return collection


class _CountedLines:
    """Files of lines, written one after the other.

    Args:
        report: is told how many lines there are in all files, now and then.

    Attributes:
        n_trimmed: how many texts begin or end with white space.
    """

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._done = 0
        self.n_trimmed = 0

    def write(self, file: Path, lines: Iterator[str]) -> None:
        """Write the lines of a file."""
        with open(file, "w", encoding="utf-8", newline="\n") as opened:
            while block := list(islice(lines, BLOCK)):
                opened.writelines(block)
                self._done += len(block)
                self._report(self._done)

    def of_texts(self, table: TextTable) -> Iterator[str]:
        """A line of JSON for each text."""
        for span in spans(len(table), BLOCK):
            ids = table.ids.between(span.start, span.stop)
            texts = table.texts.between(span.start, span.stop)
            self.n_trimmed += sum(text != text.strip() for text in texts)
            instructions = [""] * len(ids)
            if table.instructions is not None:
                instructions = table.instructions.between(span.start, span.stop)
            for id_, text, instruction in zip(ids, texts, instructions, strict=True):
                # Strings alone are encoded in a fraction of the time that a dict takes.
                columns = f'"_id": {encode_basestring(id_)}, "text": {encode_basestring(text)}'
                if instruction:
                    columns += f', "instruction": {encode_basestring(instruction)}'
                yield f"{{{columns}}}\n"


def _judgement_lines(collection: Collection, judged: QueryLists) -> Iterator[str]:
    yield "\t".join(BEIR_HEADER) + "\n"
    text_of = lru_cache(GRADES)(text_of_grade)
    for query, doc, grade in _entries(collection, judged):
        yield f"{query}\t{doc}\t{text_of(grade)}\n"


def _pool_lines(collection: Collection, pools: QueryLists) -> Iterator[str]:
    """The lines of a run file, with 9 digits of each score: enough to read a float32 back exactly."""
    ranks = chain.from_iterable(range(1, 1 + size) for size in np.diff(pools.offsets))
    entries = _entries(collection, pools)
    for rank, (query, doc, score) in zip(ranks, entries, strict=True):
        yield f"{query} Q0 {doc} {rank} {score:.9g} {TAG}\n"


def _entries(collection: Collection, lists: QueryLists) -> Iterator[tuple[str, str, float]]:
    """The ids of a query and a document with their value, for all documents of the lists."""
    queries = collection.queries.ids.in_order(lists.query_of_doc)
    docs = collection.corpus.ids.in_order(lists.doc_rows)
    for query, doc, value in zip(queries, docs, lists.values, strict=True):
        yield query.decode(), doc.decode(), float(value)
