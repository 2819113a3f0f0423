"""Labelled texts, as sentence classification has them: texts of one label belong together."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.collection import Collection, files_of_lines
from ltr.data.files import cached, digest_of, numbered_lines
from ltr.data.query_lists import QueryLists
from ltr.data.texts import Record, Strings, TextTable, first_of_each, id_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

MOST_PAIRS = 100_000_000  # of texts with one label, to be measured: 1.2 GB on disk


class LabelledTexts(NamedTuple):
    """Texts with a label each, by split. Rows number the texts of one split; strings stay on disk."""

    source: str  # where they came from, for errors
    tables: dict[str, TextTable]  # the texts of each split
    labels: dict[str, np.ndarray]  # [R] int64 for each split, the number of each text's label
    names: Sequence[str]  # the labels by number

    def collection(self, split: str) -> Collection:
        """The texts of a split as queries and as documents; judged, but for ``train``: those of one
        label are relevant to each other, and a text has no judgement of itself. An InputError if no
        label has two texts, or too many have.
        """
        table = self.tables[split]
        qrels = {}
        if split != "train":
            where = f"{self.source}: split {split!r}"
            content = (
                f"same-label-1 {table.key}"  # the key stands for the whole file, with its labels
            )
            folder = cached(
                "lists", content, lambda folder: _same_label(self.labels[split], where).save(folder)
            )
            qrels[split] = QueryLists.load(folder)
        return Collection(self.source, table, table, qrels, {})


def open_labelled_texts(path: str) -> LabelledTexts:
    """Open labelled texts, and check all of them at the first opening.

    A line is ``text<TAB>label``, without a header. A text that comes again with its label counts
    once.

    Args:
        path: a file (``train``), or a folder of ``{train,dev,test}.tsv[.gz]``.

    Raises:
        InputError: one line with ``file:line`` for a missing column, an empty text or label, a text
            with two labels in one split or in two, broken gzip or UTF-8; for missing files.
    """
    expected = "a folder of labelled texts must hold {train,dev,test}.tsv[.gz] with one text<TAB>label a line"
    files = files_of_lines(path, expected)
    digests = {split: digest_of(file) for split, file in files.items()}
    content = " ".join(["labels-1", *map(" ".join, digests.items())])
    folder = cached("labels", content, lambda folder: _write_labels(folder, files))
    tables = {}
    labels = {}
    for split, file in files.items():
        records = (Record(id_of("t", text), text, where) for where, text, _ in _lines(file))
        tables[split] = TextTable.open(
            f"labelled-1 {digests[split]}", first_of_each(records), "text"
        )
        labels[split] = np.asarray(np.load(folder / f"{split}.npy", mmap_mode="r"))
    return LabelledTexts(path, tables, labels, Strings(folder, "names"))


def _lines(file: Path) -> Iterator[tuple[str, str, str]]:
    """Place, text and label of each line."""
    for number, line in numbered_lines(file):
        where = f"{file}:{number}"
        parts = line.split("\t")
        if len(parts) != 2:
            raise InputError(
                f"{where}: expected 2 columns (text<TAB>label), got {len(parts)}: {line[:60]!r}"
            )
        text, label = (part.strip() for part in parts)
        if not text or not label:
            raise InputError(f"{where}: the {'label' if text else 'text'} is empty: {line[:60]!r}")
        yield where, text, label


def _write_labels(folder: Path, files: dict[str, Path]) -> None:
    """The names of the labels, and for each split their numbers in the order of the texts' ids, as
    tables of texts have it.
    """
    first: dict[str, tuple[str, str]] = {}
    label_of: dict[str, dict[str, str]] = {}
    for split, file in files.items():
        mine = label_of.setdefault(split, {})
        repeated = 0
        elsewhere = 0
        for where, text, label in _lines(file):
            id_ = id_of("t", text)
            if id_ in mine:
                repeated += 1
            elif id_ in first:
                elsewhere += 1
            known, place = first.setdefault(id_, (label, where))
            if known != label:
                raise InputError(
                    f"{where}: a text must have one label, got {label!r}, but {known!r} at {place}: {text[:60]!r}"
                )
            mine[id_] = label
        if not mine:
            raise InputError(
                f"{file}: the split is empty; at least one line text<TAB>label is needed"
            )
        if repeated:
            log.info("%s: %d lines repeat a text with its label and are left out", file, repeated)
        if elsewhere:
            log.warning(
                "%s: %d of %d texts stand in another split, too", file, elsewhere, len(mine)
            )
    names = sorted({label for mine in label_of.values() for label in mine.values()})
    number = {label: at for at, label in enumerate(names)}
    Strings.write(folder, "names", [name.encode("utf-8") for name in names])
    for split, mine in label_of.items():
        np.save(
            folder / f"{split}.npy",
            np.asarray([number[mine[id_]] for id_ in sorted(mine)], dtype=np.int64),
        )


def _same_label(labels: np.ndarray, where: str) -> QueryLists:
    """Each text with the others of its label."""
    counts = np.bincount(labels)
    n_pairs = int((counts * (counts - 1)).sum())
    if not n_pairs:
        raise InputError(f"{where}: no two texts have the same label; there is nothing to be found")
    if n_pairs > MOST_PAIRS:
        most = f"more than the {MOST_PAIRS} to be measured"
        raise InputError(f"{where}: {n_pairs} pairs of texts share a label, {most}; take fewer")
    query_rows = np.flatnonzero(counts[labels] > 1)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    doc_rows = np.concatenate(
        [own[own != row] for row in query_rows for own in (members[labels[row]],)]
    )
    offsets = np.concatenate([[0], np.cumsum(counts[labels[query_rows]] - 1)])
    return QueryLists(query_rows, offsets, doc_rows, np.ones(n_pairs, dtype=np.float32))
