"""``ltr labels import``: labels of a machine, kept beside the judgements of people."""

import logging
from pathlib import Path
from shlex import quote

import numpy as np

from ltr.data.collection import open_collection, with_split
from ltr.data.judge_labels import import_labels
from ltr.data.splits import split_named
from ltr.errors import InputError

# Lines go through the log, see ltr.cli.commands.Stdout.MESSAGES.
log = logging.getLogger(__name__)


def import_judge(
    file: str,
    *,
    by: str,
    data: str,
    split: str = "test",
    model: str | None = None,
    prompt: str | None = None,
    date: str | None = None,
    relevant_from: float | None = None,
    mixed_split: str | None = None,
) -> None:
    """Keep the labels of a machine beside the judgements of people, and never among them.

    Args:
        file: TREC's judgements or run, or rows of query_id, doc_id and a label or a score (.jsonl, .csv,
            .parquet, .tsv).
        by: The name of the judge.
        data: The data folder.
        split: Whose queries the judge labels, beside those that people have judged.
        model: What the judge is, to be kept with the labels.
        prompt: What it was asked, or a file that holds it; is kept, too.
        date: The day on which it judged, as 2026-11-29; is kept, too.
        relevant_from: The score from which on a document is relevant where rankings are measured. None:
            the labels are grades.
        mixed_split: Also write a new split with the judgements of people and, of queries that nobody has
            judged, the labels, as test.gpt; to rank all of them by ltr test RUN --split. None: none.
    """
    name_of_split = split_named(split, "split")
    collection = with_split(open_collection(data), name_of_split)
    if prompt is not None and len(prompt) < 255 and Path(prompt).is_file():
        prompt = Path(prompt).read_text(encoding="utf-8")
    elif prompt is not None and len(prompt.split()) == 1:
        raise InputError(
            f"--prompt must be a file, or what the judge was asked, in more than a word; there is no file {prompt}",
            option="prompt",
        )
    if mixed_split is not None:
        mixed_split = split_named(mixed_split, "mixed_split")
    labels, notes = import_labels(
        Path(file),
        collection,
        name_of_split,
        by,
        model=model,
        prompt=prompt,
        date=date,
        relevant_from=relevant_from,
        mixed_split=mixed_split,
    )
    lists = labels.scores.lists
    judged = collection.judgements(name_of_split)
    n_both = int(np.isin(lists.query_rows, judged.query_rows).sum())
    n_queries = len(lists.query_rows)
    log.info("%s: %d labels of %d queries", labels.folder, len(lists.doc_rows), n_queries)
    for note in notes.left_out:
        log.info("  %s", note)
    log.info(
        "  people have judged %d of these queries, and %d of %s in all",
        n_both,
        len(judged.query_rows),
        name_of_split,
    )
    if mixed_split is not None:
        log.info(
            "  all of them are the split %s: ltr test RUN --split %s", mixed_split, mixed_split
        )
    of_split = "" if name_of_split == "test" else f" --split {quote(name_of_split)}"
    log.info(
        "  to compare with them: ltr compare … --data %s%s --judge %s", quote(data), of_split, by
    )
    log.info("  to learn them: --data.labels.scores %s", quote(str(labels.folder)))
