"""Texts with tabs between: how the lines of such a file are read, or why it is refused.

Nothing in ``query<TAB>positive<TAB>negative`` tells a text from a label, a rank or an id. So a file is
counted once (:mod:`ltr.data.counted_columns`), and what its columns hold decides.
"""

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ltr.data.column_roles import labels_are_classes
from ltr.data.columns import LABELS, TEXTS, role_of
from ltr.data.counted_columns import MOST, Column, CountedColumns, columns_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

# Words that judge, and are no texts of their own.
LABEL_WORDS = {
    *("relevant", "irrelevant", "not relevant", "non relevant", "highly relevant", "related"),
    *("partially relevant", "perfectly relevant", "unrelated", "match", "no match", "partial"),
    *("true", "false", "yes", "no", "y", "n", "t", "f", "positive", "negative", "neutral"),
    *("pos", "neg", "good", "bad", "fair", "excellent", "perfect", "correct", "incorrect"),
    *("entailment", "contradiction", "duplicate", "not duplicate", "same", "different"),
    *("exact", "substitute", "complement", "e", "s", "c", "i", "ja", "nein", "wahr", "falsch"),
    *("richtig", "nicht relevant", "oui", "non", "vrai", "faux", "pertinent", "non pertinent"),
    *("sí", "si", "verdadero", "falso", "relevante", "no relevante", "irrelevante", "vero"),
    *("na", "n/a", "none", "null", "unknown", "not sure", "?"),
    *("是", "否", "相关", "不相关", "正确", "错误", "はい", "いいえ", "예", "아니오", "да", "нет"),
}

SHARE_OF_NUMBERS_TOLD = 0.05  # of the lines of a negative, where no positive is a number
MANY_LINES = 20  # from which a column that looks wrong is refused; with fewer it is said
FEW_VALUES = 10  # different values of a column that is refused


class LineLayout(NamedTuple):
    """How the lines of a file of texts are read: as a query, a positive and negatives, or as labelled
    pairs of a query, a document and a number.
    """

    line_of_names: int  # its number; 0 where no line has the names of the columns
    has_labels: bool

    @property
    def columns(self) -> str:
        """What the columns are read as, in one line."""
        columns = "query, positive, and negatives where there are more"
        if self.has_labels:
            columns = "query, document, label"
        names = f"; line {self.line_of_names} has their names" if self.line_of_names else ""
        return f"{columns}{names}"


def layout_of(file: Path, digest: str | None = None) -> LineLayout:
    """How a file of triples, pairs or labelled pairs is read: as the names in its first line say, else
    as its columns show. What is not plain gets a warning where there are few lines.

    Raises:
        InputError: as :func:`columns_of`; for names that say something else; for a column that
            holds no texts, with both ways to go on.
    """
    counted = columns_of(file, "query<TAB>positive[<TAB>negative…]", digest)
    if counted.names:
        layout = _layout_of_names(file, counted)
    elif _are_labelled_pairs(counted):
        layout = LineLayout(0, has_labels=True)
        log.warning(
            "%s: column 3 holds 0 and 1 alone: each line is read as a query, a document and its label, as query<TAB>document<TAB>label in the first line says it without a warning",
            file,
        )
    else:
        layout = LineLayout(0, has_labels=False)
        _refuse_wrong_columns(file, counted)
    if counted.others and not layout.has_labels:
        log.warning(
            "%s:%d: %d of %d lines have another number of columns than most, which have %d, as this one with %d; each column is read as a text of its own, so look for tabs and line ends within the texts",
            file,
            counted.first_other,
            counted.others,
            counted.lines,
            len(counted.columns),
            counted.first_others,
        )
    return layout


def _shown(values: Sequence[str]) -> str:
    return repr("\t".join(values)[:60])


