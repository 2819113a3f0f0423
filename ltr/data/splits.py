"""The splits of a data folder, and what their files may be called."""

from pathlib import Path

from ltr.data.files import plain_or_gz
from ltr.data.outputs import PLAIN_NAME, check_plain_name
from ltr.errors import InputError

# Those that training and evaluation read unasked, and how their files may be called.
NAMES_OF_SPLIT = {
    "train": ("train",),
    "dev": ("dev", "val", "vali", "valid", "validation"),
    "test": ("test",),
}
SPLITS = tuple(NAMES_OF_SPLIT)


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


def whole_of(split: str) -> str | None:
    """The split that another one is a part of, by its name: up to the last dot; None without one.

    >>> whole_of("test.clean"), whole_of("test")
    ('test', None)
    """
    return split.rpartition(".")[0] or None


def splits_in(folder: Path) -> list[str]:
    """The splits that have a file NAME.tsv[.gz] in a folder, ``train``, ``dev`` and ``test`` first."""
    splits = set()
    for file in folder.glob("*.tsv*"):
        name, _, suffix = file.name.rpartition(".tsv")
        if suffix in ("", ".gz") and PLAIN_NAME.fullmatch(name):
            splits.add(split_named(name))
    others = sorted(splits.difference(SPLITS))
    return [split for split in SPLITS if split in splits] + others


def file_of_split(folder: Path, split: str, suffix: str) -> Path | None:
    """The file of a split, such as ``dev.tsv``, ``validation.tsv.gz`` or ``test.clean.tsv``; None if
    there is none.

    Raises:
        InputError: if there are files under two of its names, or what has such a name is no file.
    """
    files = []
    for name in NAMES_OF_SPLIT.get(split, (split,)):
        file = plain_or_gz(folder, name + suffix)
        if file is not None:
            files.append(file)
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        raise InputError(f"{folder}: there must be one file of {split}, got {listed}; keep one")
    return files[0] if files else None
