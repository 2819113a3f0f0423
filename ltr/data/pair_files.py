"""Files of pairs: rows that name queries and documents by their ids, with scores where there are some.

What a row says follows from the names of its columns alone, so a form that others ship is a line of
:data:`ROLES`. Text whose first line holds no names has them by the number of its columns.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ltr.data import trec
from ltr.data.columns import WORDS
from ltr.data.files import numbered_lines
from ltr.data.lines import Line
from ltr.data.named_rows import is_row_file, read_rows
from ltr.data.text_rows import text_of
from ltr.data.texts import id_of
from ltr.errors import InputError

# What columns are called, in small letters and with _ for -; of several the first one counts.
ROLES = {
    "query_id": ("query_id", "qid", "queryid", "question_id", "questionid"),
    "doc_id": ("doc_id", "pid", "docid", "corpus_id", "document_id", "passage_id", "corpus_ids"),
    "score": ("score",),
    "grade": ("relevance", "grade", "label"),
    "distance": ("distance",),
    "positive": ("pos", "positive", "pos_id", "positive_id"),
    "negative": ("neg", "negative", "neg_id", "negative_id"),
    "positive_scores": ("pos_scores", "pos_score"),
    "negative_scores": ("neg_scores", "neg_score"),
    "query": (
        "query",
        *sorted(WORDS["query"].split()),
    ),  # a text: positives and negatives are texts, too
}
# The roles of the columns of text without names, by their number.
ROLES_OF_COLUMNS = {
    2: ("query_id", "doc_id"),
    3: ("query_id", "doc_id", "score"),
    4: ("query_id", "doc_id", "query", "text"),  # MS MARCO's top1000
    5: ("positive_scores", "negative_scores", "query_id", "positive", "negative"),
}
TRIPLE = ("query_id", "positive", "negative")  # three columns, too
COLUMNS_OF_RUN = 6  # or more: words behind the tag are a comment

Pair = tuple[str, str, float]  # a query and a document by their ids, and a value


def pair_rows(file: Path, is_triples: bool = False) -> Iterator[tuple[int, "PairRow"]]:
    """The rows of a file with their numbers.

    Args:
        file: JSON lines, CSV, Parquet or Arrow; or text, whose first line has the names of its
            columns, or else 2 to 5 columns as in :data:`ROLES_OF_COLUMNS`, or those of a run.
        is_triples: whether three columns without names are a query, a positive and a negative.

    Raises:
        InputError: ``file:line`` of a line with another number of columns than the first.
    """
    if is_row_file(file) or _names_in(file):
        for number, row in read_rows(file):
            values = _by_role(row)
            yield number, PairRow(f"{file}:{number}", values, n_others=len(row) - len(values))
        return
    n_columns = None
    number_of_first = None
    for number, parts in lines_of_columns(file):
        if n_columns is None and len(parts) >= COLUMNS_OF_RUN:
            for number_in_run, (query, doc, score) in trec.read_run(file):
                values = {"query_id": query, "doc_id": doc, "score": score}
                yield number_in_run, PairRow(f"{file}:{number_in_run}", values)
            return
        n_columns = n_columns or len(parts)
        if len(parts) != n_columns or n_columns not in ROLES_OF_COLUMNS:
            expected = f"{n_columns}, as the first line has"
            if n_columns not in ROLES_OF_COLUMNS:
                expected = "2 (query, doc), 3 (query, doc, score), 6 (query, Q0, doc, rank, score, tag), or names in the first line"
            raise InputError(
                f"{file}:{number}: expected columns {expected}, got {len(parts)}: {' '.join(parts)[:80]!r}"
            )
        if number_of_first is None:
            number_of_first = number
            if n_columns == 4 and is_score(parts[3]):
                raise InputError(
                    f"{file}:{number}: four columns are MS MARCO's top1000 (query, doc, and the texts of both), got a number in column 4, as judgements have; leave column 2 of judgements out, or write names in the first line"
                )
        roles = TRIPLE if is_triples and n_columns == 3 else ROLES_OF_COLUMNS[n_columns]
        yield number, PairRow(f"{file}:{number}", dict(zip(roles, parts, strict=True)))


def scored_lines(file: Path) -> Iterator[Line]:
    """The pairs of a file with their scores; an InputError as :func:`pair_rows`, and for a row without
    a score.
    """
    for number, row in pair_rows(file):
        for pair in row.scored():
            yield number, pair


def judgement_lines(file: Path, are_graded: bool) -> Iterator[Line]:
    """The judgements of a file: of rows, of text below names, of lines of a query and a document alone,
    or as :func:`ltr.data.trec.read_qrels` reads them.

    Args:
        file: to be read.
        are_graded: whether they have grades, see :func:`has_grades`; else each is 1.

    Raises:
        InputError: as :func:`ltr.data.trec.grade_of`; for a row without a grade where others have
            one, or with one where others have none.
    """
    if are_graded and not is_row_file(file) and _names_in(file) in ((), trec.BEIR_HEADER):
        yield from trec.read_qrels(file)
        return
    for number, row in pair_rows(file):
        yield number, row.graded() if are_graded else row.relevant()


def has_grades(file: Path) -> bool:
    """Whether the judgements of a file have grades. They have none where the first one is a query and
    a document and nothing else, as in T2Ranking's ``qid<TAB>pid`` and NanoBEIR: all that are listed
    are relevant.
    """
    if is_row_file(file) or _names_in(file):
        return not any(row.is_pair for _, row in islice(pair_rows(file), 1))
    return all(len(parts) != 2 for _, parts in islice(lines_of_columns(file), 1))


def candidate_lines(file: Path) -> Iterator[Line]:
    """The pairs of a file of candidates, with their scores, or 0 where there are none."""
    for number, row in pair_rows(file):
        for pair in row.candidates():
            yield number, pair


def has_three_columns(file: Path) -> bool:
    """Whether a file is text of three columns without names."""
    if is_row_file(file) or _names_in(file):
        return False
    return any(len(parts) == 3 for _, parts in islice(lines_of_columns(file), 1))


def _names_in(file: Path) -> tuple[str, ...]:
    """The names of columns in the first line of a text, among them that of the query's id; none where
    it holds no names.
    """
    for _, parts in lines_of_columns(file):
        has_names = "query_id" in _by_role(dict(zip(parts, parts, strict=True)))
        return tuple(parts) if has_names else ()
    return ()


def lines_of_columns(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a text, each cut at its tabs, or at white space where it has none. Comments are
    left out as in qrels.
    """
    for number, line in numbered_lines(file):
        parts = line.split("\t") if "\t" in line else line.split()
        if parts[0] != "#":
            yield number, [part.strip() for part in parts]


