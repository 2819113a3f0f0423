"""The numbers of rows of queries, beside a file whose rows do not name their query: NAME.query, as
for LightGBM, or NAME.group, as for XGBoost.
"""

import logging
import re
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import numbered_lines, plain_or_packed
from ltr.data.first_bytes import unpacked_name
from ltr.data.svmlight import names_its_queries, place_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

ENDINGS = (".query", ".group")
OTHERS_BESIDE = (
    ".weight",
    ".init",
    ".position",
)  # of LightGBM and XGBoost, which nothing here reads
_SIZE = re.compile(r"0*[1-9][0-9]{0,8}")


class QuerySizes(NamedTuple):
    """How many rows each query has, in the order of the rows."""

    file: Path  # that says so
    sizes: list[int]  # [Q]
    line_numbers: list[int]  # [Q], in the file

    def qids(self, first: int) -> Iterator[int]:
        """The number of its query for each row.

        Args:
            first: the number of the first query.
        """
        for qid, size in enumerate(self.sizes, start=first):
            yield from repeat(qid, size)

    def check(self, rows: Path, n_rows: int) -> None:
        """Check that the sizes add up to the rows of a file.

        Args:
            rows: the file.
            n_rows: that it has.

        Raises:
            InputError: with ``file:line`` of the first row that belongs to no query, or of the first
                query that has not all its rows.
        """
        total = sum(self.sizes)
        what = f"the sizes of the queries in {self.file} must add up to the rows of {rows}, {n_rows}, got {total}"
        if n_rows > total:
            raise InputError(f"{place_of([rows], total)}: the row is of no query: {what}")
        if n_rows < total:
            query = int(np.searchsorted(np.cumsum(self.sizes), n_rows, side="right"))
            raise InputError(
                f"{self.file}:{self.line_numbers[query]}: there are no rows of the query: {what}"
            )


def warn_of_others(rows: Path) -> None:
    """Name what lies beside a file of rows for other programs, and would change what is learnt."""
    name = unpacked_name(rows.name)
    beside = [plain_or_packed(rows.parent, name + end) for end in OTHERS_BESIDE]
    others = [file.name for file in beside if file is not None]
    if others:
        log.warning("%s: %s is not read; each row counts the same", rows, " or ".join(others))


def read_query_sizes(rows: Path) -> QuerySizes | None:
    """The sizes that lie beside a file of rows; None where there are none, or its rows name their
    queries.

    Raises:
        InputError: ``file:line`` of what is no whole number above 0; where both files are there.
    """
    name = unpacked_name(rows.name)
    beside = [plain_or_packed(rows.parent, name + end) for end in ENDINGS]
    files = [file for file in beside if file is not None]
    if not files:
        return None
    if names_its_queries(rows):
        log.warning("%s: the rows have qids, so %s is not read", rows, files[0].name)
        return None
    if len(files) > 1:
        raise InputError(
            f"{rows.parent}: there must be one file of the sizes of queries, got {files[0].name} and {files[1].name}; keep one"
        )
    sizes = []
    line_numbers = []
    for number, line in numbered_lines(files[0]):
        text = line.strip()
        if not _SIZE.fullmatch(text):
            raise InputError(
                f"{files[0]}:{number}: a line must be the number of rows of a query, a whole number above 0, got {text[:60]!r}"
            )
        sizes.append(int(text))
        line_numbers.append(number)
    return QuerySizes(files[0], sizes, line_numbers)
