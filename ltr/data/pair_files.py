"""Files of pairs: rows that name queries and documents by their ids, with scores where there are some.

What a row says follows from the names of its columns alone, see :func:`ltr.data.columns.pair_columns`.
Text whose first line holds no names has them by the number of its columns.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ltr.data import trec
from ltr.data.column_roles import titles_of
from ltr.data.columns import (
    NAMES,
    Label,
    Role,
    in_small_letters,
    is_index,
    is_title,
    pair_columns,
    role_of,
)
from ltr.data.forms import COLUMNS_OF_RUN, Form, lines_of_columns
from ltr.data.lines import Line
from ltr.data.named_rows import Row, read_rows, values_by_query
from ltr.data.text_rows import as_list, text_of
from ltr.data.texts import id_of, with_title
from ltr.errors import InputError

# The roles of the columns of text without names, by their number.
ROLES_OF_COLUMNS = {
    2: ("query_id", "document_id"),
    3: ("query_id", "document_id", "score"),
    4: ("query_id", "document_id", "query", "text"),  # MS MARCO's top1000
    5: ("positive_scores", "negative_scores", "query_id", "positive", "negative"),
}
TRIPLE = ("query_id", "positive", "negative")  # three columns, too
SIDES: tuple[tuple[Role, Role], ...] = (
    ("positive", "positive_scores"),
    ("negative", "negative_scores"),
)

# The same of candidates and of judgements, in words.
CANDIDATES_IN_WORDS = {
    2: "query id, document id",
    3: "query id, document id, score (or rank, where it rises)",
    4: "query id, document id, and the texts of both, which are not read",
    COLUMNS_OF_RUN: "query id, Q0, document id, rank, score, tag",
}
JUDGEMENTS_IN_WORDS = {
    2: "query id, document id",
    3: "query id, document id, grade",
    4: "query id, 0, document id, grade",
}

Pair = tuple[str, str, float]  # a query and a document by their ids, and a value


def pair_rows(file: Path, is_triples: bool = False) -> Iterator[tuple[int, "PairRow"]]:
    """The rows of a file with their numbers.

    Args:
        file: JSON lines, CSV, Parquet or Arrow; one object ``{query: {document: score}}``; or text, whose first line has the names of its
            columns, or else 2 to 5 columns as in :data:`ROLES_OF_COLUMNS`, or those of a run.
        is_triples: whether three columns without names are a query, a positive and a negative.

    Raises:
        InputError: ``file:line`` of a line with another number of columns than the first.
    """
    form = Form(file)
    if form.is_by_query:
        for number, query, scores in values_by_query(file):
            for doc, score in scores:
                values = {"query_id": query, "document_id": doc, "score": score}
                yield number, PairRow(f"{file}:{number}", values)
        return
    if form.has_rows or form.names:
        rows = _named_lines(file, form.names) if form.names else read_rows(file)
        for number, row in rows:
            values, others = _by_role(row)
            yield number, PairRow(f"{file}:{number}", values, others)
        return
    n_columns = form.n_columns
    if n_columns >= COLUMNS_OF_RUN:
        for number, (query, doc, score) in trec.read_run(file):
            values = {"query_id": query, "document_id": doc, "score": score}
            yield number, PairRow(f"{file}:{number}", values)
        return
    roles = TRIPLE if is_triples and n_columns == 3 else ROLES_OF_COLUMNS.get(n_columns)
    expected = f"{n_columns}, as the first line has"
    if roles is None:
        expected = "2 (query, doc), 3 (query, doc, score), 6 (query, Q0, doc, rank, score, tag), or names in the first line"
    for place, (number, parts) in enumerate(lines_of_columns(file)):
        if roles is None or len(parts) != n_columns:
            raise InputError(
                f"{file}:{number}: expected columns {expected}, got {len(parts)}: {' '.join(parts)[:80]!r}"
            )
        if place == 0 and n_columns == 4 and trec.is_score(parts[3]):
            raise InputError(
                f"{file}:{number}: four columns are MS MARCO's top1000 (query, doc, and the texts of both), got a number in column 4; write 3 columns (query, doc, score, without column 2 of judgements), 6 as TREC's runs have (query, Q0, doc, rank, score, tag), or names in the first line"
            )
        yield number, PairRow(f"{file}:{number}", dict(zip(roles, parts, strict=True)))


def columns_line(file: Path, label: Label) -> str:
    """What the columns of a file are read as, in one line.

    Args:
        file: of judgements or of candidates.
        label: what the value of a pair is, ``grade`` or ``score``.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     file.write("qid,lang,pid,label\\n1,en,7,2\\n") and file.flush()
    ...     columns_line(Path(file.name), "grade")
    'query id: qid; document id: pid; grade: label; not read: lang'
    """
    form = Form(file)
    if form.is_by_query:
        return f"query id: {{document id: {label}}}"
    names = form.names
    if form.has_rows:
        names = next((tuple(row) for _, row in read_rows(file)), ())
    if not names:
        in_words = JUDGEMENTS_IN_WORDS if label == "grade" else CANDIDATES_IN_WORDS
        # More are a comment; of fewer the reader says what is wrong.
        return in_words.get(min(form.n_columns, max(in_words)), f"{form.n_columns}")
    by_role = pair_columns(names)
    read = {role: by_role[role][0] for role in ("query_id", "document_id") if role in by_role}
    labels = by_role.get(label, [])
    if label == "grade":
        labels = labels or by_role.get("score", [])
    else:
        labels = labels or _order_columns(names)
    parts = [f"{role.replace('_', ' ')}: {name}" for role, name in read.items()]
    parts += [f"{label}: {name}" for name in labels[:1]]
    left = [name for name in names if name not in {*read.values(), *labels[:1]}]
    if left:
        parts.append(f"not read: {', '.join(left)[:200]}")
    return "; ".join(parts)


def _order_columns(names: Iterable[str]) -> list[str]:
    """The columns that may order documents, of those of no role: scores that are called otherwise, as
    ``bm25_score``, and then ranks.
    """
    names = list(names)
    ranks = [name for name in names if in_small_letters(name) == "rank"]
    return [name for name in names if role_of(name) == "score"] + ranks


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
    if are_graded and Form(file).is_plain:
        yield from trec.read_qrels(file)
        return
    for number, row in pair_rows(file):
        yield number, row.graded() if are_graded else row.relevant()


def has_grades(file: Path) -> bool:
    """Whether the judgements of a file have grades. They have none where the first one is a query and
    a document and nothing else, as in T2Ranking's ``qid<TAB>pid`` and NanoBEIR: all that are listed
    are relevant.
    """
    form = Form(file)
    if form.has_rows or form.names:
        return not any(row.is_pair for _, row in islice(pair_rows(file), 1))
    return form.n_columns != 2


def candidate_lines(file: Path) -> Iterator[Line]:
    """The pairs of a file of candidates, with their scores, or 0 where there are none."""
    for number, row in pair_rows(file):
        for pair in row.candidates():
            yield number, pair


def ranked_lines(file: Path) -> Iterator[Line]:
    """The lines of a ranking: of a run, or of pairs with scores or ranks, in any form."""
    if Form(file).is_run:
        yield from trec.read_run(file)
        return
    column: str | None = None
    for number, row in pair_rows(file):
        column = column or row.order_column
        # Another column must not take the place of a score that is missing in this row.
        if row.order_column != column:
            raise InputError(
                f"{file}:{number}: every row of a ranking must have a number in column {column}, as the first one has; leave documents without one out"
            )
        for pair in row.ranked():
            yield number, pair


def _named_lines(file: Path, names: Sequence[str]) -> Iterator[Row]:
    """The lines of a text behind that of the names of its columns."""
    listed = ", ".join(names)[:200]
    if len(set(names)) < len(names):
        raise InputError(f"{file}: each column must have a name of its own, got {listed}")
    for number, parts in islice(lines_of_columns(file), 1, None):
        if len(parts) != len(names):
            raise InputError(
                f"{file}:{number}: expected {len(names)} columns ({listed}), got {len(parts)}: {' '.join(parts)[:60]!r}"
            )
        yield number, dict(zip(names, parts, strict=True))


def _by_role(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a row by role, and those of the columns that are not read, by name. What has no
    value is of no role. Titles beside the text of a query are part of the texts they belong to.
    """
    values: dict[str, Any] = {}
    others = dict(row)
    columns = pair_columns(tuple(row))
    titles = titles_of(tuple(row)) if "query" in columns else {}
    for role, names in columns.items():
        for name in names:
            value = row[name]
            if value is None:
                continue
            if role not in values or role in ("positive", "negative"):
                del others[name]
            if name in titles:
                value = _with_titles(row[titles[name]], value)
                others.pop(titles[name], None)
            if role not in values:
                values[role] = value
            elif role in ("positive", "negative"):
                values[role] = [*as_list(values[role]), *as_list(value)]
    return values, others