def _layout_of_names(file: Path, counted: CountedColumns) -> LineLayout:
    query, document, *others = map(role_of, counted.names)
    are_texts = query in TEXTS and document in TEXTS
    if are_texts and len(others) == 1 and others[0] in (*LABELS, "class"):
        if labels_are_classes(counted.names):
            raise InputError(
                f"{file}:{counted.first}: a label must be a grade, 0 where the document is not relevant, got classes, {_shown(counted.names)}; write query<TAB>document<TAB>label with grades, or query<TAB>positive<TAB>negative"
            )
        return LineLayout(counted.first, has_labels=True)
    is_positive = are_texts or (query in TEXTS and document == "positive")
    if is_positive and {*others} <= {"negative"}:
        if len(counted.columns) not in (0, len(counted.names)):
            raise InputError(
                f"{file}:{counted.first}: each column must have a name, got {len(counted.names)} names, and most lines have {len(counted.columns)} columns"
            )
        return LineLayout(counted.first, has_labels=False)
    raise InputError(
        f"{file}:{counted.first}: columns must be called query<TAB>positive[<TAB>negative…], or query<TAB>document<TAB>label where the last is a number, got {_shown(counted.names)}; keep such columns, or, where these are texts, put the line after another one"
    )


def _are_labelled_pairs(counted: CountedColumns) -> bool:
    """Whether it is plain without names: two columns of texts, and one of 0 and 1 alone."""
    if len(counted.columns) != 3:
        return False
    query, document, label = counted.columns
    if label.values is None or any(not re.fullmatch(r"[01](\.0*)?", v) for v in label.values):
        return False
    no_texts = max(counted.share(column.numbers + column.codes) for column in (query, document))
    return no_texts <= 1 - MOST


def _refuse_wrong_columns(file: Path, counted: CountedColumns) -> None:
    """Refuse a column that holds something else than texts. A rule that is not sure only warns below
    :data:`MANY_LINES` lines.
    """
    wrong = _wrong_column(counted)
    if wrong is None:
        return
    n_columns = len(counted.columns)
    texts = "<TAB>".join(["query", "positive", *["negative"] * (n_columns - 2)])
    ways = "where it is no text, remove it, or write a data folder with ids and grades"
    if wrong.number == 3 and n_columns == 3:
        ways = "where these are labels, write numbers (0: not relevant) and query<TAB>document<TAB>label as the first line"
    text = f"{file}:{counted.first}: every column must hold texts, query<TAB>positive[<TAB>negative…], got {wrong.what} in column {wrong.number}; {ways}; where these are texts, write {texts} as the first line"
    if wrong.is_refused:
        raise InputError(text)
    log.warning("%s; it is read as texts", text)


class WrongColumn(NamedTuple):
    """A column that holds something else than texts.

    Attributes:
        number: of the column, from 1.
        what: it holds.
        is_refused: whether the file is refused for it, as what is plain, or holds in many lines;
            else it is said, and the column is read as texts.
    """

    number: int
    what: str
    is_refused: bool


def _wrong_column(counted: CountedColumns) -> WrongColumn | None:
    """The first column that a rule finds. Negatives and positive are texts of one kind: one that
    differs from the others is no text.
    """
    if not counted.columns:
        return None
    rules = PLAIN_RULES
    if counted.n_of_most >= 2:
        rules += RULES_OF_LINES
    for rule in rules:
        wrong = rule(counted)
        if wrong is not None:
            return wrong
    return None


def _label_for_query(counted: CountedColumns) -> WrongColumn | None:
    """Numbers, or words that judge, in the place of the query: label<TAB>query<TAB>document."""
    query, *documents = counted.columns
    if counted.holds_numbers(query):
        return WrongColumn(1, _told("numbers", query), True)
    if _are_label_words(query) and not any(map(_are_label_words, documents)):
        return WrongColumn(1, _told("words that judge", query), True)
    return None


def _label_for_document(counted: CountedColumns) -> WrongColumn | None:
    """The same in one of several documents alone: query<TAB>document<TAB>label."""
    _, *documents = counted.columns
    for number, column in enumerate(documents, start=2):
        peers = [other for other in documents if other is not column]
        if counted.holds_numbers(column):
            if any(counted.share(peer.numbers) <= 0.5 for peer in peers):
                return WrongColumn(number, _told("numbers", column), True)
        elif _are_label_words(column) and not all(map(_are_label_words, peers)):
            return WrongColumn(number, _told("words that judge", column), True)
    return None


