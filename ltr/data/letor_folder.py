"""Splits of feature vectors written as LETOR text."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ltr.data.letor import FeatureSplit, RowNames
from ltr.data.progress import tracking
from ltr.data.trec import text_of_grade
from ltr.data.whole_files import write_new

REPORT_EVERY = 1024  # rows


def write_letor_folder(splits: dict[str, FeatureSplit], folder: Path) -> None:
    """Write ``train.txt``, ``dev.txt`` and ``test.txt``, whole or not at all. Read again, they are the
    same splits; their features are numbered from 1.

    Args:
        splits: by name.
        folder: is not there yet.

    Raises:
        InputError: if the folder is there, or the disk is full.
    """

    def write(temporary: Path) -> None:
        temporary.mkdir()
        n_done = 0
        total = sum(len(split.labels) for split in splits.values())
        with tracking(total, "writing", "rows") as report:
            for name, split in splits.items():
                with open(temporary / f"{name}.txt", "w", encoding="utf-8", newline="\n") as file:
                    for line in _lines(split):
                        file.write(line)
                        n_done += 1
                        if n_done % REPORT_EVERY == 0:
                            report(n_done)

    write_new(folder, write, "the output")


def _lines(split: FeatureSplit) -> Iterator[str]:
    """The rows of all queries, with 9 digits of each value: enough to read a float32 back exactly."""
    has_ids = not isinstance(split.doc_ids, RowNames)
    for query, query_id in enumerate(split.query_ids):
        for row in split.rows(query).tolist():
            values = split.features[row]
            named = values != 0
            # A row names the last feature, so that there are as many as before.
            named[-1] |= row == 0
            columns = np.flatnonzero(named)
            pairs = zip((columns + 1).tolist(), values[columns].tolist(), strict=True)
            words = [f"{text_of_grade(split.labels[row])} qid:{query_id}"]
            words += [f"{feature}:{value:.9g}" for feature, value in pairs]
            if has_ids:
                words.append(f"#docid = {split.doc_ids[row]}")
            yield " ".join(words) + "\n"