def _with_titles(titles: Any, texts: Any) -> Any:
    """Texts with their titles before them, as a collection of such rows has them; what is no text, or
    has none of as many titles, stays as it is.
    """
    titles = as_list(titles)
    if isinstance(texts, dict) or len(titles) != len(as_list(texts)):
        return texts
    titled = []
    for title, text in zip(titles, as_list(texts), strict=True):
        is_titled = isinstance(text, str) and isinstance(title, str) and title.strip()
        titled.append(with_title(title, text) if is_titled else text)
    return titled


class PairRow:
    """One row of a file.

    Args:
        where: its place, for errors.
        values: by role.
        others: the values of the columns that have no role, or no value, by name.
    """

    def __init__(
        self, where: str, values: dict[str, Any], others: Mapping[str, Any] | None = None
    ) -> None:
        self._where = where
        self._values = values
        self._others = others or {}

    def scored(self) -> list[Pair]:
        """The pairs of a query and a document with their scores; an InputError if there is none."""
        if "document_id" in self._values:
            role = "score" if "score" in self._values else "grade"
            self._ask("query_id", *(() if role in self._values else ("score",)))
            score = trec.score_in(self._values[role], self._where)
            return [(self._query, self._id("document_id"), score)]
        pairs = []
        for side, role_of_scores in SIDES:
            if not {side, f"{side}_id"} & self._values.keys():
                continue
            documents = self._documents(side)
            if role_of_scores in self._values:
                scores = as_list(self._values[role_of_scores])
            else:
                scores = [own_score for _, own_score in documents]
                if None in scores:
                    self._ask(role_of_scores)
            if len(documents) != len(scores):
                raise InputError(
                    f"{self._where}: there must be as many scores as {side} documents, got {len(scores)} and {len(documents)}"
                )
            query = self._query
            for (doc, _), score in zip(documents, scores, strict=True):
                pairs.append((query, doc, trec.score_in(score, self._where)))
        if not pairs:
            self._ask("document_id", "score")
        return pairs

    def graded(self) -> Pair:
        """The query, the document and the grade of a judgement."""
        role: Role = "grade" if "grade" in self._values else "score"
        self._ask("query_id", "document_id")
        if role not in self._values:
            names = f"{NAMES['grade']} {NAMES['score']}".split()
            raise InputError(
                f"{self._where}: a row must have query_id and doc_id and a grade, got no column called {' or '.join(names)}"
            )
        grade = trec.grade_in(self._values[role], self._where)
        return self._query, self._id("document_id"), grade

    @property
    def label_role(self) -> Role | None:
        """What the label of a document is called: a grade, a score, or None of either."""
        names: tuple[Role, ...] = ("grade", "score")
        return next((role for role in names if role in self._values), None)

    def check_one_label(self) -> None:
        """Raise an InputError for a row with several columns that may be its label."""
        held: list[str] = [role for role in ("grade", "score") if role in self._values]
        held += [name for name in self._others if role_of(name) in ("grade", "score")]
        if len(held) > 1:
            raise InputError(
                f"{self._where}: a row must have one label, got columns of {' and '.join(held)}; leave out all but the one that counts"
            )

    @property
    def is_pair(self) -> bool:
        """Whether the row is a query and a document, and has no other column but an index."""
        is_alone = all(map(is_index, self._others))
        return is_alone and self._values.keys() == {"query_id", "document_id"}

    def relevant(self) -> Pair:
        """The query and the document of a judgement without a grade, with 1."""
        if not self.is_pair:
            raise InputError(
                f"{self._where}: a judgement must be a query and a document alone, as the first one, or all must have a grade"
            )
        return self._query, self._id("document_id"), 1.0

    def candidates(self) -> list[Pair]:
        """The query and a document, or those of a list, with the score that each has, or 0: that of
        the one column that is called so, as ``bm25_score``, or else the rank with the other sign. A
        grade is no score: the order of a pool must not tell it.
        """
        self._ask("query_id", "document_id")
        docs = as_list(self._values["document_id"])
        scores = self._scores_of_candidates()
        if scores is None:
            scores = 0.0
        if not isinstance(scores, list):
            scores = [scores] * len(docs)
        if len(scores) != len(docs):
            raise InputError(
                f"{self._where}: there must be as many scores as documents, got {len(scores)} and {len(docs)}"
            )
        return [
            (self._query, trec.id_in(doc, self._where), trec.score_in(score, self._where))
            for doc, score in zip(docs, scores, strict=True)
        ]

    @property
    def order_column(self) -> str | None:
        """The column that orders the documents of a ranking: that of the scores, or else of the ranks."""
        if "score" in self._values:
            return "score"
        return next(iter(self._others_that_order), None)

    @property
    def _others_that_order(self) -> list[str]:
        return _order_columns(name for name, value in self._others.items() if value is not None)

    def ranked(self) -> list[Pair]:
        """The same of a ranking, which needs scores or ranks. Queries and documents may also be named
        by columns of texts, as ``query`` and ``document``, and are told as these have them.
        """
        if self.order_column is None:
            self._ask("score")
        values = self._values
        if "query_id" not in values and "query" in values:
            values = values | {"query_id": values["query"]}
        names = [name for name in self._others if role_of(name) == "text"]
        texts = [name for name in names if not is_title(name)]
        if "document_id" not in values and len(texts) == 1:
            text = self._others[texts[0]]
            titles = [name for name in names if is_title(name)]
            if len(titles) == 1:
                text = _with_titles(self._others[titles[0]], text)
            values = values | {"document_id": text}
        row = PairRow(self._where, values, self._others)
        n_docs = len(as_list(values.get("document_id")))
        if n_docs > 1 and not isinstance(row._scores_of_candidates(), list):
            raise InputError(
                f"{self._where}: there must be as many scores as documents, got 1 and {n_docs}"
            )
        return row.candidates()

    def _scores_of_candidates(self) -> Any:
        """A score, or a list of them; None where there are none."""
        if "score" in self._values:
            return self._values["score"]
        columns = self._others_that_order
        named = [name for name in columns if role_of(name) == "score"]
        if len(named) > 1:
            raise InputError(
                f"{self._where}: one column must be the score of a candidate, got {' and '.join(named)}; call one of them score"
            )
        if named or not columns:
            return self._others[named[0]] if named else None
        value = self._others[columns[0]]
        ranks = [-trec.score_in(rank, self._where) for rank in as_list(value)]
        return ranks if isinstance(value, list) else ranks[0]

    def negatives(self, systems: Sequence[str] | None) -> tuple[str, list[Pair]]:
        """The pairs of a query and a document that may be a negative of it, and what their values are:
        ``score``; ``distance``, with the other sign, so that larger ones are harder, too; or ``order``,
        where they have none and the hardest comes first.

        Args:
            systems: whose documents these are, where the row tells those of several; None: of all.
        """
        values = self._values
        if "document_id" in values:
            self._ask("query_id")
            doc = self._id("document_id")
            if "distance" in values:
                return "distance", [
                    (self._query, doc, -trec.score_in(values["distance"], self._where))
                ]
            if "score" in values:
                return "score", [(self._query, doc, trec.score_in(values["score"], self._where))]
            return "order", [(self._query, doc, math.nan)]
        if "negative_id" not in values:
            self._ask("negative")
        documents = dict(self._documents("negative", systems))  # systems find the same ones
        return "order", [(self._query, doc, math.nan) for doc in documents]

    def has_grade_from(self, level: float | None) -> bool:
        """Whether the row is of a document that its own grade calls relevant: one of at least
        ``level``, or above 0 without one.
        """
        if "grade" not in self._values:
            return False
        grade = trec.grade_in(self._values["grade"], self._where)
        return grade > 0 if level is None else grade >= level

    @property
    def systems(self) -> list[str]:
        """The names of the systems that have found the negatives, where the row tells them apart."""
        docs = self._docs("negative")
        if not isinstance(docs, dict) or "text" in docs:
            return []
        return list(docs)

    @property
    def _query(self) -> str:
        if "query_id" in self._values:
            return self._id("query_id")
        self._ask("query")
        return id_of("q", text_of(self._values["query"], "query", self._where).text)

    def _docs(self, side: str) -> Any:
        """What a row has of the positives or the negatives; texts come before ids."""
        return self._values.get(side, self._values.get(f"{side}_id", []))

    def _documents(
        self, side: str, systems: Sequence[str] | None = None
    ) -> list[tuple[str, float | None]]:
        """The ids of the positives or the negatives, each with the score that an object has. In a row
        with the text of the query they are texts, and have the ids that a collection of such rows
        gives them; there, too, a number is an id.
        """
        docs = self._docs(side)
        if side == "negative" and self.systems:
            chosen = docs if systems is None else [name for name in systems if name in docs]
            docs = list(chain.from_iterable(as_list(docs[name]) for name in chosen))
        are_texts = side in self._values and "query" in self._values
        documents: list[tuple[str, float | None]] = []
        for value in as_list(docs):
            if isinstance(value, dict) or (are_texts and not isinstance(value, int)):
                text = text_of(value, side, self._where)
                documents.append((text.id or id_of("d", text.text), text.score))
            else:
                documents.append((trec.id_in(value, self._where), None))
        return documents

    def _id(self, role: str) -> str:
        return trec.id_in(self._values[role], self._where)

    def _ask(self, *roles: Role) -> None:
        """Raise an InputError for a role that no column has."""
        for role in roles:
            if role not in self._values:
                wanted = " and ".join(roles).replace("document_id", "doc_id")
                raise InputError(
                    f"{self._where}: a row must have {wanted}, got no column called {' or '.join(NAMES[role].split())}"
                )
