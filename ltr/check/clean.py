"""A split without the queries that leak, beside the others, and what was taken out and why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ltr.check.leakage import KINDS, Kind, Leakage
from ltr.data.collection import Collection
from ltr.data.files import exists_as_file
from ltr.data.outputs import check_inside
from ltr.data.query_lists import QueryLists
from ltr.data.trec import text_of_grade
from ltr.data.whole_files import write_whole
from ltr.errors import InputError

CLEANED = "test"  # the split
# What makes a query leak. A relevant document that two queries share alone does not: in many
# collections a document answers several.
LEAKING: tuple[Kind, ...] = ("equal", "near", "set")


class CleanSplit(NamedTuple):
    """The files of a clean split, and what is in them.

    Attributes:
        qrels: the judgements of the queries that are left.
        removed: a line of JSON for each leak of a query that is not.
        n_left: queries that are left.
        n_removed: queries that are not.
    """

    qrels: Path
    removed: Path
    n_left: int
    n_removed: int


def write_clean(leakage: Leakage, folder: Path) -> CleanSplit:
    """Write ``qrels/test.clean.tsv`` into the data folder of a collection, with the queries of test
    that do not leak, and ``qrels/test.clean.removed.jsonl`` with each leak of the others: query,
    kind, where its partner is, and which. The same leaks make the same bytes.

    Raises:
        InputError: if there is no such split or nothing is left of it, the collection is no data
            folder, or another content stands in one of the files.
    """
    check_place(leakage.collection, folder)
    judged = leakage.collection.judgements(CLEANED)
    leaked = set(leakage.leaked(CLEANED, LEAKING).tolist())
    n_queries = len(judged.query_rows)
    if len(leaked) == n_queries:
        raise InputError(
            f"all {n_queries} queries of {CLEANED} leak, so nothing would be left in a clean split"
        )
    qrels, removed = _files(folder)
    clean = CleanSplit(qrels, removed, n_left=n_queries - len(leaked), n_removed=len(leaked))
    texts = {
        removed: "".join(_leak_lines(leakage)),
        qrels: "".join(_qrels_lines(leakage, judged, leaked)),
    }
    for file, text in texts.items():
        if exists_as_file(file) and file.read_text(encoding="utf-8", errors="replace") != text:
            raise InputError(
                f"{file} stands there with another content; remove it, or move it away, and check again"
            )
    # The split comes last: where it is, what was taken out is told as well.
    for file, text in texts.items():
        if not file.exists():
            write_whole(file, [text])
    return clean


def _files(folder: Path) -> tuple[Path, Path]:
    """The judgements of a clean split, and what was taken out of it."""
    qrels = folder / "qrels"
    return qrels / f"{CLEANED}.clean.tsv", qrels / f"{CLEANED}.clean.removed.jsonl"


def check_place(collection: Collection, folder: Path) -> None:
    """Raise an InputError where no clean split of a collection can be written: found out before the
    work that :func:`write_clean` needs.
    """
    if not (folder / "qrels").is_dir():
        raise InputError(
            f"a clean split is written beside the others, but {folder / 'qrels'} is no folder; only a data folder with qrels/ can have one",
            option="write",
        )
    if CLEANED not in collection.qrels:
        raise InputError(
            f"a clean split is made of {CLEANED}, but {folder / 'qrels'} has only {', '.join(collection.qrels)}; leave the option out",
            option="write",
        )
    check_inside(folder / "qrels", "the folder of a clean split")
    for file in _files(folder):
        exists_as_file(file)  # a folder of this name is refused


def _qrels_lines(leakage: Leakage, judged: QueryLists, leaked: set[int]) -> Iterator[str]:
    queries = leakage.collection.queries.ids
    docs = leakage.collection.corpus.ids
    yield "query-id\tcorpus-id\tscore\n"
    for query_row in judged.query_rows.tolist():
        if query_row in leaked:
            continue
        doc_rows, grades = judged.of(query_row)
        for doc_row, grade in zip(doc_rows.tolist(), grades.tolist(), strict=True):
            yield f"{queries[query_row]}\t{docs[doc_row]}\t{text_of_grade(grade)}\n"


def _leak_lines(leakage: Leakage) -> Iterator[str]:
    """By query, then by kind, then by where the partner is."""
    sortable_lines = []
    for number, leaks in enumerate(leakage.leaks_of(CLEANED, LEAKING)):
        queries = leaks.part.collection.queries
        partners = leaks.other.collection.queries
        for query_row, partner_row, similarity in zip(
            leaks.query_rows.tolist(),
            leaks.partner_rows.tolist(),
            leaks.similarity.tolist(),
            strict=True,
        ):
            entries = {
                "query": queries.ids[query_row],
                "text": queries.texts[query_row],
                "leak": KINDS[leaks.kind],
                "similarity": round(similarity, 4),
                "in": leaks.other.name,
                "partner": partners.ids[partner_row],
                "partner_text": partners.texts[partner_row],
            }
            key = (query_row, number)
            sortable_lines.append((key, json.dumps(entries, ensure_ascii=False) + "\n"))
    for _, line in sorted(sortable_lines):
        yield line
