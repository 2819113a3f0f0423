"""Judgements (qrels) and ranked lists (runs) as text files, the formats that trec_eval reads."""

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ltr.errors import InputError

BEIR_HEADER = ("query-id", "corpus-id", "score")


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


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file (plain or ``.gz``) with their numbers from 1, empty ones left out.

    Raises:
        InputError: ``file:line`` of a broken gzip stream or of a byte that is not UTF-8; a missing file.
    """
    path = Path(path)
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):  # noqa: B007 - read after the loop fails
                line = raw.decode("utf-8").rstrip("\r\n")
                if number == 1:
                    line = line.removeprefix("\ufeff")
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a file is needed, this is a folder") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}:{number}: text must be UTF-8, got byte 0x{error.object[error.start]:02x} at column {error.start + 1}; "
            "save the file as UTF-8"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}:{number + 1}: the gzip file is broken here ({error}); fetch or compress it again") from None


def read_qrels(path: str | Path) -> Iterator[tuple[int, Judgement]]:
    """Judgements with their line numbers.

    Two layouts are read: TREC's four columns ``query 0 doc grade`` (any white space), and BEIR's three columns
    ``query-id<TAB>corpus-id<TAB>score`` with or without that header. A negative grade (TREC's spam mark) counts as 0.

    Raises:
        InputError: ``file:line`` of a line with another number of columns, or a grade that is no whole number.
    """
    for number, line in numbered_lines(path):
        parts = line.split("\t") if line.count("\t") == 2 else line.split()
        if number == 1 and tuple(parts) == BEIR_HEADER:
            continue
        if len(parts) == 4:
            query, _, doc, grade = parts
        elif len(parts) == 3:
            query, doc, grade = parts
        else:
            raise InputError(
                f"{path}:{number}: expected 4 columns (query, 0, doc, grade) or 3 (query-id, corpus-id, score), "
                f"got {len(parts)}: {line[:80]!r}"
            )
        try:
            yield number, Judgement(query, doc, max(0, int(grade)))
        except ValueError:
            raise InputError(f"{path}:{number}: a grade must be a whole number, got {grade!r}") from None


def read_run(path: str | Path) -> Iterator[tuple[int, Ranked]]:
    """Lines ``query Q0 doc rank score tag`` with their numbers, in the order of the file; the rank is not used, as in trec_eval.

    Raises:
        InputError: ``file:line`` of a line with another number of columns, or a score that is no number.
    """
    for number, line in numbered_lines(path):
        parts = line.split()
        if len(parts) != 6:
            raise InputError(
                f"{path}:{number}: expected 6 columns (query, Q0, doc, rank, score, tag), got {len(parts)}: {line[:80]!r}"
            )
        try:
            score = float(parts[4])
        except ValueError:
            score = float("nan")
        if score != score:
            raise InputError(f"{path}:{number}: a score must be a number, got {parts[4]!r}")
        yield number, Ranked(parts[0], parts[2], score)


def write_run(path: str | Path, ranked: Iterable[Ranked], tag: str) -> None:
    """Write a run file whole or not at all. Lines of one query must stand together, best first.

    Scores are written with 9 significant digits, enough to read a float32 back exactly.
    """
    tag = "-".join(tag.split()) or "ltr"

    def lines() -> Iterator[str]:
        rank, last = 0, None
        for query, doc, score in ranked:
            rank = rank + 1 if query == last else 1
            last = query
            yield f"{query} Q0 {doc} {rank} {score:.9g} {tag}\n"

    write_whole(path, lines())


def write_whole(path: str | Path, lines: Iterable[str]) -> None:
    """Write text to a temporary file beside ``path`` and rename it when it is whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
