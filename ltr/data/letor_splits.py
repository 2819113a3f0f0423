"""Which files make the splits of a data set of feature vectors."""

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ltr.data.files import exists_as_file, seen_from
from ltr.data.first_bytes import PACKED_ENDINGS
from ltr.data.splits import NAMES_OF_SPLIT
from ltr.data.svmlight import holds_rows
from ltr.entries import parse_json
from ltr.errors import InputError

ALL_NAMES = tuple(chain.from_iterable(NAMES_OF_SPLIT.values()))
# How a file of rows may end, plain or packed.
PLAIN_SUFFIXES = (".txt", ".svm", ".svmlight", ".libsvm", ".letor")
SUFFIXES = tuple(f"{end}{packed}" for packed in ("", *PACKED_ENDINGS) for end in PLAIN_SUFFIXES)
SUFFIXES_TEXT = f"{', '.join(PLAIN_SUFFIXES)} (+ .gz)"  # for errors


def find_splits(path: Path, fold: int | None = None) -> dict[str, list[Path]]:
    """The files of each split of a data folder, by ``train``, ``dev`` and ``test``.

    A fold is one that the data set has, not one of ``ltr.data.cross_validation``. Three layouts
    are known; a file ends in ``.txt``, ``.svm``, ``.svmlight``, ``.libsvm`` or
    ``.letor``, perhaps packed (``.gz``, ``.zst``, ``.bz2``, ``.xz``):

    * files ``train.*``, ``dev.*`` (also ``val.*``, ``vali.*``, ``valid.*``, ``validation.*``) and
      ``test.*``, or sub-folders of these names, whose files are joined in the order of their names;
      or files that end so, as ``rank.train`` and ``rank.test``, where there are no others;
    * folders ``Fold1``, ``Fold2`` … of the first kind, of which ``fold`` chooses one;
    * ``folds.json``, of which ``fold`` chooses an entry, with the files named in it without their
      ends: ``{"Fold1": {"train": ["S1", "S2", "S3"], "vali": ["S4"], "test": ["S5"]}, …}``.

    Raises:
        InputError: if the folder or its files are missing, a split has two sources, or the fold is
            missing, unknown or needless.
    """
    if not path.is_dir():
        raise InputError(f"{path}: there is no such data folder{seen_from(path)}", option="path")
    folds_file = path / "folds.json"
    if exists_as_file(folds_file):
        folds = _read_folds(folds_file)
        name = _name_of_fold(path, list(folds), fold)
        return _splits_named_in_json(folds_file, folds[name])
    folders = [folder.name for folder in path.glob("Fold[0-9]*") if folder.is_dir()]
    if folders:
        return _splits_in_folder(path / _name_of_fold(path, folders, fold))
    if fold is not None:
        raise InputError(
            f"{path}: there are no folds, got fold {fold}; leave fold out", option="fold"
        )
    return _splits_in_folder(path)


def holds_features(path: Path) -> bool:
    """Whether a folder has files of feature vectors, whatever stands in them."""
    if not path.is_dir():
        return False
    if exists_as_file(path / "folds.json") or any(path.glob("Fold[0-9]*")):
        return True
    for name in ALL_NAMES:
        in_folder = [file for file in path.glob(f"{name}/*") if file.name.endswith(SUFFIXES)]
        # Other files end so, too, as top1000.dev.
        ending = [file for file in _files_ending(path, [name]) if holds_rows(file)]
        if in_folder or _files_named(path, name) or ending:
            return True
    return False


def _name_of_fold(path: Path, names: list[str], fold: int | None) -> str:
    """The name of the fold that was asked for, one of those that ``path`` has."""
    name = f"Fold{fold}"
    if name in names:
        return name
    numbers_by_size = sorted(
        (other.removeprefix("Fold") for other in names), key=lambda number: (len(number), number)
    )
    numbers = ", ".join(numbers_by_size)
    if fold is None:
        raise InputError(f"{path}: choose one of the folds {numbers}", option="fold")
    raise InputError(f"{path}: there is no fold {fold}, only {numbers}", option="fold")


