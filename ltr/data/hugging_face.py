"""Data sets of Hugging Face's hub, and those that its ``datasets`` has saved to disk."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ltr.data.files import exists_as_file
from ltr.data.named_rows import Row, classes_of, value_of_class
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
    splits = _names_of_splits(names, str(folder))
    return {split: _files_of(folder / name) for split, name in splits.items()}


def open_data_set(source: str) -> tuple[str, dict[str, dict[str, Callable[[], Iterator[Row]]]]]:
    """A data set of the hub: a text that names its content, and its rows by split and by the name
    under which errors speak of them. They are streamed, and numbered from 1.

    Args:
        source: ``datasets:ORG/NAME``, or ``datasets:ORG/NAME:CONFIG``.

    Raises:
        InputError: without the package ``datasets``, or a network; if there is no such data set, or no
            split has a name that is read.
    """
    try:
        import datasets
    except ImportError:
        raise InputError(f"{source} needs the package datasets: pip install datasets") from None
    name, _, config = source.removeprefix("datasets:").partition(":")
    try:
        builder = datasets.load_dataset_builder(name, config or None)
        streams: Mapping[str, Any] = builder.as_streaming_dataset()
    except Exception as error:  # of the hub, the network, and each library below
        raise InputError(
            f"{source}: the data set can't be opened ({_in_short(error)}); see its page on the hub for its name and its configurations"
        ) from None
    # Addresses have the revision in them, local files their times.
    content = [builder.config_id, builder.hash]
    for split, files in (builder.config.data_files or {}).items():
        content += [split, *files, files.origin_metadata]
    rows: dict[str, dict[str, Callable[[], Iterator[Row]]]] = {}
    for split, name_of_split in _names_of_splits(list(streams), source).items():
        where = f"{source} {name_of_split}"
        stream = streams[name_of_split]
        classes = classes_of(stream.features.to_dict() if stream.features else {})
        rows[split] = {where: partial(_rows_of_stream, stream, where, classes)}
    return f"datasets-1 {content}", rows


def _rows_of_stream(
    stream: Iterable[dict[str, Any]], where: str, classes: Mapping[str, Sequence[Any]]
) -> Iterator[Row]:
    rows = iter(stream)
    number = 0
    while True:
        number += 1
        try:
            row = next(rows, None)
        except Exception as error:  # of the network, and each library below
            raise InputError(
                f"{where}:{number}: rows can't be read here or further on ({_in_short(error)})"
            ) from None
        if row is None:
            return
        named = {name: value_of_class(row.get(name), classes[name]) for name in classes}
        yield number, {**row, **named}


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _names_of_splits(names: list[str], where: str) -> dict[str, str]:
    """The splits that are read, each with its own name in a data set. The others are said."""
    by_split: dict[str, str] = {}
    others = []
    for name in names:
        split = split_named(name)
        if split not in SPLITS:
            others.append(name)
        elif split in by_split:
            raise InputError(f"{where}: there must be one split {split}, got {', '.join(names)}")
        else:
            by_split[split] = name
    if not by_split:
        raise InputError(
            f"{where}: there must be a split {', '.join(SPLITS)}, got {', '.join(names)}"
        )
    if others:
        log.warning("%s: not read are the splits %s", where, ", ".join(others))
    return {split: by_split[split] for split in SPLITS if split in by_split}


def _files_of(folder: Path) -> list[Path]:
    """The Arrow files of a data set, as its state names them."""
    state = folder / "state.json"
    try:
        files = [folder / entry["filename"] for entry in read_json(state, MEND)["_data_files"]]
    except (KeyError, TypeError):
        raise InputError(f"{state}: it must name the files of the data set; {MEND}") from None
    for file in files:
        if not exists_as_file(file):
            raise InputError(f"{file}: there is no such file, and {state.name} names it; {MEND}")
    if not files:
        raise InputError(f"{folder}: the split is empty; at least one row is needed")
    return files
