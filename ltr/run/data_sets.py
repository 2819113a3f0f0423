"""Data sets that a run is measured on beside its own, by name, and suites of them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ltr.data.files import HUBS
from ltr.data.first_bytes import unpacked_name
from ltr.data.splits import check_plain_name
from ltr.errors import InputError, local_path
from ltr.run.yaml_files import read_yaml

SUITE = "suite:"
SHIPPED = Path(__file__).parent / "suites"


class DataSet(NamedTuple):
    """A data set that a run is measured on.

    Attributes:
        name: of the folder of its results, and of its row in a table.
        path: as ``data.path`` names it.
    """

    name: str
    path: str


def data_sets(words: Sequence[str], option: str) -> list[DataSet]:
    """The data sets that the words name; whether they are there is not looked at.

    Args:
        words: paths as of ``data.path``, named by their last parts; or suites: ``suite:NAME`` of a
            suite that ships with ltr, ``suite:FILE`` of a YAML file with a line ``name: path`` for
            each set, or ``suite:FOLDER`` of a folder of data folders. Paths in a file count from
            its folder.
        option: that has the words, for errors.

    Raises:
        InputError: for a suite that is not there or holds no set, a name that can't be that of a
            folder, or two sets of one name.
    """
    sets: list[DataSet] = []
    for word in words:
        if word.startswith(SUITE):
            sets += _sets_of_suite(word.removeprefix(SUITE), option)
        else:
            local_path(option, word)
            sets.append(DataSet(_name_of(word), word))
    path_of: dict[str, str] = {}
    for name, path in sets:
        mend = f" ({path}); name it in a file: {SUITE}FILE"
        check_plain_name(name, f"{option}: the name of a data set", mend=mend)
        if name in path_of:
            raise InputError(
                f"{option}: data sets must have names of their own, got {name!r} of {path_of[name]} and of {path}; name them in a file, {SUITE}FILE with lines name: path"
            )
        path_of[name] = path
    return sets


def _name_of(path: str) -> str:
    """The last part of a path without the suffixes of a file; the whole name of a set of a hub."""
    if path.startswith(HUBS):
        return path.partition(":")[2].replace("/", "-").replace(":", "-")
    return unpacked_name(Path(path).absolute().resolve().name).removesuffix(".tsv")


def _sets_of_suite(name: str, option: str) -> Iterable[DataSet]:
    path = Path(name)
    if name and path.is_dir():
        return _sets_of_folder(path, option)
    shipped = SHIPPED / f"{name}.yaml"
    if name == path.name and not path.is_file() and shipped.is_file():
        path = shipped
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml")))
        raise InputError(
            f"{option}: a suite must be one of {known}, a YAML file, or a folder of data folders, got {SUITE}{name}"
        )
    return _sets_of_file(path)


def _sets_of_folder(folder: Path, option: str) -> list[DataSet]:
    folders = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    sets = [DataSet(entry.name, str(entry)) for entry in folders if entry.name[0] != "."]
    if not sets:
        raise InputError(f"{option}: {SUITE}{folder} must hold data folders, and holds none")
    return sets


def _sets_of_file(file: Path) -> Iterator[DataSet]:
    sets = read_yaml(file, "a suite")
    if not sets:
        raise InputError(f"{file}: a suite must have a line name: path for each set, and has none")
    # read_yaml promises keys that are texts, YAML does not: checked here.
    for name, path in dict[Any, Any](sets).items():
        if not isinstance(name, str) or not isinstance(path, str) or not path:
            raise InputError(
                f"{file}: a line of a suite must be name: path, two texts, got {name!r}: {path!r}"
            )
        if path.startswith(HUBS):
            yield DataSet(name, path)
            continue
        local_path(f"{file}: {name}", path)
        yield DataSet(name, str(file.parent / path))
