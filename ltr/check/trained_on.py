"""Other data that a ranker was trained on: folders that are named, and data sets of a model card."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ltr.data.collection import Collection, open_collection
from ltr.errors import InputError

CARD = "README.md"


def open_trained_on(
    paths: Sequence[str], backbone: Path | None = None, checked: str | None = None
) -> tuple[list[tuple[str, Collection]], list[str]]:
    """Open the data that a ranker was trained on beside its own.

    Args:
        paths: collections with a split ``train``.
        backbone: the folder of the encoder, whose model card may name data sets.
        checked: the path of the data that is checked.

    Returns:
        The collections with their names, and the names that the model card has of data sets that are
        not here.

    Raises:
        InputError: for a path that is no collection, has no split ``train``, or stands there twice.
    """
    collections = []
    taken = set() if checked is None else {Path(checked).resolve()}
    for path in paths:
        place = Path(path).resolve()
        if place in taken:
            raise InputError(
                f"{path}: other data that was trained on must be named once, and not be the data that is checked, all of which would leak; leave it out",
                option="trained_on",
            )
        taken.add(place)
        collection = open_collection(path)
        if "train" not in collection.qrels:
            raise InputError(
                f"{path}: data that was trained on must have a split train, got {', '.join(collection.qrels)}",
                option="trained_on",
            )
        collections.append((path, collection))
    absent: list[str] = []
    if backbone is None:
        return collections, absent
    for name in data_sets_of_card(backbone / CARD):
        if name in paths:
            continue
        here = _collection_here(name)
        if here is None:
            absent.append(name)
        elif Path(name).resolve() not in taken:  # the data that is checked has its own train
            taken.add(Path(name).resolve())
            collections.append((name, here))
    return collections, absent


def _collection_here(name: str) -> Collection | None:
    """The data folder of this name, if there is one that can be trained on: a card means data of
    a hub, so anything else that happens to have its name is no error.
    """
    try:
        if not Path(name).exists():
            return None
        collection = open_collection(name)
    except (InputError, OSError, ValueError):  # such as a name that no file system takes
        return None
    return collection if "train" in collection.qrels else None


def data_sets_of_card(card: Path) -> list[str]:
    """What the front matter of a model card names under ``datasets``; nothing where there is no card
    or no such entry, or it is not YAML.
    """
    if not card.is_file():
        return []
    text = card.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---"):
        return []
    front, end, _ = text[3:].partition("\n---")
    try:
        entries: Any = yaml.safe_load(front) if end else None
    except (yaml.YAMLError, RecursionError, ValueError):  # a card is a stranger's
        return []
    named = entries.get("datasets") if isinstance(entries, dict) else None
    if isinstance(named, str):
        named = [named]
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
