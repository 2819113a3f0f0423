"""Labelled texts, as sentence classification has them: texts of one label belong together."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.cache_folder import cached, origin_of
from ltr.data.collection import Collection, files_by_split
from ltr.data.counted_columns import CountedColumns, columns_of, separator_hint
from ltr.data.files import digest_of, map_array, numbered_lines
from ltr.data.query_lists import QueryLists
from ltr.data.strings import Strings
from ltr.data.texts import Record, TextTable, first_of_each, id_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

# The most pairs of texts with one label that an evaluation may have: their lists take 1.2 GB on
# disk.
MOST_PAIRS = 100_000_000


class LabelledTexts(NamedTuple):
    """Texts with a label each, by split. The texts of a split are numbered by row; their strings
    stay on disk.
    """

    source: str  # where they came from, for errors
    tables: dict[str, TextTable]  # the texts of each split
    labels: dict[str, np.ndarray]  # by split [R] int64, the number of each text's label
    label_names: Sequence[str]  # by number

    def collection(self, split: str) -> Collection:
        """The texts of a split, each a query and a document.

        All splits but ``train`` have judgements: texts of one label are relevant to each other, and
        a text is not judged as a document of itself.

        Raises:
            InputError: if no label has two texts, or there are too many pairs of texts with one
                label.
        """
        table = self.tables[split]
        qrels = {}
        if split != "train":
            where = f"{self.source}: split {split!r}"
            labels = self.labels[split]
            # The key of the table stands for the whole file, so for the labels, too.
            content = f"same-label-1 {table.key}"
            qrels[split] = cached(
                "lists",
                content,
                lambda folder: _same_label_lists(labels, where).save(folder),
                QueryLists.load,
                origin_of(table.folder),
            )
        return Collection(self.source, corpus=table, queries=table, qrels=qrels, candidates={})


def open_labelled_texts(path: str) -> LabelledTexts:
    """Open labelled texts, and check all of them at the first opening.

    A line is ``text<TAB>label``, without a header. A text that comes again with its label counts
    once.

    Args:
        path: a file (``train``), or a folder of ``{train,dev,test}.tsv[.gz]``.

    Raises:
        InputError: with ``file:line`` for a missing column, an empty text or label, a text with two
            labels in one split or in two, broken gzip or UTF-8; for missing files.
    """
    files = files_by_split(
        path,
        "a folder of labelled texts must hold {train,dev,test}.tsv[.gz] with one text<TAB>label a line",
    )
    digests = {}
    content = "labels-1"
    for split, file in files.items():
        columns = columns_of(file)
        if columns.names:
            first = "\t".join(columns.names)[:60]
            raise InputError(
                f"{file}:{columns.first}: every line must hold texts, got the names of columns, {first!r}; a line is text<TAB>label; remove this one, or, where these are texts, put it after another one"
            )
        _warn_of_fractions(file, columns)
        digests[split] = digest_of(file)
        content += f" {split} {digests[split]}"

    def open_labels(folder: Path) -> tuple[dict[str, np.ndarray], Strings]:
        labels = {split: np.asarray(map_array(folder / f"{split}.npy")) for split in files}
        return labels, Strings(folder, "names")

    labels, names = cached(
        "labels",
        content,
        lambda folder: _write_labels(folder, files),
        open_labels,
        origin_of(*files.values()),
    )
    tables = {}
    for split, file in files.items():
        table_content = f"labelled-1 {digests[split]}"
        records = first_of_each(record for record, _ in _lines(file))
        tables[split] = TextTable.open(table_content, records, "text", file)
    return LabelledTexts(path, tables, labels, names)


def _warn_of_fractions(file: Path, columns: CountedColumns) -> None:
    """Say it where labels are numbers with fractions, as scores of similarity are."""
    if len(columns.columns) != 2:
        return
    _, labels = columns.columns
    if columns.share(labels.fractions) > 0.5:
        log.warning(
            "%s: most labels are numbers with a fraction, and texts belong together where these are equal; scores of pairs are no labels of texts",
            file,
        )


def _lines(file: Path) -> Iterator[tuple[Record, str]]:
    """The texts of a file with their labels."""
    for number, line in numbered_lines(file):
        where = f"{file}:{number}"
        parts = line.split("\t")
        if len(parts) != 2:
            raise InputError(
                f"{where}: expected 2 columns (text<TAB>label), got {len(parts)}: {line[:60]!r}{separator_hint(line) if len(parts) == 1 else ''}"
            )
        text = parts[0].strip()
        label = parts[1].strip()
        if not text or not label:
            empty = "label" if text else "text"
            raise InputError(f"{where}: the {empty} is empty: {line[:60]!r}")
        yield Record(id_of("t", text), text, str(file), number), label


def _write_labels(folder: Path, files: dict[str, Path]) -> None:
    """Write the names of the labels, and for each split the number of each text's label. The texts
    are in the order of their ids, as in a table of texts.
    """
    first_labels: dict[str, tuple[str, str]] = {}  # with their places, by id, over all splits
    labels_of_split: dict[str, dict[str, str]] = {}  # by split, then by the id of the text
    for split, file in files.items():
        labels_of_split[split] = _read_labels(file, first_labels)
    # A text has one label wherever it stands, so these are all labels.
    names = sorted({label for label, _ in first_labels.values()})
    number_of_name = {name: number for number, name in enumerate(names)}
    Strings.write(folder, "names", [name.encode("utf-8") for name in names])
    for split, labels in labels_of_split.items():
        numbers = [number_of_name[labels[id_]] for id_ in sorted(labels)]
        np.save(folder / f"{split}.npy", np.asarray(numbers, dtype=np.int64))


def _read_labels(file: Path, first_labels: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The labels of a split by the ids of its texts.

    Args:
        file: of the split.
        first_labels: by id, the labels with which the texts of the splits before have come first, and
            where; those of this split are added. The texts themselves stay out of memory.
    """
    labels: dict[str, str] = {}
    n_repeated = 0
    n_in_other_splits = 0
    for record, label in _lines(file):
        if record.id in labels:
            n_repeated += 1
        elif record.id in first_labels:
            n_in_other_splits += 1
        first, where = first_labels.setdefault(record.id, (label, record.where))
        if first != label:
            raise InputError(
                f"{record.where}: a text must have one label, got {label!r}, but {first!r} at {where}: {record.text[:60]!r}; a line is text<TAB>label, in this order"
            )
        labels[record.id] = label
    if not labels:
        raise InputError(f"{file}: the split is empty; at least one line text<TAB>label is needed")
    if n_repeated:
        log.info("%s: %d lines repeat a text with its label and are left out", file, n_repeated)
    if n_in_other_splits:
        log.warning(
            "%s: %d of %d texts stand in another split, too", file, n_in_other_splits, len(labels)
        )
    return labels


def _same_label_lists(labels: np.ndarray, where: str) -> QueryLists:
    """For each text that shares its label the other texts of the label, with grade 1."""
    counts = np.bincount(labels)
    n_pairs = int((counts * (counts - 1)).sum())
    if not n_pairs:
        raise InputError(f"{where}: no two texts have the same label; there is nothing to be found")
    if n_pairs > MOST_PAIRS:
        raise InputError(
            f"{where}: {n_pairs} pairs of texts share a label, more than the {MOST_PAIRS} to be measured; take fewer"
        )
    rows_by_label = np.argsort(labels, kind="stable")
    rows_of_label = np.split(rows_by_label, np.cumsum(counts)[:-1])
    query_rows = np.flatnonzero(counts[labels] > 1)
    doc_rows = []
    for query_row in query_rows:
        same_label = rows_of_label[labels[query_row]]
        doc_rows.append(same_label[same_label != query_row])
    offsets = np.concatenate([[0], np.cumsum(counts[labels[query_rows]] - 1)])
    values = np.ones(n_pairs, dtype=np.float32)
    return QueryLists(query_rows, offsets, np.concatenate(doc_rows), values)