def _splits_in_folder(folder: Path) -> dict[str, list[Path]]:
    """The files of each split of a folder that has a file or a sub-folder for each."""
    sources: dict[str, list[Path]] = {}
    for split, names in NAMES_OF_SPLIT.items():
        sources[split] = []
        for name in names:
            if os.path.lexists(folder / name):
                sources[split].append(folder / name)
            sources[split] += _files_named(folder, name)
    has_named = any(sources.values())
    for split, names in NAMES_OF_SPLIT.items():
        if not sources[split]:
            ending = _files_ending(folder, names)
            # Beside files that are named so, run.test may be something else.
            sources[split] = [file for file in ending if not has_named or holds_rows(file)]
    splits = {}
    for split, found in sources.items():
        if len(found) > 1:
            listed = ", ".join(path.name for path in found)
            raise InputError(
                f"{folder}: there must be one source of {split}, got {listed}; keep one"
            )
        if found:
            splits[split] = _files_in(found[0])
    if not splits:
        listed = ", ".join(ALL_NAMES)
        present = sorted(path.name for path in folder.iterdir())
        raise InputError(
            f"{folder}: there must be files or folders named {listed} (files end in {SUFFIXES_TEXT}), folders Fold1, Fold2 … of such, or folds.json; found {present[:8]}"
        )
    return splits


def _files_in(path: Path) -> list[Path]:
    """A file itself, or the files of a sub-folder in the order of their names."""
    if not path.is_dir():
        return [path]
    files = [file for file in path.iterdir() if file.name.endswith(SUFFIXES)]
    if not files:
        raise InputError(
            f"{path}: the folder must hold files that end in {SUFFIXES_TEXT}; there are none"
        )
    return sorted(files)


def _files_named(folder: Path, stem: str) -> list[Path]:
    """The files of a folder that are named so, whatever their suffix."""
    files = []
    for suffix in SUFFIXES:
        file = folder / f"{stem}{suffix}"
        if exists_as_file(file):
            files.append(file)
    return files


def _files_ending(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of a folder that end in one of the names, as ``rank.train``."""
    files = []
    for name in names:
        for packed in ("", *PACKED_ENDINGS):
            found = sorted(folder.glob(f"[!.]*.{name}{packed}"))
            files += [file for file in found if file.is_file()]
    return files


def _read_folds(folds_file: Path) -> dict[str, dict[str, list[str]]]:
    """``folds.json``, checked: by fold and name of a split the files without their suffixes."""
    try:
        folds = parse_json(folds_file.read_bytes())
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{folds_file}:{line}: the file must be JSON ({error})") from None
    if not isinstance(folds, dict) or not folds:
        raise _no_folds(folds_file, "", folds)
    for name, splits in folds.items():
        if not _is_fold(splits):
            raise _no_folds(folds_file, name, splits)
        stems = list(chain.from_iterable(splits.values()))
        for stem in stems:
            if stems.count(stem) > 1:
                raise InputError(
                    f"{folds_file}: a part must stand once in a fold, got {stem!r} twice in {name}"
                )
    return folds


def _no_folds(folds_file: Path, name: str, splits: object) -> InputError:
    return InputError(
        f'{folds_file}: expected {{"Fold1": {{"train": ["S1", …], "vali": […], "test": […]}}, …}}, got {name!r}: {splits!r}'
    )


def _is_fold(splits: object) -> bool:
    """Whether an entry of ``folds.json`` has a list of files for each of its splits."""
    if not isinstance(splits, dict) or not splits or not splits.keys() <= set(ALL_NAMES):
        return False
    return all(isinstance(stems, list) and stems for stems in splits.values())


def _splits_named_in_json(
    folds_file: Path, stems_of_name: dict[str, list[str]]
) -> dict[str, list[Path]]:
    """The files of each split of a fold that ``folds.json`` names."""
    splits = {}
    for split, names in NAMES_OF_SPLIT.items():
        given = [name for name in names if name in stems_of_name]
        if len(given) > 1:
            raise InputError(
                f"{folds_file}: a split must stand once in a fold, got {' and '.join(given)}, which are one; leave one out"
            )
        if given:
            splits[split] = [_the_file_named(folds_file, stem) for stem in stems_of_name[given[0]]]
    return splits


def _the_file_named(folds_file: Path, stem: str) -> Path:
    files = _files_named(folds_file.parent, stem)
    if len(files) != 1:
        listed = ", ".join(file.name for file in files) or "none"
        raise InputError(
            f"{folds_file}: there must be one file {stem} with the end {SUFFIXES_TEXT}, got {listed}"
        )
    return files[0]
