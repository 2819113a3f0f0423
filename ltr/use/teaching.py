"""The scores of a teacher over the lists of a collection: written in parts, by as many processes as
are started.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.data.scores import TeacherScores
from ltr.errors import InputError
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import negatives_in
from ltr.models.ranker import digest_of_weights
from ltr.use.rankers import TextRanker
from ltr.use.reranking import scores_of

PART = 64  # queries that are scored together


class Teacher(NamedTuple):
    """A ranker with the name that the manifest gives it."""

    name: str
    ranker: TextRanker


def score_lists(
    teachers: Sequence[Teacher], collection: Collection, lists: QueryLists, folder: Path
) -> TeacherScores:
    """Score lists by one teacher, or by the mean of several, and write them to a folder.

    The lists are cut into parts of 64 queries. A process takes the next part that no other one
    holds, so several that are started on one folder share the work; one that is started again goes
    on where it was. What is written is the same, by however many.

    Args:
        teachers: the rankers. Scores of several are averaged as they are: they should have one
            scale, as those of several seeds.
        collection: holds the texts.
        lists: the documents of each query; the values do not matter.
        folder: the new folder; if it is there with these scores, nothing is done.

    Raises:
        InputError: if the folder is there with other scores, or a query leaves a cross-encoder no
            room for a document.
    """
    about = [
        {"name": name, "weights": digest_of_weights(one.model), "precision": one.precision}
        for name, one in teachers
    ]
    content = [about, collection.corpus.key, collection.queries.key, lists.digest(), PART]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    if folder.exists():
        there = TeacherScores.open(folder, collection, "output")
        if there.manifest.get("key") != key:
            text = (
                f"{folder}: there are scores of another teacher or other lists; name another folder"
            )
            raise InputError(text, option="output")
        return there
    parts = folder.parent / f".{folder.name}.parts-{key}"
    parts.mkdir(parents=True, exist_ok=True)
    begins = range(0, len(lists.query_rows), PART)
    files = [parts / f"{number:06}.npy" for number in range(len(begins))]
    try:
        for wait in (
            False,
            True,
        ):  # first what is free, then what others have begun: one of them may have been killed
            for file, begin in zip(files, begins, strict=True):
                _score_part(teachers, collection, _cut(lists, begin), file, wait, folder)
        if not folder.exists():
            values = np.concatenate([np.load(file) for file in files])
            TeacherScores(lists._replace(values=values), {"key": key, "teachers": about}).save(
                folder, collection
            )
    except FileNotFoundError:  # another process has put the parts together, and removed them
        if not folder.exists():
            raise
    shutil.rmtree(parts, ignore_errors=True)
    return TeacherScores.open(folder, collection, "output")


def lists_to_score(
    collection: Collection, split: str, documents: str, depth: int | None = None
) -> QueryLists:
    """The documents of a split's queries that a teacher scores: the relevant ones, and those that
    are trained against them.

    Args:
        collection: knows both.
        split: the queries.
        documents: ``candidates``, ``bm25``, or a folder of negatives.
        depth: how many of these, best first; None: all, and 100 of ``bm25``.

    Raises:
        InputError: if the collection has none, or the folder holds none.
    """
    judged = collection.judgements(split)
    if documents == "candidates":
        others = collection.pools(split, "documents").first(depth)
    elif documents == "bm25":
        others = bm25_lists(collection, judged.query_rows, depth or 100)
    else:
        others = MinedNegatives.open(negatives_in(Path(documents)), collection).lists().first(depth)
    asked = np.isin(np.repeat(others.query_rows, np.diff(others.offsets)), judged.query_rows)
    query_rows = np.repeat(others.query_rows, np.diff(others.offsets))[asked]
    return judged.joined(
        QueryLists.from_rows(query_rows, others.doc_rows[asked], others.values[asked])
    )


def _cut(lists: QueryLists, begin: int) -> QueryLists:
    """Some of the queries with their documents."""
    offsets = lists.offsets[begin : begin + PART + 1]
    rows = slice(offsets[0], offsets[-1])
    query_rows = lists.query_rows[begin : begin + PART]
    return QueryLists(query_rows, offsets - offsets[0], lists.doc_rows[rows], lists.values[rows])


def _score_part(
    teachers: Sequence[Teacher],
    collection: Collection,
    part: QueryLists,
    file: Path,
    wait: bool,
    folder: Path,
) -> None:
    """Score a part into its file, which is whole or absent; nothing where another process has it,
    or the folder is made.
    """
    if file.exists() or folder.exists():
        return
    with suppress(Timeout), FileLock(file.with_suffix(".lock"), timeout=-1 if wait else 0):
        if file.exists() or folder.exists():
            return
        total = np.zeros(len(part.doc_rows), np.float64)
        for one in teachers:
            total += scores_of(one.ranker, collection.queries, collection.corpus, part)
        temporary = file.with_suffix(".tmp")
        with open(temporary, "wb") as opened:
            np.save(opened, (total / len(teachers)).astype(np.float32))
        temporary.rename(file)
