"""The form of a file: what its first bytes, its name and its first line say of how it is read."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ltr.data.columns import in_small_letters, is_certain, pair_columns, role_of
from ltr.data.files import blocks, numbered_lines
from ltr.data.first_bytes import kind_of_file, unpacked_name
from ltr.data.trec import BEIR_HEADER, is_score

# How files of rows with named columns end.
ENDINGS_OF_ROWS = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".arrow")

COLUMNS_OF_RUN = 6  # or more: words behind the tag are a comment

# The beginning of an object of objects of numbers (or NaN, true, …, to be refused), as pytrec_eval and ranx write runs and judgements.
_STRING = r'\s*"((?:[^"\\]|\\.)*)"\s*'
_BY_QUERY = re.compile(rf"\s*{{{_STRING}:\s*{{(?:{_STRING}:\s*[-0-9NItf]|\s*}})")
_BEGINNING = 2**16


class Form:
    """The form of a file. What its name and its first bytes say is known at once; its first line is
    read where it is asked for.

    Attributes:
        ending: of its name in small letters, without that of a packed file; that of Parquet and Arrow
            under any name.
        has_rows: whether it is one of rows with named columns.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        kind = kind_of_file(file)
        self.ending = Path(unpacked_name(file.name)).suffix.lower()
        if kind in ("Parquet", "Arrow"):
            self.ending = f".{kind.lower()}"
        self.has_rows = self.ending in ENDINGS_OF_ROWS

    @cached_property
    def _first(self) -> tuple[str, ...]:
        """The columns of the first line of a text of ids; none of rows, and of an empty file."""
        if self.has_rows:
            return ()
        return next((tuple(parts) for _, parts in lines_of_columns(self._file)), ())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of columns that the first line of a text has, among them that of the query's id, or
        known words alone for a query and a score or a rank; none where it has no such names, and of
        rows.
        """
        columns = pair_columns(self._first)
        has_order = "score" in columns or "rank" in map(in_small_letters, self._first)
        is_ranking = "query" in columns and has_order and all(map(is_certain, self._first))
        return self._first if "query_id" in columns or is_ranking else ()

    @property
    def n_columns(self) -> int:
        """How many columns the first line of a text without names has; 0 where there are names."""
        return 0 if self.names else len(self._first)

    @cached_property
    def is_run(self) -> bool:
        """Whether a text begins with a line of a run, whatever white space is between its columns."""
        if self.has_rows:
            return False
        for _, line in numbered_lines(self._file):
            words = line.split()
            if words[0] != "#":
                columns = line.split("\t")
                if len(columns) == 3 and is_score(columns[2]):  # the others are texts
                    return False
                has_numbers = len(words) >= COLUMNS_OF_RUN and all(map(is_score, words[3:5]))
                return has_numbers or self.n_columns >= COLUMNS_OF_RUN
        return False

    @cached_property
    def is_by_query(self) -> bool:
        """Whether it is one object, ``{query: {document: value}}``."""
        if not self.has_rows or self.ending not in (".json", ".jsonl", ".ndjson"):
            return False
        for _, block in blocks(self._file, _BEGINNING, whole_lines=False):
            match = _BY_QUERY.match(block.decode(errors="replace"))
            return match is not None and role_of(match[1]) is None
        return False

    @property
    def is_plain(self) -> bool:
        """Whether its bytes alone say how it is read: it is text without names, or with BEIR's."""
        return not self.has_rows and self.names in ((), BEIR_HEADER)

    @property
    def key(self) -> str:
        """What else says how it is read, for the cache: of named rows the ending."""
        return "" if self.is_plain else f"rows-2 {self.ending} "


def lines_of_columns(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a text, each cut at its tabs, or at white space where it has none. Comments are
    left out as in qrels.
    """
    for number, line in numbered_lines(file):
        parts = line.split("\t") if "\t" in line else line.split()
        if parts[0] != "#":
            yield number, [part.strip() for part in parts]
