"""The splits of a data folder, and what their files may be called."""

from pathlib import Path

from ltr.data.files import plain_or_gz
from ltr.errors import InputError

NAMES_OF_SPLIT = {
    "train": ("train",),
    "dev": ("dev", "val", "vali", "valid", "validation"),
    "test": ("test",),
}
SPLITS = tuple(NAMES_OF_SPLIT)


def file_of_split(folder: Path, split: str, suffix: str) -> Path | None:
    """The file of a split, such as ``dev.tsv`` or ``validation.tsv.gz``; None if there is none.

    Raises:
        InputError: if there are files under two of its names, or what has such a name is no file.
    """
    files = []
    for name in NAMES_OF_SPLIT[split]:
        file = plain_or_gz(folder, name + suffix)
        if file is not None:
            files.append(file)
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        raise InputError(f"{folder}: there must be one file of {split}, got {listed}; keep one")
    return files[0] if files else None
