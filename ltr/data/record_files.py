"""Files of texts with ids: JSON lines, Parquet, text with tabs, and folders of such files."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ltr.data.cache_folder import details
from ltr.data.columns import IDS, TEXTS, TEXTS_BESIDE_IDS, TextColumns, role_of, text_columns
from ltr.data.counted_columns import separator_hint
from ltr.data.files import digest_of, exists_as_file, numbered_lines
from ltr.data.first_bytes import PACKED_ENDINGS
from ltr.data.forms import Form
from ltr.data.named_rows import read_rows
from ltr.data.progress import reading
from ltr.data.splits import lacking_parts
from ltr.data.texts import Record, TextTable, with_title
from ltr.data.trec import id_in
from ltr.errors import InputError

log = logging.getLogger(__name__)

ENDINGS = (
    *(f".jsonl{packed}" for packed in ("", *PACKED_ENDINGS)),
    ".parquet",
    *(f".tsv{packed}" for packed in ("", *PACKED_ENDINGS)),
)
BEIR = ("text", "title")  # what texts are called beside their id, and read unless otherwise said
ID_AND_TEXT = ("id", "text")
DOCUMENT_COLUMNS = ("id", "url", "title", "text")  # of MS MARCO's document ranking
DOCUMENTS_OF_MS_MARCO = "msmarco-docs"  # how the names of files with DOCUMENT_COLUMNS begin
LINES_LOOKED_AT = 100  # that say whether other files have these


def find_texts(folder: Path, name: str) -> Path | None:
    """The texts of this name in a data folder: ``name.jsonl`` or ``name.tsv`` (plain or packed),
    ``name.parquet``, or the folder ``name`` of such files; None if there are none.

    Raises:
        InputError: if a file's name is that of something else, or there are texts of two kinds.
    """
    present = _all_texts(folder, name)
    # Text with tabs often lies beside these, for other programs.
    present = [path for path in present if not _is_tsv(path)] or present
    if not present:
        return None
    # A plain file comes before its packed self.
    others = [path for path in present[1:] if path.suffix not in PACKED_ENDINGS]
    if others:
        raise InputError(
            f"{folder}: the {name} must be one file or one folder, got {present[0].name} and {others[0].name}; keep one"
        )
    return present[0]


def texts_left_out(folder: Path, name: str) -> list[Path]:
    """The files of texts of this name that :func:`find_texts` does not choose: text with tabs beside
    others.
    """
    present = _all_texts(folder, name)
    separated = [path for path in present if _is_tsv(path)]
    return separated if len(separated) < len(present) else []


def _all_texts(folder: Path, name: str) -> list[Path]:
    present = [path for ending in ENDINGS if exists_as_file(path := folder / f"{name}{ending}")]
    if (folder / name).is_dir():
        present.append(folder / name)
    return present


def open_record_files(path: Path, kind: str) -> TextTable:
    """Open the texts of a file, or of all files of a folder in the order of their names.

    Args:
        path: ``.jsonl`` or ``.tsv`` (plain or packed) or ``.parquet``, or a folder of these. In a
            folder, names that begin with ``.`` or ``_`` are left out, as in Spark.
        kind: ``document`` or ``query``, for errors.

    Raises:
        InputError: as :meth:`TextTable.open`, with ``file:line``, in Parquet ``file:row`` counted
            from 1; for other files in the folder, or none.
    """
    if path.is_dir():
        return open_parts(_files_of_folder(path), kind, path)
    content = f"{_look_at_columns(path, kind)}{digest_of(path)}"
    told: list[str] = []
    records = _records(path, kind, told)
    with reading([path]):
        return TextTable.open(content, records, kind, path, leave_out_empty=True, told=told)


def open_parts(files: Sequence[Path], kind: str, source: Path) -> TextTable:
    """Open the texts of several files as one table.

    Args:
        files: as of :func:`open_record_files`.
        kind: ``document`` or ``query``, for errors.
        source: the folder that they lie in, for errors.

    Raises:
        InputError: as :func:`open_record_files`.
    """
    # What a file is read as is part of the content: its bytes alone do not say it.
    digests = []
    for file in files:
        form = _look_at_columns(file, kind, is_said=file == files[0])
        digests.append(f"{_ending(file)} {form}{digest_of(file)}")
    content = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    told: list[str] = []
    records = (record for file in files for record in _records(file, kind, told))
    with reading(files):
        return TextTable.open(
            f"folder-1 {content}", records, kind, source, leave_out_empty=True, told=told
        )


def _look_at_columns(file: Path, kind: str, is_said: bool = True) -> str:
    """What a file is read as, for the cache: the same bytes may be other texts under another name, and
    their columns may be taken for other ones. Nothing where these are an id and ``text``.

    Which columns of the first text are read, and which are not, is said in :data:`details`; to all,
    where one of several texts is chosen, or some columns of text with tabs are not read.
    """
    is_tsv = _is_tsv(file)
    form = "tsv-3 " if is_tsv else ""
    if is_tsv and file.name.startswith(DOCUMENTS_OF_MS_MARCO):
        form += "documents "
    for _, row, columns in _rows(file, kind, []):
        read = [name for name in columns if name is not None]
        others = [name for name in row if name not in read]
        if is_said:
            left = f"; not read: {', '.join(others)[:200]}" if others else ""
            is_chosen = columns.text != "text" and any(role_of(name) in TEXTS for name in others)
            says = log if others and (is_tsv or is_chosen) else details
            says.info("%s: columns are read as %s%s", file, ", ".join(read), left)
        is_plain = columns.id in ("_id", "id") and (columns.text, columns.title or "title") == BEIR
        return form if is_plain else f"{form}columns {columns} "
    return form


def _files_of_folder(folder: Path) -> list[Path]:
    files = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if _ending(path) is None or not exists_as_file(path):
            raise InputError(
                f"{path}: a folder of texts must hold files {', '.join(ENDINGS)} alone; move it elsewhere"
            )
        files.append(path)
    if not files:
        raise InputError(f"{folder}: there is no file {', '.join(ENDINGS)} in this folder")
    if lacking := lacking_parts(files):
        log.warning("%s: %s", folder, lacking)
    return files


def _ending(path: Path) -> str | None:
    """The ending of a file of texts; None for another name."""
    for ending in ENDINGS:
        if path.name.lower().endswith(ending):
            return ending
    return None


def _records(file: Path, kind: str, told: list[str]) -> Iterator[Record]:
    """The texts of a file: the columns ``_id`` (or ``id``), ``text``, perhaps ``title``, and the
    ``instruction`` of a query; or those of other names, see :func:`ltr.data.columns.text_columns`.
    What else a user must know of them is appended to ``told`` in the end.
    """
    source = str(file)
    for number, row, columns in _rows(file, kind, told):
        id_ = row[columns.id]
        if not isinstance(id_, str):
            id_ = id_in(id_, f"{source}:{number}")
        title = (row[columns.title] if columns.title else None) or ""
        text = row[columns.text]
        if text is None:
            text = ""
        instruction = row.get("instruction") or ""
        if not (isinstance(title, str) and isinstance(text, str)):
            raise InputError(
                f"{source}:{number}: {columns.title or 'title'!r} and {columns.text!r} must be strings, got {title!r:.30}, {text!r:.30}"
            )
        yield Record(id_, with_title(title, text), source, number, instruction)


def _rows(
    file: Path, kind: str, told: list[str]
) -> Iterator[tuple[int, dict[str, Any], TextColumns]]:
    """The rows of a file with their numbers, and which of their columns are read."""
    if _is_tsv(file):
        yield from _tsv_rows(file, kind, told)
        return
    for number, row in read_rows(file, partial(_columns_read, file, kind)):
        columns = text_columns(tuple(row), kind)
        if columns is None:
            line = json.dumps(row, ensure_ascii=False, default=str)
            raise InputError(
                f"{file}:{number}: a line must be an object with '_id' and 'text', or one text of another name, got {line[:60]!r}"
            )
        yield number, row, columns


def _columns_read(file: Path, kind: str, present: list[str]) -> list[str]:
    """The columns of a Parquet file that are read, of those that it has."""
    columns = text_columns(tuple(dict.fromkeys(present)), kind)
    if columns is None:
        raise InputError(
            f"{file}: a Parquet file of texts must have the columns _id (or id) and text, got {', '.join(present)[:80]}"
        )
    return [name for name in columns if name is not None]


def _is_tsv(file: Path) -> bool:
    return Form(file).ending == ".tsv"


def _tsv_rows(
    file: Path, kind: str, told: list[str]
) -> Iterator[tuple[int, dict[str, Any], TextColumns]]:
    """The rows of a file ``id<TAB>text``, or with the columns that its first line names; or of MS
    MARCO's documents, ``id<TAB>url<TAB>title<TAB>body``.
    """
    lines = numbered_lines(file)
    first = next(lines, None)
    if first is None:
        return
    names, columns = _names_of_texts(file, *first, kind)
    if columns is None:
        lines = chain([first], lines)
        is_of_documents = file.name.startswith(DOCUMENTS_OF_MS_MARCO) or _has_addresses(file)
        names = DOCUMENT_COLUMNS if is_of_documents else ID_AND_TEXT
        columns = TextColumns("id", "text", "title" if is_of_documents else None, None)
    # What stands behind the id of two columns without names is the text, tabs too.
    n_splits = 1 if names is ID_AND_TEXT else -1
    n_with_tabs = 0
    first_with_tabs = 0
    for number, line in lines:
        values = line.split("\t", n_splits)
        if len(values) != len(names):
            has_tab = len(values) > 1
            got = f"{len(values)} columns" if has_tab else "no tab"
            hint = "" if has_tab else separator_hint(line)
            raise InputError(
                f"{file}:{number}: expected {'<TAB>'.join(names)}, got {got}: {line[:60]!r}{hint}"
            )
        row = dict(zip(names, values, strict=True))
        id_ = row[columns.id].strip()
        if len(id_.split()) > 1:
            raise InputError(
                f"{file}:{number}: a .tsv must hold id<TAB>text here, and no pairs or triples of texts, got the id {id_[:60]!r}; write a .txt with one text a line, or put an id before each text"
            )
        if n_splits == 1 and "\t" in values[1]:
            n_with_tabs += 1
            first_with_tabs = first_with_tabs or number
        yield number, row | {columns.id: id_}, columns
    if n_with_tabs:
        told.append(
            f"{n_with_tabs} texts hold tabs, first that at {file.name}:{first_with_tabs}: all that stands behind the id is the text"
        )


def _names_of_texts(
    file: Path, number: int, line: str, kind: str
) -> tuple[Sequence[str], TextColumns | None]:
    """The columns of a file whose first line names them, and those that are read; None where that line
    is a text itself.

    Raises:
        InputError: if the first one names an id, and not one of the others a text.
    """
    names = [value.strip().lower().replace("-", "_") for value in line.split("\t")]
    columns = text_columns(tuple(names), kind)
    begins_with_id = len(names) > 1 and role_of(names[0]) in IDS
    if columns is None and begins_with_id:
        shown = line.replace("\t", "<TAB>")[:80]
        raise InputError(
            f"{file}:{number}: names of columns must be those of an id, one text and perhaps a title ({', '.join(TEXTS_BESIDE_IDS)}), got {shown!r}"
        )
    if columns is not None and begins_with_id:
        columns = columns._replace(id=names[0])
    return names, columns


def _has_addresses(file: Path) -> bool:
    """Whether most of the first lines have four columns, an address in the second."""
    found = 0
    looked_at = 0
    for _, line in islice(numbered_lines(file), LINES_LOOKED_AT):
        parts = line.split("\t")
        found += len(parts) == len(DOCUMENT_COLUMNS) and parts[1].startswith("http")
        looked_at += 1
    return 2 * found > looked_at
