"""An artefact: a folder of arrays with a manifest, made of a collection and kept.

It is whole or absent, and bound to its collection by the digests of queries and documents, and to
its arrays by one of these. Its manifest says of which kind it is: hard negatives, scores of a
teacher, or what an audit of negatives has found (an overlay).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import digest_of_arrays, map_given_array, seen_from
from ltr.data.whole_files import folder_once, write_folder
from ltr.entries import check_entries, read_json
from ltr.errors import InputError, local_path

MANIFEST = "manifest.json"
ArtefactName = Literal["negatives", "scores", "overlay"]


class Artefact(NamedTuple):
    """An opened artefact: its arrays, mapped from their files, and its manifest."""

    arrays: dict[str, np.ndarray]
    manifest: dict[str, Any]


@dataclass(frozen=True)
class ArtefactKind:
    """A kind of artefact: how those of the kind are written and opened.

    Args:
        name: in the manifest, there called ``kind``.
        arrays: the names of its arrays.
        manifest_type: a ``TypedDict`` of those entries of its manifest that are read.
        must_be: what a folder must be to be opened as one, for errors.
        mend: what to do to get a new one, for errors.
    """

    name: ArtefactName
    arrays: tuple[str, ...]
    manifest_type: type
    must_be: str
    mend: str

    def write(
        self,
        folder: Path,
        collection: Collection,
        arrays: Mapping[str, np.ndarray],
        manifest: Mapping[str, Any],
        *,
        keep_existing: bool = True,
    ) -> None:
        """Write an artefact, whole or not at all.

        Args:
            folder: where.
            collection: the one that it was made of.
            arrays, manifest: what it holds.
            keep_existing: keep an artefact that is there already and write nothing, as several
                processes may write the same; without it, a folder with anything in it is an
                OSError.

        Raises:
            InputError: with ``keep_existing``, if something else than such an artefact is there.
        """
        assert set(arrays) == set(self.arrays)
        digest = self._digest(arrays)
        own_entries = {"kind": self.name, **_binding_to(collection), "digest": digest}
        # First for their place in the file. Last, too: the manifest may be one that was opened, and
        # name another collection.
        full_manifest = {**own_entries, **manifest, **own_entries}

        def build(temporary: Path) -> None:
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array)
            text = json.dumps(full_manifest, indent=1) + "\n"
            (temporary / MANIFEST).write_text(text, encoding="utf-8")

        if keep_existing:
            if folder.exists() and name_in(folder) != self.name:
                raise InputError(
                    f"{folder}: expected a new folder, or one with {self.name}, found something else; remove it, or take another"
                )
            folder_once(folder, build)
        else:
            write_folder(folder, build)

    def open(self, folder: Path, collection: Collection, option: str | None = None) -> Artefact:
        """Map an artefact.

        Args:
            folder: where it is.
            collection: the one that it must have been made of.
            option: the option that names the folder, for errors.

        Raises:
            InputError: if the folder holds no artefact, or one of another kind, damaged, or made of
                another collection; also if its arrays have changed since. A folder that another
                program has made need not have a digest of them.
        """
        manifest = self.manifest(folder, option)
        for name, key in _binding_to(collection).items():
            if manifest.get(name) != key:
                raise InputError(
                    f"{folder}: these {self.name} were made of another collection than {collection.source}; {self.mend}",
                    option=option,
                )
        arrays: dict[str, np.ndarray] = {}
        for name in self.arrays:
            arrays[name] = map_given_array(folder / f"{name}.npy")
        if "digest" in manifest and manifest["digest"] != self._digest(arrays):
            raise InputError(
                f"{folder}: the arrays must be those that {MANIFEST} was written with, and have changed since; remove the folder, and {self.mend}",
                option=option,
            )
        return Artefact(arrays, manifest)

    def manifest(self, folder: Path, option: str | None = None) -> dict[str, Any]:
        """The manifest of a folder; an InputError if it holds no such artefact, or is damaged."""
        local_path(option or self.name, folder)
        file = folder / MANIFEST
        if not file.is_file():
            raise InputError(
                f"{folder}: {self.name} must be {self.must_be}, and there is no {MANIFEST}{seen_from(folder)}",
                option=option,
            )
        manifest = read_json(file, self.mend, option)
        name = manifest.get("kind")
        if name != self.name:
            holds = f"a folder of {name}" if isinstance(name, str) else f"a {MANIFEST} of no kind"
            raise InputError(
                f"{folder}: {self.name} must be {self.must_be}, got {holds}",
                option=option,
            )
        check_entries(manifest, self.manifest_type, file, self.mend, option=option)
        return manifest

    def _digest(self, arrays: Mapping[str, np.ndarray]) -> str:
        """A digest of the values of the arrays."""
        return digest_of_arrays(*(arrays[name] for name in self.arrays))


def name_in(folder: Path) -> ArtefactName | None:
    """The name of the kind of the artefact in a folder; None where there is none."""
    name: ArtefactName | None = _manifest_or_empty(folder).get("kind")
    return name


def key_of(folder: Path) -> str | None:
    """The entry ``key`` of the manifest in a folder: by it, whoever wrote negatives finds them again.
    None where there is none.
    """
    key: str | None = _manifest_or_empty(folder).get("key")
    return key


def _manifest_or_empty(folder: Path) -> dict[str, Any]:
    """The manifest in a folder, of whatever kind; empty where there is none that can be read."""
    try:
        return read_json(folder / MANIFEST, mend="")
    except InputError:
        return {}


def _binding_to(collection: Collection) -> dict[str, str]:
    """The entries of a manifest that bind an artefact to its collection."""
    return {"corpus": collection.corpus.key, "queries": collection.queries.key}
