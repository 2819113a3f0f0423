"""Files of texts with ids: JSON lines, Parquet, text with tabs, and folders of such files."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from ltr.data.cache_folder import details
from ltr.data.columns import IDS, TEXTS_BESIDE_IDS, TextColumns, role_of, text_columns
from ltr.data.files import digest_of, exists_as_file, numbered_lines
from ltr.data.first_bytes import PACKED_ENDINGS
from ltr.data.forms import Form
from ltr.data.named_rows import Row, read_rows
from ltr.data.progress import reading
from ltr.data.splits import lacking_parts
from ltr.data.texts import Record, TextTable
from ltr.errors import InputError

log = logging.getLogger(__name__)

ENDINGS = (
    *(f".jsonl{packed}" for packed in ("", *PACKED_ENDINGS)),
    ".parquet",
    *(f".tsv{packed}" for packed in ("", *PACKED_ENDINGS)),
)
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
    _say_columns(path)
    content = f"{_form_of_tsv(path)}{digest_of(path)}"
    with reading([path]):
        return TextTable.open(content, _records(path), kind, path, leave_out_empty=True)


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
    _say_columns(files[0])
    digests = [f"{_ending(file)} {_form_of_tsv(file)}{digest_of(file)}" for file in files]
    content = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    records = (record for file in files for record in _records(file))
    with reading(files):
        return TextTable.open(f"folder-1 {content}", records, kind, source, leave_out_empty=True)


def _say_columns(file: Path) -> None:
    """Say in :data:`details` which columns of the first text are read, and which are not; of text with
    tabs, which seldom has others, say it to all where some are not read.
    """
    if not (details.isEnabledFor(logging.INFO) or _is_tsv(file)):
        return
    for _, row in _tsv_rows(file) if _is_tsv(file) else read_rows(file):
        columns = text_columns(tuple(row))
        read = [name for name in columns or () if name is not None]
        others = [name for name in row if name not in read]
        left = f"; not read: {', '.join(others)[:200]}" if others else ""
        says = log if others and _is_tsv(file) else details
        says.info("%s: columns are read as %s%s", file, ", ".join(read), left)
        return


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


def _records(file: Path) -> Iterator[Record]:
    """The texts of a file: the columns ``_id`` (or ``id``), ``text``, perhaps ``title``, and the
    ``instruction`` of a query; or those of other names, see :func:`ltr.data.columns.text_columns`.
    """
    source = str(file)
    rows = _tsv_rows(file) if _is_tsv(file) else read_rows(file, partial(_columns_read, file))
    names: tuple[str, ...] = ()  # of the columns of the row before
    columns = None
    for number, row in rows:
        if names != tuple(row):
            names = tuple(row)
            columns = text_columns(names)
        if columns is None:
            line = json.dumps(row, ensure_ascii=False, default=str)
            raise InputError(
                f"{source}:{number}: a line must be an object with '_id' and 'text', or one text of another name, got {line[:60]!r}"
            )
        id_ = row[columns.id]
        title = (row[columns.title] if columns.title else None) or ""
        text = row[columns.text]
        if text is None:
            text = ""
        instruction = row.get("instruction") or ""
        if not (isinstance(id_, str) and isinstance(title, str) and isinstance(text, str)):
            raise InputError(
                f"{source}:{number}: {columns.id!r}, {columns.title or 'title'!r} and {columns.text!r} must be strings, got {id_!r:.30}, {title!r:.30}, {text!r:.30}"
            )
        yield Record(id_, with_title(title, text), source, number, instruction)


def _columns_read(file: Path, present: list[str]) -> list[str]:
    """The columns of a Parquet file that are read, of those that it has."""
    columns = text_columns(tuple(dict.fromkeys(present)))
    if columns is None:
        raise InputError(
            f"{file}: a Parquet file of texts must have the columns _id (or id) and text, got {', '.join(present)[:80]}"
        )
    return [name for name in columns if name is not None]


def _form_of_tsv(file: Path) -> str:
    """What text with tabs is read as, for the cache: the same bytes may be other texts under another
    name. Nothing for other files.
    """
    if not _is_tsv(file):
        return ""
    return "tsv-3 documents " if file.name.startswith(DOCUMENTS_OF_MS_MARCO) else "tsv-3 "


def _is_tsv(file: Path) -> bool:
    return Form(file).ending == ".tsv"


def _tsv_rows(file: Path) -> Iterator[Row]:
    """The rows of a file ``id<TAB>text``, or with the columns that its first line names; or of MS
    MARCO's documents, ``id<TAB>url<TAB>title<TAB>body``.
    """
    names: Sequence[str] | None = None
    for number, line in numbered_lines(file):
        if names is None:
            names = _names_of_texts(file, number, line.split("\t"))
            if names is not None:
                continue
            is_of_documents = file.name.startswith(DOCUMENTS_OF_MS_MARCO) or _has_addresses(file)
            names = DOCUMENT_COLUMNS if is_of_documents else ID_AND_TEXT
        # What stands behind the id of two columns is the text, tabs too.
        values = line.split("\t", 1 if names is ID_AND_TEXT else -1)
        if len(values) != len(names):
            raise InputError(
                f"{file}:{number}: expected {'<TAB>'.join(names)}, got {len(values)} columns: {line[:60]!r}"
            )
        row = dict(zip(names, values, strict=True))
        yield number, row | {"id": row["id"].strip()}


def _names_of_texts(file: Path, number: int, first: Sequence[str]) -> list[str] | None:
    """The columns of a file whose first line names them, those that are read by what they hold; None
    where that line is a text itself.

    Raises:
        InputError: if the first one names an id, and not one of the others a text.
    """
    names = [value.strip().lower().replace("-", "_") for value in first]
    columns = text_columns(tuple(names))
    begins_with_id = len(names) > 1 and role_of(names[0]) in IDS
    if columns is None:
        if begins_with_id:
            raise InputError(
                f"{file}:{number}: names of columns must be those of an id, one text and perhaps a title ({', '.join(TEXTS_BESIDE_IDS)}), got {'<TAB>'.join(first)[:80]!r}"
            )
        return None
    if begins_with_id:
        columns = columns._replace(id=names[0])
    held_by = dict(zip(columns, TextColumns._fields, strict=True))
    return [held_by.get(name, "" if name in TextColumns._fields else name) for name in names]


def _has_addresses(file: Path) -> bool:
    """Whether most of the first lines have four columns, an address in the second."""
    found = 0
    looked_at = 0
    for _, line in islice(numbered_lines(file), LINES_LOOKED_AT):
        parts = line.split("\t")
        found += len(parts) == len(DOCUMENT_COLUMNS) and parts[1].startswith("http")
        looked_at += 1
    return 2 * found > looked_at


def with_title(title: str, text: str) -> str:
    """A title is part of its text."""
    return f"{title} {text}".strip()
