"""Labels of a judge that is a machine: beside the judgements of a data folder, never among them.

They are scores of a teacher (:class:`ltr.data.teacher_scores.TeacherScores`) at a place of their own,
``judges/NAME/SPLIT``, so what learns from a teacher learns from them.
"""

from collections.abc import Sequence
from datetime import date as Date
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.artefact import MANIFEST
from ltr.data.cache_folder import Notes
from ltr.data.collection import Collection, with_split
from ltr.data.data_folder import write_judgements
from ltr.data.files import digest_of
from ltr.data.forms import Form
from ltr.data.judged_lists import Noted, read_judgements, read_scores
from ltr.data.outputs import check_new_folder
from ltr.data.pair_files import pair_rows
from ltr.data.progress import reading
from ltr.data.query_lists import QueryLists
from ltr.data.splits import SPLITS, check_plain_name
from ltr.data.teacher_scores import SCORES, TeacherScores
from ltr.data.texts import TextTable
from ltr.errors import InputError, positive

JUDGES = "judges"  # the folder within a data folder
COLUMNS_OF_QRELS = 4


class JudgeLabels(NamedTuple):
    """The labels of a judge.

    Attributes:
        scores: as they were imported.
        name: of the judge.
        folder: where they lie.
    """

    scores: TeacherScores
    name: str
    folder: Path

    @property
    def grades(self) -> QueryLists:
        """What rankings are measured by: 1 from the score on that was named at the import, and 0 below;
        without one the labels themselves, those below 0 as 0.
        """
        lists = self.scores.lists
        level = self.scores.manifest["relevant_from"]
        if level is None:
            return lists._replace(values=np.maximum(lists.values, 0))
        return lists._replace(values=(lists.values >= level).astype(np.float32))

    @property
    def mixed_split(self) -> str | None:
        """The split that the import has mixed them into; None for none."""
        split: str | None = self.scores.manifest.get("mixed_split")
        return split

    def of_nobody_else(self, collection: Collection) -> QueryLists:
        """The grades of queries that people have judged in none of ``train``, ``dev`` and ``test``, nor in
        the split of the labels.
        """
        names = {*SPLITS, self.scores.manifest["split"]}
        by_people = [
            judged.query_rows
            for split, judged in collection.qrels.items()
            if split in names and split != self.mixed_split
        ]
        grades = self.grades
        return grades.where(~np.isin(grades.query_of_doc, np.concatenate(by_people)))

    @property
    def are_graded(self) -> bool:
        """Whether the grades are few whole numbers, and so compare one by one with those of people."""
        values = np.unique(self.grades.values)
        return bool((values == np.floor(values)).all()) and len(values) <= 10

    @property
    def origin(self) -> str:
        """Who made them, in words: name, model, date."""
        return origin_of_labels(self.scores.manifest)


def origin_of_labels(manifest: dict[str, object]) -> str:
    """Who made labels, by what their manifest says: ``judge gpt, model gpt-5, 2026-11-29``."""
    parts = [f"judge {manifest['judge']}"]
    if manifest.get("model"):
        parts.append(f"model {manifest['model']}")
    if manifest.get("date"):
        parts.append(str(manifest["date"]))
    return ", ".join(parts)


def labels_in_words(path: str | None) -> str | None:
    """The path of labels that were learnt, with whose they are where these are a judge's."""
    if path is None or not Path(path).is_dir():
        return path
    try:
        manifest = SCORES.manifest(Path(path))
    except InputError:
        return path
    return f"{path} ({origin_of_labels(manifest)})" if "judge" in manifest else path


