"""What the named columns of rows are for: the query, its positives and negatives, or a document and its
label.

So all forms in which rows of texts are published are read by their names alone: those of BGE, Tevatron,
DPR and sentence-transformers, labelled pairs and lists, MTEB's reranking.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ltr.data.columns import (
    BODY_WORDS,
    DOCUMENT_WORDS,
    LABELS,
    SIDES,
    TEXTS,
    Role,
    in_small_letters,
    part_of,
    role_of,
    words_of,
)
from ltr.errors import InputError

ROLES: tuple[Role, ...] = (
    *("query", "query_id", "positive", "negative", "document", "document_id", "label"),
    *("positive_scores", "negative_scores"),
)
# Those that a name alone says, and no other column.
NAMED: tuple[Role, ...] = ("query_id", *SIDES)


class Roles(NamedTuple):
    """The columns of each role; a document with a label, or positives and negatives. ``document_id`` is
    of the one document, with a label or as a positive; ``titles`` are by the columns of their texts.
    """

    query: str
    query_id: str | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    document: str | None
    label: str | None
    positive_scores: str | None
    negative_scores: str | None
    document_id: str | None = None
    titles: Mapping[str, str] = {}

    @property
    def columns(self) -> set[str]:
        """All that are read."""
        read = {*self.positive, *self.negative, *self.titles.values()}
        read |= {column for column in self if isinstance(column, str)}
        return read

    def line(self, names: Sequence[str]) -> str:
        """What the columns are read as, in one line."""
        parts = []
        for role, columns in self._replace(titles={})._asdict().items():
            if isinstance(columns, str):
                columns = (columns,)
            if columns:
                parts.append(f"{role.replace('_', ' ')}: {', '.join(columns)}")
        for column, title in self.titles.items():
            parts.append(f"title of {column}: {title}")
        read = self.columns
        left = [repr(name) if not name.strip() else name for name in names if name not in read]
        if left:
            parts.append(f"not read: {', '.join(left)}")
        return "; ".join(parts)


def roles_of(
    names: Sequence[str],
    where: str,
    chosen: Mapping[str, str] | None = None,
    numbers: Collection[str] = (),
) -> Roles:
    """What the columns of a file are for: as they are called, or as was chosen.

    Args:
        names: of the columns.
        where: the file, for errors.
        chosen: the column of each role, as ``{"query": "question", "positive": "answer"}``; several
            columns of a role stand with commas between. No other column is read.
        numbers: the columns that hold numbers alone. One that is not read may be the label of a
            document that has none, and is refused.

    Raises:
        InputError: for names that leave a choice, or say nothing; for an unknown role, or a column
            that is not there.
    """
    if chosen:
        return _checked(_by_choice(names, where, chosen), names, where)
    by_role = _by_name(names, where)
    titles = _titles(by_role, names)
    document = by_role["document"]
    if document:
        by_role["document_id"] = [name for name in names if _is_id_of(name, document[0])][:1]
    roles = _checked(by_role, names, where)._replace(titles=titles)
    if document and not by_role["label"] and not by_role["negative"]:
        for name in names:
            if name in numbers and name not in roles.columns and not _is_id(name):
                raise _unclear(
                    names, where, f"{name} holds numbers, and may be the label of {document[0]}"
                )
    return roles


def labels_are_classes(names: Sequence[str]) -> bool:
    """Whether the last of the columns query, document and label holds classes, and no grades: of a
    premise those of NLI, and those of a column that is called so.

    >>> labels_are_classes(["premise", "hypothesis", "label"])
    True
    >>> labels_are_classes(["question", "answer", "label"])
    False
    """
    query, _, label = names
    return "premise" in words_of(query) or role_of(label) == "class"


def _by_choice(
    names: Sequence[str], where: str, chosen: Mapping[str, str]
) -> dict[Role, list[str]]:
    by_role: dict[Role, list[str]] = {role: [] for role in ROLES}
    role_of_column: dict[str, str] = {}
    for role, value in chosen.items():
        if role not in by_role:
            raise InputError(f"columns: a role must be one of {', '.join(ROLES)}, got {role!r}")
        for name in columns_named(value, names):
            if name not in names:
                raise InputError(
                    f"{where}: there is no column {name!r} for {role}, only {_listed(names)}"
                )
            if name in role_of_column:
                raise InputError(
                    f"columns: each column must have one role, got {name!r} for {role_of_column[name]} and {role}"
                )
            role_of_column[name] = role
            by_role[role].append(name)
    return by_role


def columns_named(value: str, names: Collection[str]) -> list[str]:
    """The columns that are chosen for a role: one, or several with commas between."""
    return [value] if value in names else value.split(",")


def _by_name(names: Sequence[str], where: str) -> dict[Role, list[str]]:
    by_role: dict[Role, list[str]] = {role: [] for role in ROLES}
    texts = []
    for name in names:
        role = role_of(name)
        if role in TEXTS:
            texts.append(name)
        elif role in LABELS:
            by_role["label"].append(name)
        elif role in NAMED:
            by_role[role].append(name)
    # As DPR names them: those that are hard come first.
    by_role["negative"].sort(key=lambda name: "hard" not in name.lower())
    if not texts:
        raise _unclear(names, where, "no column is called as a query is")
    queries = [name for name in texts if role_of(name) == "query"] or texts[:1]
    texts.remove(queries[0])
    others = queries[1:]
    if others and (len(others) > 1 or len(texts) > 1 or by_role["positive"]):
        raise _unclear(names, where, f"{' and '.join(queries)} may each be the query")
    by_role["query"] = queries[:1]
    if texts and not by_role["positive"]:
        ranks = [_rank_of_document(name) for name in texts]
        best = [name for name, rank in zip(texts, ranks, strict=True) if rank == min(ranks)]
        if len(best) > 1:
            raise _unclear(names, where, f"{' and '.join(best)} may each be the document")
        by_role["document"] = best
    if by_role["negative"]:
        # A number beside positives and negatives is of both, such as a margin, and judges neither.
        by_role["label"] = []
    elif by_role["label"] and "premise" in words_of(queries[0]):
        raise _unclear(names, where, "labels of a premise are classes, and no grades")
    elif by_role["positive"] and by_role["label"]:
        raise _unclear(names, where, f"{by_role['label'][0]} may be the label of a document")
    return by_role


@lru_cache(1024)
def titles_of(names: tuple[str, ...]) -> Mapping[str, str]:
    """The columns of titles by those of the positives and negatives that they belong to, of columns of
    some names.

    >>> titles_of(("query", "positive_title", "positive_text", "title"))
    {'positive_text': 'positive_title'}
    """
    by_role: dict[Role, list[str]] = {role: [] for role in ROLES}
    for name in names:
        if (role := role_of(name)) in ("query", "positive", "negative"):
            by_role[role].append(name)
    return _titles(by_role, names)


def _titles(by_role: dict[Role, list[str]], names: Sequence[str]) -> dict[str, str]:
    """The columns of titles by those of their texts: ``positive_title`` beside ``positive_text``,
    ``title`` beside ``text``. They are no texts of their own then.
    """
    titles: dict[str, str] = {}
    texts = [*by_role["positive"], *by_role["negative"], *by_role["document"]]
    for title in names:
        if "title" not in words_of(title) or title in by_role["query"]:
            continue
        for text in texts:
            is_text = text not in titles and "title" not in words_of(text)
            if is_text and _whose(text) == _whose(title):
                titles[text] = title
    for role in ("positive", "negative"):
        by_role[role] = [name for name in by_role[role] if name not in titles.values()]
    return titles


def _whose(name: str) -> set[str]:
    """The words and numbers of a name but for those that say whether it is a title or its text."""
    words = re.findall(r"[^\W_]+", in_small_letters(name))
    return {word.removesuffix("s") for word in words}.difference(BODY_WORDS, ("title",))


def _is_id_of(name: str, document: str) -> bool:
    """Whether a column holds the ids of a document: ``doc_id`` of ``document``, ``sentence_id`` of
    ``sentence``. A document's id beside passages is of several, and none of these.
    """
    found = re.fullmatch(r"(.+?)[_-]?id", in_small_letters(name))
    if found is None:
        return False
    stem = {"doc": "document", "psg": "passage", "p": "passage"}.get(found[1], found[1])
    words = {"document" if word == "doc" else word for word in words_of(document)}
    is_any_text = stem in ("document", "passage") and words <= {"text", "content", "body"}
    return stem in words or is_any_text


def _is_id(name: str) -> bool:
    """Whether a column of numbers is one of ids, ranks and the like; pandas calls one ``Unnamed: 0``."""
    words = words_of(name)
    is_other = any(part_of(word) == "other" for word in words)
    ends_so = in_small_letters(name).endswith(("id", "ids", "idx"))
    return is_other or ends_so or not words or "unnamed" in words


def _rank_of_document(name: str) -> int:
    words = words_of(name)
    if "title" in words:  # document_title beside answer
        return len(DOCUMENT_WORDS)
    ranks = [rank for rank, word in enumerate(DOCUMENT_WORDS) if word in words]
    return min(ranks, default=len(DOCUMENT_WORDS) - 1)


def _checked(by_role: dict[Role, list[str]], names: Sequence[str], where: str) -> Roles:
    """The roles, where they make queries and what is relevant to them."""
    for role, columns in by_role.items():
        if len(columns) > 1 and role not in ("positive", "negative"):
            raise _unclear(names, where, f"{' and '.join(columns)} may each be the {role}")
    first = {role: columns[0] if columns else None for role, columns in by_role.items()}
    query = first["query"]
    if query is None:
        raise _unclear(names, where, "there is no query")
    positives = by_role["positive"]
    document = first["document"]
    label = first["label"]
    if first["document_id"] is not None and (document is None or positives):
        raise _unclear(names, where, "a document_id must be of a document")
    if document is not None and label is None:  # all documents are relevant
        positives = [*positives, document]
        document = None
    if label is not None and not (document or positives or by_role["negative"]):
        raise _unclear(names, where, f"beside {query} no column is called as a document is")
    if label is not None and (document is None or positives or by_role["negative"]):
        raise _unclear(names, where, "a label must be of a document, without positives beside it")
    if not positives and document is None:
        raise _unclear(names, where, "there is no document or positive")
    return Roles(
        query,
        first["query_id"],
        tuple(positives),
        tuple(by_role["negative"]),
        document,
        label,
        first["positive_scores"] if positives else None,
        first["negative_scores"] if by_role["negative"] else None,
        first["document_id"] if by_role["document"] else None,
    )


def _unclear(names: Sequence[str], where: str, why: str) -> InputError:
    return InputError(
        f"{where}: columns must say which is the query, and which are positives and negatives, or a document and its label; {why}, got {_listed(names)}; rename them, or import the file with --columns query=… positive=…"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)[:200]
