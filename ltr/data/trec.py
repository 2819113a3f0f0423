"""Judgements (qrels) and ranked lists (runs) as text files, the formats that trec_eval reads."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ltr.data.files import numbered_lines, write_whole
from ltr.errors import InputError

BEIR_HEADER = ("query-id", "corpus-id", "score")
LARGEST_SCORE = 3.4e38  # of float32

_GRADE = re.compile(r"[+-]?[0-9]{1,7}")  # all of them are exact as float32
_SCORE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Judgement(NamedTuple):
    """One line of a qrels file: ``grade`` 0 is a judgement too (judged, not relevant)."""

    query: str
    doc: str
    grade: int


class Ranked(NamedTuple):
    """One line of a run file."""

    query: str
    doc: str
    score: float


def read_qrels(path: str | Path) -> Iterator[tuple[int, Judgement]]:
    """Judgements with their line numbers.

    Two layouts are read: TREC's four columns ``query 0 doc grade`` (any white space), and BEIR's
    three columns ``query-id<TAB>corpus-id<TAB>score`` with or without that header. A negative grade
    (TREC's spam mark) counts as 0.

    Raises:
        InputError: ``file:line`` of a line with another number of columns, or a grade that is no
            whole number below 10^7.
    """
    for at, (number, line) in enumerate(numbered_lines(path)):
        parts = line.split("\t") if line.count("\t") == 2 else line.split()
        if at == 0 and tuple(parts) == BEIR_HEADER:
            continue
        if len(parts) not in (3, 4):
            columns = "4 columns (query, 0, doc, grade) or 3 (query-id, corpus-id, score)"
            raise InputError(
                f"{path}:{number}: expected {columns}, got {len(parts)}: {line[:80]!r}"
            )
        query, (doc, grade) = parts[0], parts[-2:]
        if not _GRADE.fullmatch(grade.strip()):
            raise InputError(
                f"{path}:{number}: a grade must be a whole number below 10^7, got {grade[:60]!r}"
            )
        yield number, Judgement(query, doc, max(0, int(grade)))


def read_run(path: str | Path) -> Iterator[tuple[int, Ranked]]:
    """Lines ``query Q0 doc rank score tag`` with their numbers, in the order of the file; the rank
    is not used, as in trec_eval.

    Raises:
        InputError: ``file:line`` of a line with another number of columns, or a score that is no
            finite number (float32).
    """
    for number, line in numbered_lines(path):
        parts = line.split()
        if len(parts) != 6:
            columns = "6 columns (query, Q0, doc, rank, score, tag)"
            raise InputError(
                f"{path}:{number}: expected {columns}, got {len(parts)}: {line[:80]!r}"
            )
        if not _SCORE.fullmatch(parts[4]) or abs(float(parts[4])) > LARGEST_SCORE:
            raise InputError(
                f"{path}:{number}: a score must be a finite number (float32), got {parts[4][:60]!r}"
            )
        yield number, Ranked(parts[0], parts[2], float(parts[4]))


def write_run(path: str | Path, ranked: Iterable[Ranked], tag: str) -> None:
    """Write a run file whole or not at all. Lines of one query must be adjacent, best first.

    Scores have 9 significant digits, enough to read a float32 back exactly.
    """
    tag = "-".join(tag.split()) or "ltr"

    def lines() -> Iterator[str]:
        for query, docs in groupby(ranked, key=lambda line: line.query):
            for rank, (_, doc, score) in enumerate(docs, start=1):
                yield f"{query} Q0 {doc} {rank} {score:.9g} {tag}\n"

    write_whole(path, lines())
