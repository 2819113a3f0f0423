"""Data sets that Hugging Face's ``datasets`` has saved to disk."""

import logging
from pathlib import Path

from ltr.data.splits import SPLITS, split_named
from ltr.entries import read_json
from ltr.errors import InputError

log = logging.getLogger(__name__)

MEND = "save the data set again"


def saved_files_by_split(folder: Path) -> dict[str, list[Path]]:
    """The Arrow files of what ``save_to_disk`` has written, by split; a data set without splits is a
    training split. Empty for another folder.

    Raises:
        InputError: if a file that it names is missing or damaged; if no split has a name that is
            read.
    """
    if not (folder / "dataset_dict.json").is_file():
        return {"train": _files_of(folder)} if (folder / "state.json").is_file() else {}
    names = read_json(folder / "dataset_dict.json", MEND).get("splits")
    if not isinstance(names, list):
        raise InputError(f"{folder / 'dataset_dict.json'}: it must name the splits; {MEND}")
    by_split: dict[str, list[Path]] = {}
    others = []
    for name in names:
        split = split_named(name)
        if split not in SPLITS:
            others.append(name)
        elif split in by_split:
            raise InputError(f"{folder}: there must be one split {split}, got {', '.join(names)}")
        else:
            by_split[split] = _files_of(folder / name)
    if not by_split:
        raise InputError(
            f"{folder}: there must be a split {', '.join(SPLITS)}, got {', '.join(names)}; rename one, or take the folder of one split"
        )
    if others:
        log.warning("%s: not read are the splits %s", folder, ", ".join(others))
    return {split: by_split[split] for split in SPLITS if split in by_split}


def _files_of(folder: Path) -> list[Path]:
    """The Arrow files of a data set, as its state names them."""
    state = folder / "state.json"
    try:
        return [folder / entry["filename"] for entry in read_json(state, MEND)["_data_files"]]
    except (KeyError, TypeError):
        raise InputError(f"{state}: it must name the files of the data set; {MEND}") from None
