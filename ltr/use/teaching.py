"""The scores of a teacher over the lists of a collection: written in parts, by as many processes as
are started.
"""

import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from ltr.data.bm25 import DEPTH, bm25_lists
from ltr.data.collection import Collection
from ltr.data.files import digest_of_json
from ltr.data.own_documents import without_own
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists
from ltr.data.teacher_scores import TeacherScores
from ltr.errors import InputError, local_path
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.overlay import negatives_in
from ltr.models.ranker import digest_of_weights
from ltr.use.rankers import TextRanker
from ltr.use.reranking import scores_of

log = logging.getLogger(__name__)

PART = 64  # queries that are scored together


class Teacher(NamedTuple):
    """A ranker, and what the manifest of the scores calls it."""

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
        InputError: if a teacher is given twice, or the folder is there with other scores.
    """
    local_path("output", folder)
    described = []
    for name, ranker in teachers:
        weights = digest_of_weights(ranker.model)
        described.append({"name": name, "weights": weights, "precision": ranker.precision})
    # All that decides what the scores are, and how they are cut into parts.
    keys = [[teacher.ranker.model.key, teacher.ranker.precision] for teacher in teachers]
    _check_distinct(teachers, keys)
    identity = [keys, collection.corpus.key, collection.queries.key, lists.digest(), PART]
    key = digest_of_json(identity)[:16]
    if folder.exists():
        existing = TeacherScores.open(folder, collection, "output")
        if existing.manifest.get("key") != key:
            raise InputError(
                f"{folder}: there are scores of another teacher or other lists; name another folder",
                option="output",
            )
        return existing
    parts = folder.parent / f".{folder.name}.parts-{key}"
    parts.mkdir(parents=True, exist_ok=True)
    begins = range(0, len(lists.query_rows), PART)
    files = [parts / f"{number:06}.npy" for number in range(len(begins))]
    try:
        # First the parts that nobody holds. Then those that others have begun: a process that was
        # killed lets go of its part.
        for wait in (False, True):
            numbered = list(zip(files, begins, strict=True))
            for file, begin in track(numbered, "scoring", f"parts of {PART} queries"):
                _score_part(teachers, collection, _part_of(lists, begin), file, wait, folder)
        if not folder.exists():
            values = np.concatenate([np.load(file) for file in files])
            scores = TeacherScores(
                lists._replace(values=values), {"key": key, "teachers": described}
            )
            scores.save(folder, collection)
    except FileNotFoundError:
        # Another process has put the parts together meanwhile, and removed their files.
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
        collection: has the judgements, and the candidates.
        split: the queries.
        documents: ``candidates``, ``bm25``, ``auto`` (the split's pools where it has some, else
            BM25), or a folder of negatives.
        depth: how many documents of a query to take from there, best first; None: all of them, but
            100 of ``bm25``.

    Raises:
        InputError: if the collection has no candidates, the folder no negatives, or none of them
            are of these queries.
    """
    relevant = collection.judgements(split)
    if documents == "auto":
        documents = collection.taken_by_auto(split)
        what = "the pools of the split"
        if documents == "bm25":
            what = f"the best {depth or DEPTH} of BM25, as {collection.lack_of_pools(split)}"
        log.info("%s: split %r: documents: auto takes %s", collection.source, split, what)
    if documents == "candidates":
        others = collection.best_of_pools(split, depth, option="documents")
    elif documents == "bm25":
        others = bm25_lists(collection, relevant.query_rows, depth or DEPTH)
    else:
        negatives = MinedNegatives.open(negatives_in(Path(documents)), collection, "documents")
        others = negatives.lists.cut(depth)
    # A query's own document is in no list that is trained on; pools and BM25 have left it out.
    others = without_own(others, collection.documents_left_out())
    query_rows = others.query_of_doc
    is_of_split = np.isin(query_rows, relevant.query_rows)
    if not is_of_split.any():
        raise InputError(
            f"{documents} must have documents for the queries of {split}, beside those that are judged, and has none; name others, or another --split",
            option="documents",
        )
    others = QueryLists.from_rows(
        query_rows[is_of_split], others.doc_rows[is_of_split], others.values[is_of_split]
    )
    return relevant.joined(others)


def _check_distinct(teachers: Sequence[Teacher], keys: Sequence[object]) -> None:
    """Raise an InputError for two teachers of one key: their mean would count one of them twice."""
    for place, teacher in enumerate(teachers):
        first = keys.index(keys[place])
        if first < place:
            raise InputError(
                f"teachers must give scores of their own, and {teachers[first].name} and {teacher.name} give the same; name one of them"
            )


def _part_of(lists: QueryLists, begin: int) -> QueryLists:
    """The next ``PART`` queries from the place ``begin``, with their documents."""
    query_rows = lists.query_rows[begin : begin + PART]
    offsets = lists.offsets[begin : begin + PART + 1]
    documents = slice(offsets[0], offsets[-1])
    return QueryLists(
        query_rows, offsets - offsets[0], lists.doc_rows[documents], lists.values[documents]
    )


def _score_part(
    teachers: Sequence[Teacher],
    collection: Collection,
    part: QueryLists,
    file: Path,
    wait: bool,
    folder: Path,
) -> None:
    """Score a part into its file, which is whole or absent. Nothing is done where it is there, or
    the folder of all scores. If another process scores this part, wait for it or leave the part to
    it.
    """
    if file.exists() or folder.exists():
        return
    with suppress(Timeout), FileLock(file.with_suffix(".lock"), timeout=-1 if wait else 0):
        if file.exists() or folder.exists():  # since the lock was asked for
            return
        total = np.zeros(len(part.doc_rows), np.float64)
        for teacher in teachers:
            total += scores_of(teacher.ranker, collection.queries, collection.corpus, part)
        mean = (total / len(teachers)).astype(np.float32)
        temporary = file.with_suffix(".tmp")
        with open(temporary, "wb") as stream:
            np.save(stream, mean)
        temporary.rename(file)
