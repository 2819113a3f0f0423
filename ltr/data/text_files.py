"""Texts with or without ids, from any file that a user has at hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ltr.data.collection import json_records, open_collection
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
        kind: which of them.
        option: the one that names the path, for errors.

    Raises:
        InputError: if there is no such file; ``file:line`` of what can't be read, an empty text, or
            an id that stands twice.
    """
    if path.startswith("ir_datasets:"):
        collection = open_collection(path)
        return collection.corpus if kind == "document" else collection.queries
    name = "corpus.jsonl" if kind == "document" else "queries.jsonl"
    file = plain_or_gz(Path(path), name) if Path(path).is_dir() else Path(path)
    if file is None or not file.is_file():
        came = f"no {name}[.gz] there" if file is None else "no such file"
        raise InputError(
            f"{option} {path}: expected a file of texts, or a folder with {name}, found {came}"
        )
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    if plain.suffix == ".jsonl":
        return TextTable.open(digest_of(file), json_records(file), kind)
    read = _tab_separated if plain.suffix == ".tsv" else _lines
    return TextTable.open(f"{plain.suffix == '.tsv'} {digest_of(file)}", read(file), kind)


def _tab_separated(file: Path) -> Iterator[Record]:
    for number, line in numbered_lines(file):
        id_, tab, text = line.partition("\t")
        if not tab:
            raise InputError(f"{file}:{number}: expected id<TAB>text, got no tab: {line[:60]!r}")
        yield Record(id_.strip(), text, f"{file}:{number}")


def _lines(file: Path) -> Iterator[Record]:
    for number, line in numbered_lines(file):
        yield Record(str(number), line, f"{file}:{number}")
