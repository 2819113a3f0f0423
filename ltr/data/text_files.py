"""Texts with or without ids, from any file that a user has at hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ltr.data.collection import json_records, open_collection, open_table
from ltr.data.files import digest_of, numbered_lines, plain_or_gz
from ltr.data.texts import Record, TextTable
from ltr.errors import InputError


def open_texts(path: str, kind: Literal["document", "query"], option: str) -> TextTable:
    """Open the documents or the queries of a file or of a data folder.

    Args:
        path: ``.jsonl[.gz]`` with ``_id`` and ``text`` (and ``title``), ``.tsv[.gz]`` with
            ``id<TAB>text``, or any other file with one text a line, whose ids are the numbers of
            the lines; a folder with ``corpus.jsonl[.gz]`` or ``queries.jsonl[.gz]``; or
            ``ir_datasets:NAME``.
        kind: whether the documents or the queries are wanted.
        option: the option that names the path, for errors.

    Raises:
        InputError: if there is no such file; with ``file:line`` for a line that can't be read, an
            empty text, or an id that stands twice.
    """
    if path.startswith("ir_datasets:"):
        collection = open_collection(path)
        return collection.corpus if kind == "document" else collection.queries
    file = _file_of_texts(Path(path), kind, option)
    suffix = Path(file.name.removesuffix(".gz")).suffix
    if suffix == ".jsonl":
        return open_table(file, digest_of(file), json_records(file), kind)
    # The same bytes are other texts under another suffix, so the content must name the layout. The
    # words "True" and "False" once answered whether it is a .tsv; with other words, every table on
    # disk would be made again.
    if suffix == ".tsv":
        return open_table(file, f"True {digest_of(file)}", _tab_separated_records(file), kind)
    return open_table(file, f"False {digest_of(file)}", _line_records(file), kind)


def _file_of_texts(path: Path, kind: str, option: str) -> Path:
    """The file itself, or the one of this kind in a data folder."""
    name = "corpus.jsonl" if kind == "document" else "queries.jsonl"
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(
            f"{option} {path}: expected a file of texts, or a folder with {name}, found no such file"
        )
    file = plain_or_gz(path, name)
    if file is None:
        raise InputError(
            f"{option} {path}: expected a file of texts, or a folder with {name}, found no {name}[.gz] there"
        )
    return file


def _tab_separated_records(file: Path) -> Iterator[Record]:
    """One text a line, after its id and a tab."""
    for number, line in numbered_lines(file):
        id_, tab, text = line.partition("\t")
        if not tab:
            raise InputError(f"{file}:{number}: expected id<TAB>text, got no tab: {line[:60]!r}")
        yield Record(id_.strip(), text, f"{file}:{number}")


def _line_records(file: Path) -> Iterator[Record]:
    """One text a line; the number of the line is its id."""
    for number, line in numbered_lines(file):
        yield Record(str(number), line, f"{file}:{number}")
