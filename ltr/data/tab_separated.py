"""Texts with tabs between: what spreadsheets and other programs put into such files, and would be
read as text.
"""

import logging
import re
from itertools import islice
from pathlib import Path

from ltr.data.files import numbered_lines
from ltr.errors import InputError

log = logging.getLogger(__name__)

# What columns are called, in small letters; perhaps with a number behind (negative_1).
COLUMN_NAMES = {
    *("id", "_id", "qid", "pid", "docid", "query_id", "query-id", "doc_id", "corpus-id"),
    *("query", "question", "anchor", "positive", "pos", "negative", "neg", "answer"),
    *("document", "doc", "passage", "text", "sentence", "title"),
    *("label", "class", "category", "intent", "score"),
}
NUMBER_BEHIND = re.compile(r"[ _-]?[0-9]+$")


def refuse_header(file: Path) -> None:
    """Raise an InputError where the first line of a file holds the names of columns. Where the second
    one is of such words, too, as ``doc1<TAB>document 1`` and ``doc2<TAB>document 2``, both are texts.
    """
    first_lines = list(islice(numbered_lines(file), 2))
    if [_is_header(line) for _, line in first_lines] not in ([True], [True, False]):
        return
    number, line = first_lines[0]
    raise InputError(
        f"{file}:{number}: every line must hold texts, got the names of columns, {line[:60]!r}; remove the line, or, where these are texts, put it after another one"
    )


def _is_header(line: str) -> bool:
    """Whether there are several columns, all of names that columns are called by."""
    columns = line.split("\t")
    for column in columns:
        name = column.strip().strip('"').lower()
        if NUMBER_BEHIND.sub("", name) not in COLUMN_NAMES:
            return False
    return len(columns) > 1


def _is_quoted(text: str) -> bool:
    """Whether a text stands between quotes."""
    return len(text) > 2 and text.startswith('"') and text.endswith('"')


def _has_doubled_quotes(text: str) -> bool:
    """Whether the quotes within a text that stands between quotes are doubled."""
    inside = text[1:-1]
    return '""' in inside and '"' not in inside.replace('""', "")


def _is_of_spreadsheet(line: str) -> bool:
    """Whether all columns stand between quotes, or one with quotes in it, which are doubled."""
    columns = line.split("\t")
    quoted = [column for column in columns if _is_quoted(column)]
    return len(quoted) == len(columns) or any(_has_doubled_quotes(text) for text in quoted)


def warn_of_quotes(file: Path) -> None:
    """Log one warning for a file in which columns are quoted: the quotes are read as text."""
    n_lines = 0
    first = ""
    for number, line in numbered_lines(file):
        if _is_of_spreadsheet(line):
            n_lines += 1
            first = first or f"{file}:{number}: {line[:60]!r}"
    if n_lines:
        log.warning(
            "%s: %d lines hold quotes as spreadsheets write them, which are read as text; save the file without them",
            first,
            n_lines,
        )