def import_labels(
    file: Path,
    collection: Collection,
    split: str,
    name: str,
    *,
    model: str | None = None,
    prompt: str | None = None,
    date: str | None = None,
    relevant_from: float | None = None,
    mixed_split: str | None = None,
) -> tuple[JudgeLabels, Notes]:
    """Read the labels of a judge and keep them in the data folder.

    Args:
        file: TREC's judgements or run, or rows that name a query, a document and a label or a score.
        collection: of the data folder.
        split: whose queries they judge, or would.
        name: of the judge.
        model, prompt, date: what made them; of the manifest alone.
        relevant_from: the score from which on a document is relevant; None: the labels are grades.
        mixed_split: a new split of the data folder, with the judgements of people and, of the queries
            that people have judged in no split, those of the judge. None: none.

    Returns:
        The labels, and what is to be said of the file.

    Raises:
        InputError: for data that is no folder, a name that can't be that of a folder, a second import
            of one judge and split, and ``file:line`` of what can't be read.
    """
    check_plain_name(name, "--by")
    if relevant_from is not None:
        positive("relevant_from", relevant_from)
    if date is not None:
        try:
            Date.fromisoformat(date)
        except ValueError:
            raise InputError(
                f"--date must be a day, as 2026-11-29, got {date!r}", option="date"
            ) from None
    if not file.is_file():
        raise InputError(f"there is no file {file}; name one with labels")
    folder = _folder(collection, name, split)
    assert collection.files is not None
    if mixed_split is not None and mixed_split in collection.files.splits:
        raise InputError(
            f"{collection.source}: --mixed_split must be a new split, got {mixed_split}; name another one, as {split}.{name}"
        )
    if folder.exists():
        raise InputError(
            f"{folder}: {name} must be imported for {split} once, and is there already; give the labels another name, or remove that folder"
        )
    check_new_folder(folder, "the folder of the labels")
    with reading([file]):
        lists, notes = _read([file], collection.queries, collection.corpus)
    manifest = {
        "judge": name,
        "split": split,
        "model": model,
        "prompt": prompt,
        "date": date,
        "relevant_from": relevant_from,
        "mixed_split": mixed_split,
        "file": file.name,
        "file_digest": digest_of(file),
    }
    scores = TeacherScores(lists, manifest)
    scores.save(folder, collection, keep_existing=False)
    labels = open_judge(collection, name, split)
    if mixed_split is not None:  # behind the manifest: no such split is without its origin
        judged = collection.judgements(split)
        mixed = [judged, labels.of_nobody_else(collection)]
        write_judgements(collection, mixed_split, mixed)
    return labels, notes


def open_judge(collection: Collection, name: str, split: str) -> JudgeLabels:
    """The labels of a judge for a split.

    Raises:
        InputError: if there are none, with the judges that there are; or as
            :meth:`ltr.data.teacher_scores.TeacherScores.open`.
    """
    folder = _folder(collection, name, split)
    if not folder.is_dir():
        known = ", ".join(judges_of(collection, split)) or "none"
        raise InputError(
            f"{collection.source}: a judge must have labels for {split}, got {name!r}, and these have: {known}; import them with ltr labels import FILE --by {name} --data {collection.source} --split {split}",
            option="judge",
        )
    scores = TeacherScores.open(folder, collection, "judge")
    if "judge" not in scores.manifest:
        raise InputError(f"{folder}: these scores are not those of a judge; import them again")
    return JudgeLabels(scores, name, folder)


def judges_of(collection: Collection, split: str = "*") -> list[str]:
    """The names of the judges that have labels for a split, by default for any."""
    if collection.files is None:
        return []
    found = (collection.files.path / JUDGES).glob(f"*/{split}")
    return sorted({folder.parent.name for folder in found if folder.is_dir()})


def machine_judged_lines(collection: Collection, split: str | None = None) -> list[str]:
    """What must be told of splits whose queries a machine has judged, a line for each judge: those that
    an import was asked to mix into one.

    Args:
        collection: of the data.
        split: of which it is told; None: of all.
    """
    lines: list[str] = []
    if collection.files is None:
        return lines
    for file in sorted((collection.files.path / JUDGES).glob(f"*/*/{MANIFEST}")):
        folder = file.parent
        try:
            manifest = SCORES.manifest(folder)
        except InputError as error:
            lines.append(error.message)
            continue
        if "judge" not in manifest:
            continue
        mixed = manifest.get("mixed_split")
        if mixed not in collection.files.splits or split not in (None, mixed):
            continue
        told = f"queries are judged by a machine alone ({origin_of_labels(manifest)})"
        try:
            of_people = with_split(collection, folder.name)
            labels = open_judge(of_people, folder.parent.name, folder.name)
        except InputError as error:
            lines.append(f"{mixed}: {told}, nobody knows which: {error.message}")
            continue
        rows = labels.of_nobody_else(of_people).query_rows
        first = ", ".join(collection.queries.ids[row] for row in rows[:3])
        more = f" and {len(rows) - 3:,} more" if len(rows) > 3 else ""
        lines.append(f"{mixed}: {len(rows):,} {told}: {first}{more}")
    return lines


def _folder(collection: Collection, name: str, split: str) -> Path:
    if collection.files is None:
        raise InputError(
            f"{collection.source}: labels of a judge lie in a data folder, and this is none; make one with ltr import {collection.source} FOLDER"
        )
    return collection.files.path / JUDGES / name / split


def _read(files: Sequence[Path], queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """Labels: TREC's judgements of four columns, or what is read as scores. A judge often gives a grade
    and how sure it is of it, so rows must say which one counts.
    """
    form = Form(files[0])
    if not form.has_rows and form.n_columns == COLUMNS_OF_QRELS:
        return read_judgements(files, queries, corpus)
    if form.has_rows or form.names:
        labels = set()
        for number, row in pair_rows(files[0]):
            row.check_one_label()
            labels.add(row.label_role)
            if len(labels) > 1:
                raise InputError(
                    f"{files[0]}:{number}: all rows must have a label in the same column, and this one has another than those before; write one scale in one column"
                )
    return read_scores(files, queries, corpus)
