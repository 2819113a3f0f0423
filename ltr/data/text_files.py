"""Texts with or without ids, from any file that a user has at hand: what commands name beside a
collection.

The texts of a collection are opened by ``collection.py``; files whose texts have ids are read, for
both, by ``record_files.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ltr.data.collection import open_collection
from ltr.data.counted_columns import columns_of
from ltr.data.files import HUBS, digest_of, numbered_lines
from ltr.data.folder_files import find_corpus, find_queries, open_corpus, open_queries
from ltr.data.forms import Form
from ltr.data.record_files import open_record_files
from ltr.data.texts import Record, TextTable
from ltr.errors import InputError, local_path


def open_texts(path: str, kind: Literal["document", "query"], option: str) -> TextTable:
    """Open the documents or the queries of a file or of a data folder.

    Args:
        path: ``.jsonl`` or ``.parquet`` with ``_id`` and ``text`` (and ``title``), ``.tsv`` with
            ``id<TAB>text`` or names in its first line, or ``.txt`` (or a name without an end) with
            one text a line, whose ids are the numbers of the lines, plain or packed; a folder with a corpus or queries, see
            ``ltr.data.folder_files.find_corpus``; or ``ir_datasets:NAME`` or ``datasets:NAME``.
        kind: whether the documents or the queries are wanted.
        option: the option that names the path, for errors.

    Raises:
        InputError: if there is no such file, or one of another kind, such as ``.csv``; with
            ``file:line`` for a line that can't be read, an empty text, or an id that stands twice.
    """
    local_path(option, path)
    if path.startswith(HUBS):
        collection = open_collection(path)
        return collection.corpus if kind == "document" else collection.queries
    file = Path(path)
    if file.is_dir():
        return _texts_of_folder(file, kind, option)
    if not file.is_file():
        raise InputError(
            f"{option} {path}: expected a file of texts, or a folder with {_name(kind)}.jsonl, found no such file"
        )
    form = Form(file)
    if form.ending in (".jsonl", ".parquet", ".tsv"):
        if form.ending == ".tsv":
            columns_of(file)  # says where quotes are read as text
        return open_record_files(file, kind)
    if form.ending not in (".txt", ""):
        raise InputError(
            f"{option} {path}: a file of texts must be .jsonl or .parquet with _id and text, .tsv with id<TAB>text, or .txt with one text a line (+ .gz), got {form.ending}; write it as one of these"
        )
    # The same bytes are other texts under another ending, so the content must name the form. With
    # another word than this one every table on disk would be made again.
    return TextTable.open(f"False {digest_of(file)}", _line_records(file), kind, file)


def _name(kind: str) -> str:
    return "corpus" if kind == "document" else "queries"


def _texts_of_folder(folder: Path, kind: str, option: str) -> TextTable:
    name = _name(kind)
    is_there = find_corpus(folder) if kind == "document" else find_queries(folder)
    if not is_there:
        raise InputError(
            f"{option} {folder}: expected a file of texts, or a folder with {name}.jsonl, found no {name}.jsonl[.gz], {name}.parquet or folder {name} there"
        )
    return open_corpus(folder) if kind == "document" else open_queries(folder)


def _line_records(file: Path) -> Iterator[Record]:
    """One text a line; the number of the line is its id."""
    source = str(file)
    for number, line in numbered_lines(file):
        yield Record(str(number), line, source, number)
