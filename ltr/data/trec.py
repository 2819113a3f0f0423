"""Judgements (qrels) and ranked lists (runs) as text files, the formats that trec_eval reads."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ltr.data.files import numbered_lines
from ltr.data.whole_files import write_whole
from ltr.entries import shown
from ltr.errors import InputError

BEIR_HEADER = ("query-id", "corpus-id", "score")
LARGEST_SCORE = 3.4e38  # about the largest float32

LARGEST_GRADE = 10**7  # grades are smaller: whole numbers of 7 digits are exact as float32

TRUTH = {"true": True, "false": False}  # as pandas writes them in CSV, in small letters

_RANK = re.compile(r"[+-]?[0-9]+")
_SCORE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Judgement(NamedTuple):
    """One line of a qrels file: ``grade`` 0 is a judgement too (judged, not relevant)."""

    query: str
    doc: str
    grade: float


class RunLine(NamedTuple):
    """One line of a run file."""

    query: str
    doc: str
    score: float


def read_qrels(path: str | Path) -> Iterator[tuple[int, Judgement]]:
    """Judgements with their line numbers.

    Two layouts are read: TREC's four columns ``query 0 doc grade`` (any white space, but for a line
    of exactly two tabs), and BEIR's three columns ``query-id<TAB>corpus-id<TAB>score`` with or
    without that header.

    Comments are left out, as trec_eval does: lines that begin with ``# ``, and what stands behind
    four columns and a ``#``.

    Raises:
        InputError: ``file:line`` of a line with another number of columns, or of a grade that
            :func:`grade_of` refuses.
    """
    is_first = True  # of the lines that are not empty
    for number, line in numbered_lines(path):
        # Two tabs are BEIR's layout. It is split at tabs alone: an id with a space is then reported as
        # an unknown id, not as a wrong number of columns.
        parts = line.split("\t") if line.count("\t") == 2 else line.split()
        if parts[0] == "#":
            continue
        if len(parts) > 4 and parts[4].startswith("#"):
            parts = parts[:4]
        was_first, is_first = is_first, False
        if was_first and tuple(parts) == BEIR_HEADER:
            continue
        if len(parts) not in (3, 4):
            raise InputError(
                f"{path}:{number}: expected 4 columns (query, 0, doc, grade) or 3 (query-id, corpus-id, score), got {len(parts)}: {line[:80]!r}"
            )
        query = parts[0]
        doc = parts[-2]
        try:
            grade = grade_of(parts[-1], f"{path}:{number}")
        except InputError as error:
            if not was_first or is_score(parts[-1]):
                raise
            raise InputError(
                f"{error}; the first line may also be names of columns, such as query_id and doc_id"
            ) from None
        yield number, Judgement(query, doc, grade)


def grade_of(text: str, where: str) -> float:
    """The grade that a text holds: a whole number, or one with a fraction, as people's mean ratings
    have. A whole negative one (TREC's spam mark) is 0.

    Args:
        text: a number, perhaps with zeros behind a point, as pandas writes it.
        where: its place, for errors.

    Raises:
        InputError: for another text, from 10^7 on, and for a negative number with a fraction: on a
            scale with such numbers 0 is not the least relevant.

    >>> grade_of("2", "a.tsv:1"), grade_of("4.75", "a.tsv:2"), grade_of("-1", "a.tsv:3")
    (2.0, 4.75, 0.0)
    """
    text = text.strip()
    if not _SCORE.fullmatch(text) or abs(float(text)) >= LARGEST_GRADE:
        has_comma = _SCORE.fullmatch(text.replace(",", ".", 1)) is not None
        hint = "; write a point for the comma" if has_comma and "," in text else ""
        raise InputError(
            f"{where}: a grade must be a number below 10^7 (0: not relevant; words as numbers, such as 1, 0.1, 0.01 and 0 for E, S, C and I of ESCI), got {text[:60]!r}{hint}"
        )
    grade = float(text)
    if grade < 0 and not grade.is_integer():
        raise InputError(
            f"{where}: a grade with a fraction must not be negative, got {text[:60]!r}; add one number to all grades, so that 0 is not relevant"
        )
    return max(0.0, grade)


def grade_in(value: Any, where: str) -> float:
    """The grade that a value holds: a number or a truth value, perhaps written as a text; an InputError
    as :func:`grade_of`.
    """
    if isinstance(value, str):
        value = TRUTH.get(value.strip().lower(), value)
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str | int | float):
        return grade_of(str(value), where)
    raise InputError(f"{where}: a grade must be a number, got {shown(value)}")


def id_in(value: Any, where: str) -> str:
    """The id that a value holds: a text, or a whole number, of which it is the decimal digits."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{where}: an id must be a text or a whole number, got {shown(value)}")
    return str(value)


def score_in(value: Any, where: str) -> float:
    """The score that a value holds, perhaps written as a text; an InputError for another one."""
    if not is_score(value):
        raise InputError(f"{where}: a score must be a finite number (float32), got {value!r:.60}")
    return float(value)


def is_score(value: object) -> bool:
    """Whether a value is a finite number that float32 can hold, or a text of one."""
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_0 as 10
        return False
    try:
        return abs(float(value)) <= LARGEST_SCORE  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def text_of_grade(grade: float) -> str:
    """The shortest text from which the same float32 is read again.

    >>> text_of_grade(2.0), text_of_grade(np.float32(0.1))
    ('2', '0.1')
    """
    return np.format_float_positional(np.float32(grade), trim="-")


def read_run(path: str | Path) -> Iterator[tuple[int, RunLine]]:
    """Lines ``query Q0 doc rank score tag`` with their numbers, in the order of the file; the rank
    must be a whole number and is not used, as in trec_eval. Lines that begin with ``# `` and words
    behind the tag are left out.

    Raises:
        InputError: ``file:line`` of a line with another number of columns, a rank that is no whole
            number, or a score that is no finite number (float32).
    """
    for number, line in numbered_lines(path):
        parts = line.split()
        if parts[0] == "#":
            continue
        if len(parts) < 6:
            raise InputError(
                f"{path}:{number}: expected 6 columns (query, Q0, doc, rank, score, tag), got {len(parts)}: {line[:80]!r}"
            )
        query, _, doc, rank, score = parts[:5]
        if not _RANK.fullmatch(rank):
            raise InputError(f"{path}:{number}: a rank must be a whole number, got {rank[:60]!r}")
        if not _SCORE.fullmatch(score) or abs(float(score)) > LARGEST_SCORE:
            raise InputError(
                f"{path}:{number}: a score must be a finite number (float32), got {score[:60]!r}"
            )
        yield number, RunLine(query, doc, float(score))


def write_run(path: str | Path, lines: Iterable[RunLine], tag: str) -> None:
    """Write a run file whole or not at all. Lines of one query must be adjacent, best first.

    Scores have 9 significant digits, enough to read a float32 back exactly.
    """
    tag = "-".join(tag.split()) or "ltr"  # a column of a run file holds no white space

    def text_lines() -> Iterator[str]:
        for query, lines_of_query in groupby(lines, key=lambda line: line.query):
            for rank, (_, doc, score) in enumerate(lines_of_query, start=1):
                yield f"{query} Q0 {doc} {rank} {score:.9g} {tag}\n"

    write_whole(path, text_lines())
