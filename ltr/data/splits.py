"""The splits of a data folder, and what they, sources and data sets may be called."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ltr.data.files import exists_as_file, plain_or_packed
from ltr.data.first_bytes import PACKED_ENDINGS
from ltr.data.forms import Form
from ltr.errors import InputError

# Those that training and evaluation read unasked, and how their files may be called.
NAMES_OF_SPLIT = {
    "train": ("train",),
    "dev": ("dev", "val", "vali", "valid", "validation"),
    "test": ("test",),
}
SPLITS = tuple(NAMES_OF_SPLIT)

PLAIN_NAME = re.compile(r"\w[\w.+-]*")  # what may name a folder of results on every disk
PART_OF_FILE = re.compile(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<of>\d+)")
LONGEST_NAME = 200  # bytes: a file has an ending, too


def check_plain_name(name: str, what: str, option: str | None = None, mend: str = "") -> None:
    """Raise an InputError for what can't name a split, a source or a data set: folders, metrics and
    columns of tables are called so.

    Args:
        name: the name.
        what: what it names, such as ``path[1]: name``.
        option: that has it.
        mend: what else to do, for the error.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise InputError(
            f"{what} must be letters, digits, and . _ + - between them, since folders are called so, got {name!r}{mend}",
            option=option,
        )
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise InputError(
            f"{what} must have at most {LONGEST_NAME} bytes, since files are called so, got {name[:40]!r}…",
            option=option,
        )


def split_named(name: str, option: str | None = None) -> str:
    """The split that a name means.

    Args:
        name: any that a file may have; ``validation`` and the like mean ``dev``.
        option: that has the name, for errors.

    Raises:
        InputError: for what is no plain name of a file.
    """
    for split, names in NAMES_OF_SPLIT.items():
        if name in names:
            return split
    check_plain_name(name, "the name of a split", option)
    return name


def parent_split(split: str) -> str | None:
    """The split that another one is a part of, by its name: up to the last dot; None without one.

    >>> parent_split("test.clean"), parent_split("test")
    ('test', None)
    """
    return split.rpartition(".")[0] or None


def file_of_split(folder: Path, split: str, suffix: str) -> Path | None:
    """The file of a split, such as ``dev.tsv``, ``validation.tsv.gz`` or ``test.clean.tsv``; None if
    there is none.

    Raises:
        InputError: if there are files under two of its names, or what has such a name is no file.
    """
    files = []
    for name in NAMES_OF_SPLIT.get(split, (split,)):
        file = plain_or_packed(folder, name + suffix)
        if file is not None:
            files.append(file)
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        raise InputError(f"{folder}: there must be one file of {split}, got {listed}; keep one")
    return files[0] if files else None


def lacking_parts(files: Sequence[Path]) -> str:
    """What is to be said of files that are parts, as ``test-00000-of-00002.jsonl``, where others of
    them are not there; nothing where all are.
    """
    found: dict[tuple[str, str], list[re.Match[str]]] = {}
    for file in files:
        if part := PART_OF_FILE.match(file.name):
            found.setdefault((part["stem"], part["of"]), []).append(part)
    for (stem, of), parts in found.items():
        numbers = {int(part["number"]) for part in parts}
        lowest = 1 if int(of) in numbers else 0  # most count from 0
        absent = [each for each in range(lowest, lowest + int(of)) if each not in numbers]
        if absent:
            first = f"{stem}-{absent[0]:0{len(of)}}-of-{of}"
            n_others = len(absent) - 1
            others = f" and {n_others} more" if n_others else ""
            return f"there must be {int(of)} parts, as {parts[0].string} says, got {len(numbers)}; fetch the others ({first}{others})"
    return ""


def row_files_of_split(folder: Path, split: str) -> list[Path]:
    """The files of rows of a split, such as ``train.jsonl``, ``dev.csv``, or the shards
    ``train-00000-of-00002.parquet`` and ``train-00001-of-00002.parquet``, in the order of their names.

    Raises:
        InputError: if there are files under two of its names, of two endings, or both a whole file
            and shards; for shards that are not all there.
    """
    names = "|".join(NAMES_OF_SPLIT[split])
    form = re.compile(rf"({names})(?:[-_.]?(\d+)(?:-of-(\d+)(?:-[0-9a-f]{{16}})?)?)?(\.[^\d].*)")
    files = {}
    for file in sorted(folder.iterdir()):
        found = form.fullmatch(file.name)
        if found and not _is_packed_self(file) and Form(file).has_rows and exists_as_file(file):
            files[file] = found
    kinds = {(found[1], found[2] is None, found[3], found[4]) for found in files.values()}
    wholes = [file for file, found in files.items() if found[2] is None]
    if len(kinds) > 1 or len(wholes) > 1:
        listed = ", ".join(file.name for file in files)
        raise InputError(
            f"{folder}: {split} must be one file, or shards of one name, got {listed[:200]}; keep one kind"
        )
    for found in files.values():
        if found[3] is not None and len(files) != int(found[3]):
            raise InputError(
                f"{folder}: {split} must have {int(found[3])} shards, as {found[0]} says, got {len(files)}; fetch the others"
            )
    return list(files)


def _is_packed_self(file: Path) -> bool:
    """Whether the file lies packed beside its plain self, which is the one that is read."""
    plain = file.with_suffix("")
    return file.suffix.lower() in PACKED_ENDINGS and plain.is_file()


def text_files_in(folder: Path) -> list[Path]:
    """All files of rows or of lines with tabs in a folder, read or not, but for the packed selves of
    plain ones.
    """
    files = []
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        form = Form(file)
        is_text = form.has_rows or form.ending == ".tsv"
        if is_text and file.is_file() and not _is_packed_self(file):
            files.append(file)
    return files
