"""An artefact: a folder of arrays with a manifest, made of a collection and kept.

It is whole or absent, and bound to its collection by the digests of queries and documents. Its
manifest says of which kind it is: hard negatives, scores of a teacher, or what an audit of
negatives has found (an overlay).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import folder_once, read_array, write_folder
from ltr.errors import InputError

MANIFEST = "manifest.json"
Kind = Literal["negatives", "scores", "overlay"]


class Artefact(NamedTuple):
    """An opened artefact: its arrays, mapped from their files, and its manifest."""

    arrays: dict[str, np.ndarray]
    manifest: dict[str, Any]


@dataclass(frozen=True)
class ArtefactKind:
    """A kind of artefact: how those of the kind are written and opened.

    Args:
        kind: its name in the manifest.
        arrays: the names of its arrays.
        must_be: what a folder must be to be opened as one, for errors.
        again: how to make a new one, for errors.
    """

    kind: Kind
    arrays: tuple[str, ...]
    must_be: str
    again: str

    def write(
        self,
        folder: Path,
        collection: Collection,
        arrays: Mapping[str, np.ndarray],
        manifest: Mapping[str, Any],
        *,
        once: bool = True,
    ) -> None:
        """Write an artefact, whole or not at all.

        Args:
            folder: where.
            collection: the one that it was made of.
            arrays, manifest: what it holds.
            once: keep an artefact that is there already and write nothing, as several processes may
                write the same; without it, a folder with anything in it is an OSError.

        Raises:
            InputError: with ``once``, if something else than such an artefact is there.
        """
        assert set(arrays) == set(self.arrays)
        own_entries = {"kind": self.kind, **_binding_to(collection)}
        # Last, too: the manifest may be one that was opened, and name another collection.
        full_manifest = {**own_entries, **manifest, **own_entries}

        def build(temporary: Path) -> None:
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array)
            text = json.dumps(full_manifest, indent=1) + "\n"
            (temporary / MANIFEST).write_text(text, encoding="utf-8")

        if once:
            if folder.exists() and kind_of(folder) != self.kind:
                raise InputError(
                    f"{folder}: expected a new folder, or one with {self.kind}, found something else; remove it, or take another"
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
                another collection.
        """
        manifest = self.manifest(folder, option)
        for name, key in _binding_to(collection).items():
            if manifest.get(name) != key:
                raise InputError(
                    f"{folder}: these {self.kind} were made of another collection than {collection.source}; {self.again}",
                    option=option,
                )
        arrays: dict[str, np.ndarray] = {}
        for name in self.arrays:
            arrays[name] = read_array(folder / f"{name}.npy")
        return Artefact(arrays, manifest)

    def manifest(self, folder: Path, option: str | None = None) -> dict[str, Any]:
        """The manifest of a folder; an InputError if it holds no such artefact."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise ValueError(f"{MANIFEST} must be one JSON object")
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"{folder}: {self.kind} must be {self.must_be} ({error})", option=option
            ) from None
        kind = manifest.get("kind")
        if kind != self.kind:
            raise InputError(
                f"{folder}: {self.kind} must be {self.must_be}, got a folder of {kind}",
                option=option,
            )
        return manifest


def kind_of(folder: Path) -> Kind | None:
    """The kind of the artefact in a folder; None where there is none."""
    kind: Kind | None = _manifest_or_empty(folder).get("kind")
    return kind


def key_of(folder: Path) -> str | None:
    """The ``key`` of the artefact in a folder, a digest of all that decides it; None where there
    is none.
    """
    key: str | None = _manifest_or_empty(folder).get("key")
    return key


def _manifest_or_empty(folder: Path) -> dict[str, Any]:
    """The manifest in a folder, of whatever kind; empty where there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _binding_to(collection: Collection) -> dict[str, str]:
    """The entries of a manifest that bind an artefact to its collection."""
    return {"corpus": collection.corpus.key, "queries": collection.queries.key}