def _ids_for_query(counted: CountedColumns) -> WrongColumn | None:
    """Ids in the place of the query, beside texts (q17<TAB>a text) or beside ids alone."""
    query, *documents = counted.columns
    if counted.share(query.codes) < MOST:
        return None
    has_texts = any(map(counted.has_texts, documents))
    are_all_ids = all(counted.share(other.codes + other.numbers) >= MOST for other in documents)
    return WrongColumn(1, "ids", _are_many(counted)) if has_texts or are_all_ids else None


def _ids_for_document(counted: CountedColumns) -> WrongColumn | None:
    """Ids in the place of a document beside texts (query<TAB>d17); or single words in that of a
    negative, where the positive is a text (query<TAB>document<TAB>web).
    """
    query, *documents = counted.columns
    has_positive_texts = counted.has_texts(documents[0])
    for number, column in enumerate(documents, start=2):
        peers = [other for other in documents if other is not column] or [query]
        are_ids = counted.share(column.codes) >= MOST
        if are_ids and any(map(counted.has_texts, peers)):
            return WrongColumn(number, "ids", _are_many(counted))
        if number > 2 and has_positive_texts and counted.share(column.single_words) >= MOST:
            return WrongColumn(number, _told("single words", column), _are_many(counted))
    return None


def _few_values(counted: CountedColumns) -> WrongColumn | None:
    """A few values in many lines, where another column has many, as of a category. A query may be
    repeated, if it is a text, and so may a positive, beside different negatives.
    """
    query, *documents = counted.columns
    n_lines = counted.n_of_most
    for number, column in enumerate(counted.columns, start=1):
        may_repeat = number == 2 and len(documents) > 1
        if number == 1:
            may_repeat = query.single_words < n_lines
        if column.values is None or may_repeat:
            continue
        beside = query if number == 2 else documents[0]
        is_repeated = n_lines >= 4 and 2 * column.distinct <= n_lines
        if is_repeated and beside.distinct >= 2 * column.distinct:
            are_few = column.distinct <= min(FEW_VALUES, n_lines // 10)
            told = _told(_told_count(column.distinct), column)
            return WrongColumn(number, told, _are_many(counted) and are_few)
    return None


def _numbers_among_negatives(counted: CountedColumns) -> WrongColumn | None:
    """Numbers in some lines of a negative: labelled pairs among triples, as where two files were
    joined.
    """
    _, *documents = counted.columns
    for number, column in enumerate(documents[1:], start=3):
        if counted.share(column.numbers) >= SHARE_OF_NUMBERS_TOLD and not documents[0].numbers:
            told = f"numbers in {column.numbers} of {counted.n_of_most} lines"
            return WrongColumn(number, told, False)
    return None


Rule = Callable[[CountedColumns], WrongColumn | None]
# In this order. The first tell what is plain; the others look at two lines or more.
PLAIN_RULES: tuple[Rule, ...] = (_label_for_query, _label_for_document)
RULES_OF_LINES: tuple[Rule, ...] = (
    _ids_for_query,
    _ids_for_document,
    _few_values,
    _numbers_among_negatives,
)


def _are_many(counted: CountedColumns) -> bool:
    """Whether there are lines enough to refuse what looks wrong in them."""
    return counted.n_of_most >= MANY_LINES


def _told_count(distinct: int) -> str:
    return "one value" if distinct == 1 else f"{distinct} different values"


def _told(what: str, column: Column) -> str:
    """What a column holds, with a few of its values."""
    if column.values is None:
        return what
    return f"{what} ({', '.join(column.values[:3])}{', …' if len(column.values) > 3 else ''})"


def _are_label_words(column: Column) -> bool:
    if column.values is None:
        return False
    words = {" ".join(re.split(r"[\s_-]+", value.lower())) for value in column.values}
    return words <= LABEL_WORDS
