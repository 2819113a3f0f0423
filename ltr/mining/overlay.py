"""What an audit decides about mined negatives: an overlay beside their folder, which training reads in its place."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ltr.data.collection import Collection
from ltr.data.files import read_array, write_folder
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.mining.negatives import MinedNegatives

Policy = Literal["drop", "relabel", "soft"]
ARRAYS = ("query_rows", "doc_rows", "scores", "labels")


class Overlay(NamedTuple):
    """Likely false negatives, and what training does with them: leave them out, take them for relevant, or label them softly."""

    policy: Policy
    labels: QueryLists  # of the documents: NaN (drop), a grade (relabel), or a number above 0 and below 1 (soft)

    @property
    def judgements(self) -> QueryLists:
        """What is then known of these documents: the grade of those that are relabelled; 0 for others, which no row brings in."""
        return self.labels if self.policy == "relabel" else self.labels._replace(values=np.zeros_like(self.labels.values))

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether a folder is an overlay."""
        return (folder / "overlay.json").is_file()

    @classmethod
    def open(cls, folder: Path, collection: Collection) -> "Overlay":
        """Read an overlay; an InputError if it is damaged, or its negatives have gone or changed."""
        try:
            manifest = json.loads((folder / "overlay.json").read_text())
            base, policy, content = (manifest[name] for name in ("base", "policy", "content"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder}: overlay.json can't be read ({error}); audit the negatives again") from None
        if MinedNegatives.open(folder.parent / base, collection).lists().digest() != content:
            raise InputError(f"{folder}: the negatives in {folder.parent / base} have changed since; audit them again")
        query_rows, doc_rows, labels = (read_array(folder / f"{name}.npy") for name in ("query_rows", "doc_rows", "labels"))
        if not len(query_rows) == len(doc_rows) == len(labels):
            came = f"{len(query_rows)}, {len(doc_rows)} and {len(labels)} entries"
            raise InputError(f"{folder}: query_rows, doc_rows and labels must be as long, got {came}; audit the negatives again")
        return cls(policy, QueryLists.from_rows(query_rows, doc_rows, labels))


def negatives_in(folder: Path) -> Path:
    """The folder of the negatives: that which an overlay lies beside, or this one."""
    return folder.parent / json.loads((folder / "overlay.json").read_text())["base"] if Overlay.is_at(folder) else folder


def save_overlay(base: Path, manifest: dict[str, Any], **arrays: np.ndarray) -> Path:
    """Write the arrays ``query_rows``, ``doc_rows``, ``scores`` and ``labels``, ``[S]`` each, whole or not at all.

    Args:
        base: the folder of the negatives, which stays as it is.
        manifest: what was asked and found; its ``policy`` is in the name of the new folder.

    Returns:
        The new folder, ``NAME.<policy>-<number>`` beside the base: the first such that is not there.
    """
    assert set(arrays) == set(ARRAYS)
    number = 1
    while (folder := base.with_name(f"{base.name}.{manifest['policy']}-{number}")).exists():
        number += 1

    def build(temporary: Path) -> None:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array)
        (temporary / "overlay.json").write_text(json.dumps({"base": base.name} | manifest, indent=1))

    write_folder(folder, build)
    return folder
