"""What commands that rank share: checks of their options, which documents are left out of rankings,
and how these are printed and written.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from ltr.data.collection import open_collection
from ltr.data.console import Console, say
from ltr.data.files import HUBS
from ltr.data.folder_files import FolderFiles
from ltr.data.own_documents import own_documents, own_documents_line
from ltr.data.splits import SPLITS
from ltr.data.texts import TextTable
from ltr.data.trec import RunLine, write_run
from ltr.errors import InputError
from ltr.use.rankers import RankedDocument


def find_own_documents(
    queries: TextTable, corpus: TextTable, query_rows: np.ndarray, data: str | None
) -> np.ndarray:
    """For each query the document that it is itself, by row, and −1 for none: rankings leave it out.
    As :meth:`ltr.data.collection.Collection.documents_left_out` where there are judgements. A line on
    stderr says how many of the queries that are ranked for have one.

    Args:
        queries, corpus: the texts.
        query_rows: ``[n]`` int64, the queries that are ranked for.
        data: what both come from; None: from two places.
    """
    own_docs = own_documents(queries, corpus)
    if data is not None and (own_docs >= 0).any() and _is_judged(data):
        own_docs = open_collection(data).documents_left_out()
    line = own_documents_line(queries, corpus, query_rows, own_docs)
    if line:
        say(line, to=sys.stderr)
    return own_docs


def _is_judged(data: str) -> bool:
    """Whether there are judgements beside the texts of some data."""
    if data.startswith(HUBS):
        return True
    return any(map(FolderFiles(Path(data)).judgements, SPLITS))


def write_rankings(output: str, ranked: Iterable[RunLine], n_queries: int) -> None:
    """Write a run file, and say so."""
    write_run(output, ranked, "ltr")
    say(f"{n_queries} queries written to {output}")


def print_hits(hits: list[RankedDocument]) -> None:
    """A table on a terminal; elsewhere lines of rank, score, id and text, with tabs between. Where
    hits have probabilities, these stand behind the scores.
    """
    has_probabilities = any(hit.probability is not None for hit in hits)
    if not sys.stdout.isatty():
        for place, hit in enumerate(hits, start=1):
            cells = [str(place), f"{hit.score:.9g}"]
            if has_probabilities:
                cells.append(f"{hit.probability:.9g}")
            print(*cells, hit.id, " ".join(hit.text.split()), sep="\t", flush=True)
        return
    table = Table(box=None, pad_edge=False)
    names = ["rank", "score", "id", "text"]
    if has_probabilities:
        names.insert(2, "probability")
    for name in names:
        table.add_column(name, no_wrap=name != "text")
    for place, hit in enumerate(hits, start=1):
        row = [str(place), f"{hit.score:.4f}", hit.id, _short(hit.text)]
        if has_probabilities:
            row.insert(2, f"{hit.probability:.4f}")
        table.add_row(*[escape(cell) for cell in row])
    Console().print(table)


def _short(text: str, length: int = 200) -> str:
    whole = " ".join(text.split())
    return whole if len(whole) <= length else f"{whole[: length - 1]}…"


def refuse_instruction(instruction: str | None) -> None:
    """Refuse an instruction beside many queries, which have their own."""
    if instruction is not None:
        raise InputError(
            "--instruction is of --query; that of each query of a file is its instruction in queries.jsonl"
        )


def check_at_least_one(**options: int | None) -> None:
    """Refuse an option that must be at least 1, and is less."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}")