def is_score(value: object) -> bool:
    """Whether a value is a finite number that float32 can hold, or a text of one."""
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_0 as 10
        return False
    try:
        return abs(float(value)) <= trec.LARGEST_SCORE  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _by_role(row: dict[str, Any]) -> dict[str, Any]:
    """The values of a row by role. What has no value is left out."""
    columns = {name.lower().replace("-", "_"): value for name, value in row.items()}
    values = {}
    for role, names in ROLES.items():
        for name in names:
            if columns.get(name) is not None:
                values[role] = columns[name]
                break
    return values


class PairRow:
    """One row of a file.

    Args:
        where: its place, for errors.
        values: by role.
        n_others: how many columns have no role, or no value.
    """

    def __init__(self, where: str, values: dict[str, Any], n_others: int = 0) -> None:
        self._where = where
        self._values = values
        self._n_others = n_others

    def scored(self) -> list[Pair]:
        """The pairs of a query and a document with their scores; an InputError if there is none."""
        if "doc_id" in self._values:
            role = "score" if "score" in self._values else "grade"
            self._ask("query_id", *(() if role in self._values else ("score",)))
            score = self._number(self._values[role])
            return [(self._query, self._id(self._values["doc_id"]), score)]
        pairs = []
        for side in ("positive", "negative"):
            if side not in self._values:
                continue
            self._ask(f"{side}_scores")
            docs = _as_list(self._values[side])
            scores = _as_list(self._values[f"{side}_scores"])
            if len(docs) != len(scores):
                raise InputError(
                    f"{self._where}: there must be as many scores as {side} documents, got {len(scores)} and {len(docs)}"
                )
            for doc, score in zip(docs, scores, strict=True):
                pairs.append((self._query, self._doc(doc, side), self._number(score)))
        if not pairs:
            self._ask("doc_id", "score")
        return pairs

    def graded(self) -> Pair:
        """The query, the document and the grade of a judgement."""
        role = "grade" if "grade" in self._values else "score"
        self._ask("query_id", "doc_id", *(() if role in self._values else ("score",)))
        grade = trec.grade_of(str(self._values[role]), self._where)
        return self._query, self._id(self._values["doc_id"]), grade

    @property
    def is_pair(self) -> bool:
        """Whether the row is a query and a document, and has no other column."""
        return self._values.keys() == {"query_id", "doc_id"} and not self._n_others

    def relevant(self) -> Pair:
        """The query and the document of a judgement without a grade, with 1."""
        if not self.is_pair:
            raise InputError(
                f"{self._where}: a judgement must be a query and a document alone, as the first one, or all must have a grade"
            )
        return self._query, self._id(self._values["doc_id"]), 1.0

    def candidates(self) -> list[Pair]:
        """The query and a document, or those of a list, with the score that one has, or 0. A grade
        is no score: the order of a pool must not tell it.
        """
        self._ask("query_id", "doc_id")
        score = self._number(self._values.get("score", 0.0))
        docs = _as_list(self._values["doc_id"])
        return [(self._query, self._id(doc), score) for doc in docs]

    def negatives(self, systems: Sequence[str] | None) -> tuple[str, list[Pair]]:
        """The pairs of a query and a document that may be a negative of it, and what their values are:
        ``score``; ``distance``, with the other sign, so that larger ones are harder, too; or ``order``,
        where they have none and the hardest comes first.

        Args:
            systems: whose documents these are, where the row tells those of several; None: of all.
        """
        values = self._values
        if "doc_id" in values:
            self._ask("query_id")
            doc = self._id(values["doc_id"])
            if "distance" in values:
                return "distance", [(self._query, doc, -self._number(values["distance"]))]
            if "score" in values:
                return "score", [(self._query, doc, self._number(values["score"]))]
            return "order", [(self._query, doc, math.nan)]
        self._ask("negative")
        docs = values["negative"]
        if self.systems:
            chosen = docs if systems is None else [name for name in systems if name in docs]
            docs = list(chain.from_iterable(_as_list(docs[name]) for name in chosen))
        query = self._query
        ids = dict.fromkeys(
            self._doc(doc, "negative") for doc in _as_list(docs)
        )  # systems find the same ones
        return "order", [(query, doc_id, math.nan) for doc_id in ids]

    def has_grade_from(self, level: float | None) -> bool:
        """Whether the row is of a document that its own grade calls relevant: one of at least
        ``level``, or above 0 without one.
        """
        if "grade" not in self._values:
            return False
        grade = trec.grade_of(str(self._values["grade"]), self._where)
        return grade > 0 if level is None else grade >= level

    @property
    def systems(self) -> list[str]:
        """The names of the systems that have found the negatives, where the row tells them apart."""
        docs = self._values.get("negative")
        if not isinstance(docs, dict) or "text" in docs:
            return []
        return list(docs)

    @property
    def _query(self) -> str:
        if "query_id" in self._values:
            return self._id(self._values["query_id"])
        self._ask("query")
        return id_of("q", text_of(self._values["query"], "query", self._where).text)

    def _doc(self, value: Any, side: str) -> str:
        """The id of a positive or a negative: in a row with the text of the query it is a text, and
        has the id that a collection of such rows gives it. A number is an id.
        """
        if "query" not in self._values or isinstance(value, int):
            return self._id(value)
        text = text_of(value, side, self._where)
        return text.id or id_of("d", text.text)

    def _id(self, value: object) -> str:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not (is_number or isinstance(value, str)):
            raise InputError(
                f"{self._where}: an id must be a text or a whole number, got {value!r:.60}"
            )
        return str(value)

    def _number(self, value: object) -> float:
        if not is_score(value):
            raise InputError(
                f"{self._where}: a score must be a finite number (float32), got {value!r:.60}"
            )
        return float(value)  # type: ignore[arg-type]

    def _ask(self, *roles: str) -> None:
        """Raise an InputError for a role that no column has."""
        for role in roles:
            if role not in self._values:
                raise InputError(
                    f"{self._where}: a row must have {' and '.join(roles)}, got no column called {' or '.join(ROLES[role])}"
                )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
