"""Files of texts with ids: JSON lines, Parquet, text with tabs, and folders of such files."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from ltr.data.files import digest_of, exists_as_file, numbered_lines
from ltr.data.first_bytes import PACKED_ENDINGS, kind_of_file, unpacked_name
from ltr.data.named_rows import Row, read_rows
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
# What columns with texts are called in a first line of names, in small letters
# and with _ for -.
NAMES_OF_ID = (
    *("id", "_id", "qid", "query_id", "queryid", "pid", "docid", "doc_id", "corpus_id"),
    *("document_id", "passage_id"),
)
NAMES_OF_TEXT = ("text", "body", "passage", "document", "doc", "query", "question", "contents")
COLUMNS_OF_TEXTS = {
    **dict.fromkeys(NAMES_OF_ID, "id"),
    **dict.fromkeys((*NAMES_OF_TEXT, "content", "abstract"), "text"),
    "title": "title",
}
DOCUMENTS_OF_MS_MARCO = "msmarco-docs"  # how the names of files with DOCUMENT_COLUMNS begin
LINES_LOOKED_AT = 100  # that say whether other files have these


def find_texts(folder: Path, name: str) -> Path | None:
    """The texts of this name in a data folder: ``name.jsonl`` or ``name.tsv`` (plain or packed),
    ``name.parquet``, or the folder ``name`` of such files; None if there are none.

    Raises:
        InputError: if a file's name is that of something else, or there are texts of two kinds.
    """
    present = [path for ending in ENDINGS if exists_as_file(path := folder / f"{name}{ending}")]
    if (folder / name).is_dir():
        present.append(folder / name)
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
    content = f"{_form_of_tsv(path)}{digest_of(path)}"
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
    digests = [f"{_ending(file)} {_form_of_tsv(file)}{digest_of(file)}" for file in files]
    content = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    records = (record for file in files for record in _records(file))
    return TextTable.open(f"folder-1 {content}", records, kind, source, leave_out_empty=True)


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
    ``instruction`` of a query.
    """
    source = str(file)
    rows = _tsv_rows(file) if _is_tsv(file) else read_rows(file, partial(_columns_read, file))
    for number, row in rows:
        name_of_id = "_id" if "_id" in row else "id"
        if name_of_id not in row or "text" not in row:
            line = json.dumps(row, ensure_ascii=False, default=str)
            raise InputError(
                f"{source}:{number}: a line must be an object with '_id' and 'text', got {line[:60]!r}"
            )
        id_ = row[name_of_id]
        title = row.get("title") or ""
        text = "" if row["text"] is None else row["text"]
        instruction = row.get("instruction") or ""
        if not (isinstance(id_, str) and isinstance(title, str) and isinstance(text, str)):
            raise InputError(
                f"{source}:{number}: '{name_of_id}', 'title' and 'text' must be strings, got {id_!r:.30}, {title!r:.30}, {text!r:.30}"
            )
        yield Record(id_, with_title(title, text), source, number, instruction)


def _columns_read(file: Path, present: list[str]) -> list[str]:
    """The columns of a Parquet file that are read, of those that it has."""
    names = ["_id" if "_id" in present else "id", "text"]
    if not set(names) <= set(present):
        raise InputError(
            f"{file}: a Parquet file of texts must have the columns _id (or id) and text, got {', '.join(present)[:80]}"
        )
    return names + [name for name in ("title", "instruction") if name in present]


def _form_of_tsv(file: Path) -> str:
    """What text with tabs is read as, for the cache: the same bytes may be other texts under another
    name. Nothing for other files.
    """
    if not _is_tsv(file):
        return ""
    return "tsv-2 documents " if file.name.startswith(DOCUMENTS_OF_MS_MARCO) else "tsv-2 "


def _is_tsv(file: Path) -> bool:
    return unpacked_name(file.name.lower()).endswith(".tsv") and kind_of_file(file) != "Parquet"


def _tsv_rows(file: Path) -> Iterator[Row]:
    """The rows of a file ``id<TAB>text``, or with the columns that its first line names, of ``id``,
    ``text`` and ``title``; or of MS MARCO's documents, ``id<TAB>url<TAB>title<TAB>body``.
    """
    source = str(file)
    columns: Sequence[str] | None = None
    for number, line in numbered_lines(file):
        if columns is None:
            columns, is_header = _columns_of_texts(file, number, line.split("\t"))
            if is_header:
                continue
        # What stands behind the id of two columns is the text, tabs too.
        values = line.split("\t", 1 if columns == ID_AND_TEXT else -1)
        if len(values) != len(columns):
            raise InputError(
                f"{source}:{number}: expected {'<TAB>'.join(columns)}, got {len(values)} columns: {line[:60]!r}"
            )
        yield number, dict(zip(columns, values, strict=True)) | {"id": values[0].strip()}


def _columns_of_texts(file: Path, number: int, first: Sequence[str]) -> tuple[Sequence[str], bool]:
    """The columns of a file whose first line has these values, and whether they are their names.

    Raises:
        InputError: if the first one names an id, and not one of the others a text.
    """
    names = [COLUMNS_OF_TEXTS.get(value.strip().lower().replace("-", "_"), "") for value in first]
    if names[0] == "id" and len(names) > 1:
        if names.count("text") != 1:
            raise InputError(
                f"{file}:{number}: names of columns must be those of an id, one text and perhaps a title ({', '.join(COLUMNS_OF_TEXTS)}), got {'<TAB>'.join(first)[:80]!r}"
            )
        return names, True
    is_of_documents = file.name.startswith(DOCUMENTS_OF_MS_MARCO) or _has_addresses(file)
    return DOCUMENT_COLUMNS if is_of_documents else ID_AND_TEXT, False


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
