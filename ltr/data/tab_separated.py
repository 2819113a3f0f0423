"""Texts with tabs between: what the columns of such a file hold, looked at before they are believed.

Nothing in ``query<TAB>positive<TAB>negative`` tells a text from a label, a rank or an id. So a file is
counted once, and what its columns hold decides how it is read, or that it is refused.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ltr.data.cache_folder import cached, origin_of
from ltr.data.files import digest_of, numbered_lines
from ltr.entries import parse_json
from ltr.errors import InputError

log = logging.getLogger(__name__)

Kind = Literal["text", "positive", "negative", "label", "other"]

# What columns are called, in small letters, by the words of their names.
KIND_OF_NAME: dict[str, Kind] = {}
NAMES: dict[Kind, str] = {
    "other": """
        id idx index qid pid did docid rank language lang locale source split domain url
        nummer sprache quelle rang langue rang idioma fuente 编号 语言 来源
        """,
    "label": """
        label class category intent score relevance relevant grade gold rating stars similarity judgement
        judgment target duplicate entailment bewertung etikett klasse wertung relevanz étiquette etiquette
        classe note pertinence etiqueta clase puntuación relevancia etichetta punteggio 标签 分数 相关性 类别
        ラベル 레이블 метка оценка
        """,
    "negative": """
        negative neg negativ negatif négatif negativo falsch faux falso incorrect irrelevant 负例 負例
        """,
    "positive": "positive pos positiv positif positivo richtig correct 正例",
    "text": """
        query question anchor document doc passage text sentence title answer response premise hypothesis
        context paragraph content body corpus keyword search product prompt frage anfrage suchanfrage dokument
        antwort satz titel réponse reponse requête requete phrase texte titre pregunta consulta documento
        respuesta texto frase título domanda risposta testo vraag antwoord zoekvraag pergunta resposta
        问题 問題 查询 答案 回答 文档 文本 段落 句子 質問 文書 질문 답변 문서 вопрос запрос ответ документ текст
        """,
}
for _kind, _names in NAMES.items():
    KIND_OF_NAME |= dict.fromkeys(_names.split(), _kind)
SMALL_WORDS = {"the", "hard", "of"}
PARTS_OF_NAME = re.compile(r"[^\W\d_]+")

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
NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+([.,]0*)?")
CODE = re.compile(r"[A-Za-z].*[0-9]|[0-9].*[A-Za-z]")
WORD = re.compile(
    r"[!-~]+"
)  # of ASCII, as ids and codes are: other scripts write texts without spaces

MOST = 0.9  # of the lines: the share from which a column counts as one of numbers
SOME = 0.05  # of the lines: the share of numbers that is told of where no positive is a number
MANY_LINES = 20  # from which a column that looks wrong is refused; with fewer it is said
FEW_VALUES = 10  # different values of a column that is refused
MOST_VALUES = 100  # different values of one that is told of
DISTINCT = 2 * MOST_VALUES  # different values of a column that are counted
LETTERS = 30  # of a value that may be a label


class Column(NamedTuple):
    """What one column holds, over the lines that have as many columns as most.

    Attributes:
        numbers: lines in which it is a number.
        words: lines in which it is one word of ASCII.
        codes: lines in which it is one such word of letters and digits.
        fractions: lines in which it is a number that is not whole.
        phrases: lines in which it is several words.
        distinct: its different values, at most ``DISTINCT`` of them.
        values: these, where they are few and short.
    """

    numbers: int
    words: int
    codes: int
    fractions: int
    phrases: int
    distinct: int
    values: Sequence[str] | None


class Columns(NamedTuple):
    """What the columns of a file hold.

    Attributes:
        lines: that are not empty, without that of the names.
        first: number of the first line, which may be that of the names.
        names: of the columns, where the first line holds them; empty elsewhere.
        columns: those of the lines that have as many as most.
        others: lines with another number of columns.
        first_other: number of the first of them.
        first_others: columns of that.
        quoted: lines with quotes as spreadsheets write them.
        first_quoted: the first of them, with its number.
    """

    lines: int
    first: int
    names: Sequence[str]
    columns: Sequence[Column]
    others: int
    first_other: int
    first_others: int
    quoted: int
    first_quoted: str

    def share(self, count: int) -> float:
        """What a number of lines is of those with as many columns as most."""
        return count / max(1, self.lines - self.others)

    def holds_numbers(self, column: Column) -> bool:
        """Whether nearly all values of a column are numbers."""
        return self.share(column.numbers) >= MOST


def columns_of(file: Path, layout: str = "") -> Columns:
    """What the columns of a file hold: counted once, and kept in the cache. Quotes of spreadsheets get
    a warning.

    Args:
        file: plain or ``.gz``.
        layout: what a line of texts must be, for errors; empty where who reads it checks the lines.

    Raises:
        InputError: with ``file:line`` for a text between quotes that holds a tab or the end of a line;
            where there is a layout, for a line of one column or with an empty one.
    """

    def build(folder: Path) -> None:
        counted = _counted(file, _checked_lines(file, layout))
        (folder / "columns.json").write_text(json.dumps(counted._asdict()), encoding="utf-8")

    def open_counted(folder: Path) -> Columns:
        entries: dict[str, Any] = parse_json((folder / "columns.json").read_bytes())
        entries["columns"] = [Column(*values) for values in entries["columns"]]
        return Columns(**entries)

    content = f"columns-2 {layout} {digest_of(file)}"
    columns = cached("columns", content, build, open_counted, origin_of(file))
    if columns.quoted:
        log.warning(
            "%s:%s: %d lines hold quotes as spreadsheets write them, which are read as text; save the file without them",
            file,
            columns.first_quoted,
            columns.quoted,
        )
    return columns


def _counted(file: Path, lines: Iterator[tuple[int, list[str]]]) -> Columns:
    beginning = list(islice(lines, 2))
    if not beginning:
        return Columns(0, 1, [], [], 0, 0, 0, 0, "")
    first, first_values = beginning[0]
    counters: dict[int, _Counter] = {}  # by the number of columns
    breaks = _Breaks()
    breaks.add(first, first_values)
    for number, values in chain(beginning[1:], lines):
        counters.setdefault(len(values), _Counter(number)).add(number, values)
        breaks.add(number, values)
    names: list[str] = []
    if _are_names(first_values, beginning[1:], counters):
        names = [value.strip().strip('"')[:60] for value in first_values]
    else:
        counter = counters.setdefault(len(first_values), _Counter(first))
        counter.add(first, first_values)
    most = _Counter(first)
    if counters:
        most = max(counters.values(), key=lambda counter: counter.lines)
    others = [(c.first, count) for count, c in counters.items() if c is not most]
    first_other, first_others = min(others, default=(0, 0))
    n_lines = sum(counter.lines for counter in counters.values())
    quoted = [(c.first_quoted, c.shown_quoted) for c in counters.values() if c.quoted]
    line, shown = min(quoted, default=(0, ""))
    columns = most.columns()
    breaks.refuse(file, len(columns), n_lines)
    return Columns(
        lines=n_lines,
        first=first,
        names=names,
        columns=columns,
        others=n_lines - most.lines,
        first_other=first_other,
        first_others=first_others,
        quoted=sum(counter.quoted for counter in counters.values()),
        first_quoted=f"{line}: {shown}",
    )


class _Breaks:
    """Tabs and line ends within quotes. A quote may also begin in one text and end in another one, as
    in sentences of a novel; so a break is one where the columns are as many as elsewhere without it,
    or where every other line has one.
    """

    def __init__(self) -> None:
        # By what it is, the columns of a line with it, and those without it: how many, and where.
        self._counts: Counter[tuple[str, int, int]] = Counter()
        self._first: dict[tuple[str, int, int], int] = {}
        self._n_before = 0  # columns of the line before, where it ends within quotes

    def add(self, number: int, values: list[str]) -> None:
        """Look at one line."""
        opened = [place for place, value in enumerate(values) if _opens(value)]
        closed = [place for place, value in enumerate(values) if _closes(value)]
        if self._n_before and closed[:1] == [0]:
            n_joined = self._n_before + len(values) - 1
            self._count("line end", max(self._n_before, len(values)), n_joined, number)
        if opened and closed and opened[0] < closed[-1]:
            self._count("tab", len(values), len(values) - (closed[-1] - opened[0]), number)
        self._n_before = len(values) if opened[-1:] == [len(values) - 1] else 0

    def _count(self, what: str, n_with: int, n_without: int, number: int) -> None:
        key = (what, n_with, n_without)
        self._counts[key] += 1
        self._first.setdefault(key, number)

    def refuse(self, file: Path, n_columns: int, n_lines: int) -> None:
        """Raise an InputError for the first break.

        Args:
            file: for the error.
            n_columns: that most lines have.
            n_lines: of the file.
        """
        for (what, n_with, n_without), count in self._counts.items():
            is_break = n_with != n_columns and n_without == n_columns
            if is_break or 4 * count >= n_lines:
                where = f"{file}:{self._first[what, n_with, n_without]}"
                raise InputError(
                    f"{where}: a text must hold no {what}, got one between quotes; write a space for it"
                )


def _checked_lines(file: Path, layout: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in numbered_lines(file):
        where = f"{file}:{number}"
        values = line.split("\t")
        if layout and len(values) < 2:
            raise InputError(
                f"{where}: expected {layout}, got one column: {line[:60]!r}{separator_hint(line)}"
            )
        for column, value in enumerate(values, start=1):
            if layout and not value.strip():
                raise InputError(f"{where}: column {column} is empty")
        yield number, values


def separator_hint(line: str) -> str:
    """What stands between the columns of a line without a tab, perhaps."""
    if line.lstrip().startswith(("{", "[")):
        return "; JSON is read from corpus.jsonl and queries.jsonl"
    for separator, name in ((";", "semicolons"), ("|", "bars"), (",", "commas")):
        if separator in line:
            return f"; where {name} stand between the columns, write tabs"
    return ""


def _opens(value: str) -> bool:
    """Whether a value begins with a quote that does not end in it."""
    return value.startswith('"') and value.count('"') % 2 == 1


def _closes(value: str) -> bool:
    """Whether a value ends with a quote that did not begin in it."""
    return value.rstrip().endswith('"') and value.count('"') % 2 == 1


class _Counter:
    """Counts what the columns of lines hold that all have the same number of them."""

    def __init__(self, first: int) -> None:
        self.first = first  # number of the first line
        self.lines = 0
        self.quoted = 0
        self.first_quoted = 0
        self.shown_quoted = ""
        self._counts: list[list[int]] = []  # as in Column, of each column
        self._values: list[dict[str, None]] = []  # the first different ones of each

    def add(self, number: int, values: list[str]) -> None:
        """Count one line."""
        if not self._counts:
            self._counts = [[0] * 5 for _ in values]
            self._values = [{} for _ in values]
        self.lines += 1
        self.first = min(self.first, number)
        if _is_of_spreadsheet(values):
            self.quoted += 1
            if self.quoted == 1 or number < self.first_quoted:
                self.first_quoted = number
                self.shown_quoted = repr("\t".join(values)[:60])
        for value, counts, distinct in zip(values, self._counts, self._values, strict=True):
            value = value.strip().strip('"')
            if len(distinct) < DISTINCT:
                distinct[value] = None
            if NUMBER.fullmatch(value):
                counts[0] += 1
                counts[1] += 1
                counts[3] += WHOLE_NUMBER.fullmatch(value) is None
            elif WORD.fullmatch(value):
                counts[1] += 1
                counts[2] += CODE.search(value) is not None
            elif " " in value:
                counts[4] += 1

    def columns(self) -> list[Column]:
        """What the columns hold."""
        columns = []
        for counts, distinct in zip(self._counts, self._values, strict=True):
            is_short = all(len(value) <= LETTERS and len(value.split()) <= 3 for value in distinct)
            values = sorted(distinct) if is_short and len(distinct) <= MOST_VALUES else None
            columns.append(
                Column(
                    numbers=counts[0],
                    words=counts[1],
                    codes=counts[2],
                    fractions=counts[3],
                    phrases=counts[4],
                    distinct=len(distinct),
                    values=values,
                )
            )
        return columns


def kind_of_name(name: str) -> Kind | None:
    """What a column of this name holds; None for a word that names no column.

    >>> kind_of_name("query"), kind_of_name("hard_negative_2"), kind_of_name("is_relevant")
    ('text', 'negative', 'label')
    """
    parts = PARTS_OF_NAME.findall(name.lower())
    if re.fullmatch(r"is_[a-z]+", name.strip().lower()):  # is_relevant, is_correct, is_duplicate
        return "label"
    kinds = {KIND_OF_NAME.get(part) for part in parts if part not in SMALL_WORDS}
    if None in kinds or not kinds:
        return None
    for kind in NAMES:
        if kind in kinds:
            return kind
    return None


def _are_names(
    values: list[str], second: list[tuple[int, list[str]]], counters: dict[int, _Counter]
) -> bool:
    """Whether the first line of a file holds the names of its columns: it has words that columns are
    called by; or it is of a few words where a column of the other lines is one of numbers, or of
    single words where theirs all have several.

    Args:
        values: of the first line.
        second: the second line, if there is one.
        counters: of all lines but the first.
    """
    if len(values) < 2:
        return False
    if all(map(kind_of_name, values)):
        # Where the second one is of such words, too, as "doc1<TAB>document 1" and
        # "doc2<TAB>document 2", both are texts.
        return not second or not all(map(kind_of_name, second[0][1]))
    rest = counters.get(len(values))
    if rest is None or rest.lines < 3:
        return False
    stripped = [value.strip().strip('"') for value in values]
    if any(len(value) > LETTERS or len(value.split()) > 3 for value in stripped):
        return False
    if any(map(NUMBER.fullmatch, stripped)):
        return False
    columns = rest.columns()
    if any(column.numbers >= MOST * rest.lines for column in columns):
        return True
    is_single = all(len(value.split()) == 1 for value in stripped)
    return is_single and all(column.phrases == rest.lines for column in columns)


def _is_quoted(text: str) -> bool:
    """Whether a text stands between quotes."""
    return len(text) > 2 and text.startswith('"') and text.endswith('"')


def _has_doubled_quotes(text: str) -> bool:
    """Whether the quotes within a text that stands between quotes are doubled."""
    inside = text[1:-1]
    return '""' in inside and '"' not in inside.replace('""', "")


def _is_of_spreadsheet(values: list[str]) -> bool:
    """Whether all columns stand between quotes, or one with quotes in it, which are doubled."""
    quoted = [value for value in values if _is_quoted(value)]
    return len(quoted) == len(values) or any(_has_doubled_quotes(text) for text in quoted)


class LineLayout(NamedTuple):
    """How the lines of a file of texts are read: as a query, a positive and negatives, or as labelled
    pairs of a query, a document and a whole number.
    """

    names: int  # number of the line with the names of the columns; 0 where there is none
    has_labels: bool


def layout_of(file: Path) -> LineLayout:
    """How a file of triples, pairs or labelled pairs is read: as the names in its first line say, else
    as its columns show. What is not plain gets a warning where there are few lines.

    Raises:
        InputError: as :func:`columns_of`; for names that say something else; for a column that
            holds no texts, with both ways to go on.
    """
    columns = columns_of(file, "query<TAB>positive[<TAB>negative…]")
    if columns.names:
        layout = _layout_of_names(file, columns)
    elif _are_labelled_pairs(columns):
        layout = LineLayout(0, has_labels=True)
        log.warning(
            "%s: column 3 holds 0 and 1 alone: each line is read as a query, a document and its label, as query<TAB>document<TAB>label in the first line says it without a warning",
            file,
        )
    else:
        layout = LineLayout(0, has_labels=False)
        _refuse_other_columns(file, columns)
    if columns.others and not layout.has_labels:
        log.warning(
            "%s:%d: %d of %d lines have another number of columns than most, which have %d, as this one with %d; each column is read as a text of its own, so look for tabs and line ends within the texts",
            file,
            columns.first_other,
            columns.others,
            columns.lines,
            len(columns.columns),
            columns.first_others,
        )
    return layout


def refuse_names(file: Path, columns: Columns, layout: str) -> None:
    """Raise an InputError where the first line of a file holds the names of columns.

    Args:
        file: for errors.
        columns: of the file.
        layout: what a line must be.
    """
    if columns.names:
        raise InputError(
            f"{file}:{columns.first}: every line must hold texts, got the names of columns, {_shown(columns.names)}; a line is {layout}; remove this one, or, where these are texts, put it after another one"
        )


def warn_of_tabs(file: Path, columns: Columns) -> None:
    """Say how many texts behind an id hold tabs, as those of a file with more columns do."""
    n_most = columns.lines - columns.others
    if len(columns.columns) > 2:
        log.warning(
            "%s: %d of %d lines have %d columns: all that stands behind the id is the text, tabs too",
            file,
            n_most,
            columns.lines,
            len(columns.columns),
        )
    elif columns.others and columns.first_others > 2:
        log.warning(
            "%s:%d: %d of %d lines have more than 2 columns: all that stands behind the id is the text, tabs too",
            file,
            columns.first_other,
            columns.others,
            columns.lines,
        )


def _shown(values: Sequence[str]) -> str:
    return repr("\t".join(values)[:60])


def _layout_of_names(file: Path, columns: Columns) -> LineLayout:
    kinds = [kind_of_name(name) for name in columns.names]
    if kinds == ["text", "text", "label"]:
        return LineLayout(columns.first, has_labels=True)
    negatives = kinds[2:]
    if kinds[0] == "text" and kinds[1] in ("text", "positive") and {*negatives} <= {"negative"}:
        if len(columns.columns) not in (0, len(kinds)):
            raise InputError(
                f"{file}:{columns.first}: each column must have a name, got {len(kinds)} names, and most lines have {len(columns.columns)} columns"
            )
        return LineLayout(columns.first, has_labels=False)
    raise InputError(
        f"{file}:{columns.first}: columns must be called query<TAB>positive[<TAB>negative…], or query<TAB>document<TAB>label where the last is a whole number, got {_shown(columns.names)}; keep such columns, or, where these are texts, put the line after another one"
    )


def _are_labelled_pairs(columns: Columns) -> bool:
    """Whether it is plain without names: two columns of texts, and one of 0 and 1 alone."""
    if len(columns.columns) != 3:
        return False
    query, document, label = columns.columns
    if label.values is None or any(not re.fullmatch(r"[01](\.0*)?", v) for v in label.values):
        return False
    no_texts = max(columns.share(column.numbers + column.codes) for column in (query, document))
    return no_texts <= 1 - MOST


def _refuse_other_columns(file: Path, columns: Columns) -> None:
    """Refuse a column that holds something else than texts; where it is not plain and there are few
    lines, say it.
    """
    other = _other_column(columns)
    if other is None:
        return
    number, what, is_refused = other
    n_columns = len(columns.columns)
    texts = "<TAB>".join(["query", "positive", *["negative"] * (n_columns - 2)])
    ways = "where it is no text, remove it, or write a data folder with ids and grades"
    if number == 3 and n_columns == 3:
        ways = "where these are labels, write whole numbers (0: not relevant) and query<TAB>document<TAB>label as the first line"
    text = f"{file}:{columns.first}: every column must hold texts, query<TAB>positive[<TAB>negative…], got {what} in column {number}; {ways}; where these are texts, write {texts} as the first line"
    if is_refused:
        raise InputError(text)
    log.warning("%s; it is read as texts", text)


def _other_column(columns: Columns) -> tuple[int, str, bool] | None:
    """A column that holds no texts: its number, what it holds, and whether that is refused, as what is
    plain, or holds in many lines. A negative is a text like the positive, so what one of them is and
    the other is not tells it.
    """
    if not columns.columns:
        return None
    query, *documents = columns.columns
    if columns.holds_numbers(query):
        return 1, _told("numbers", query), True
    if _are_label_words(query) and not any(map(_are_label_words, documents)):
        return 1, _told("words that judge", query), True
    for number, column in enumerate(documents, start=2):
        others = [other for other in documents if other is not column]
        if columns.holds_numbers(column):
            if any(columns.share(other.numbers) <= 0.5 for other in others):
                return number, _told("numbers", column), True
        elif _are_label_words(column) and not all(map(_are_label_words, others)):
            return number, _told("words that judge", column), True
    lines = columns.lines - columns.others
    if lines < 2:
        return None
    are_many = lines >= MANY_LINES
    if columns.share(query.codes) >= MOST:
        if min(columns.share(other.words) for other in documents) <= 0.5:
            return 1, "ids", are_many
        if all(columns.share(other.codes + other.numbers) >= MOST for other in documents):
            return 1, "ids", are_many
    for number, column in enumerate(documents, start=2):
        others = [other for other in documents if other is not column] or [query]
        is_short = columns.share(documents[0].words) <= 0.5 <= MOST <= columns.share(column.words)
        if (
            columns.share(column.codes) >= MOST
            and min(columns.share(other.words) for other in others) <= 0.5
        ):
            return number, "ids", are_many
        if number > 2 and is_short:
            return number, _told("single words", column), are_many
    for number, column in enumerate(columns.columns, start=1):
        if column.values is None or (number == 1 and query.words < lines):
            continue  # one query may stand in many lines
        many = documents[0] if number != 2 else query
        if number == 2 and len(documents) > 1:
            continue  # and one positive
        is_repeated = lines >= 4 and 2 * column.distinct <= lines
        if is_repeated and many.distinct >= 2 * column.distinct:
            are_few = column.distinct <= min(FEW_VALUES, lines // 10)
            return number, _told(_count(column.distinct), column), are_many and are_few
    # Labelled pairs among triples, as where two files were joined.
    for number, column in enumerate(documents[1:], start=3):
        if columns.share(column.numbers) >= SOME and not documents[0].numbers:
            return number, f"numbers in {column.numbers} of {lines} lines", False
    return None


def _count(distinct: int) -> str:
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
