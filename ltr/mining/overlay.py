"""What an audit decides about mined negatives: an overlay beside their folder, which training reads
in its place.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ltr.data.artefact import ArtefactKind, kind_of
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.mining.negatives import MinedNegatives

Policy = Literal["drop", "relabel", "soft"]
OVERLAY = ArtefactKind(
    kind="overlay",
    arrays=("query_rows", "doc_rows", "scores", "labels"),
    must_be="the folder that an audit of negatives has written",
    again="audit the negatives again",
)


class Overlay(NamedTuple):
    """Likely false negatives, and what training does with them: leave them out, take them for
    relevant, or label them softly.

    Attributes:
        policy: what training does.
        labels: the documents by query, with their new labels: NaN for ``drop``, a grade for
            ``relabel``, and for ``soft`` a number above 0 and below 1.
    """

    policy: Policy
    labels: QueryLists

    @property
    def judgements(self) -> QueryLists:
        """The documents as judged ones, so that in-batch lists do not take them for negatives of
        their query: with their new grade after ``relabel``, else with 0.
        """
        if self.policy == "relabel":
            return self.labels
        return self.labels._replace(values=np.zeros_like(self.labels.values))

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether a folder is an overlay."""
        return kind_of(folder) == OVERLAY.kind

    @classmethod
    def open(cls, folder: Path, collection: Collection) -> "Overlay":
        """Read an overlay; an InputError if it is damaged, or its negatives have gone or changed."""
        arrays, manifest = OVERLAY.open(folder, collection)
        base = folder.parent / str(manifest.get("base"))
        negatives = MinedNegatives.open(base, collection)
        if negatives.lists().digest() != manifest.get("content"):
            raise InputError(
                f"{folder}: the negatives in {base} have changed since; audit them again"
            )
        query_rows = arrays["query_rows"]
        doc_rows = arrays["doc_rows"]
        labels = arrays["labels"]
        if not len(query_rows) == len(doc_rows) == len(labels):
            raise InputError(
                f"{folder}: query_rows, doc_rows and labels must be as long, got {len(query_rows)}, {len(doc_rows)} and {len(labels)} entries; audit the negatives again"
            )
        return cls(manifest["policy"], QueryLists.from_rows(query_rows, doc_rows, labels))


def negatives_in(folder: Path) -> Path:
    """The folder of the negatives: that which an overlay lies beside, or this one."""
    if not Overlay.is_at(folder):
        return folder
    return folder.parent / str(OVERLAY.manifest(folder)["base"])


def save_overlay(
    base: Path, collection: Collection, manifest: dict[str, Any], **arrays: np.ndarray
) -> Path:
    """Write the arrays ``query_rows``, ``doc_rows``, ``scores`` and ``labels``, ``[S]`` each, whole
    or not at all.

    Args:
        base: the folder of the negatives, which stays as it is.
        collection: that they were mined from.
        manifest: what was asked and found. It must have ``policy``, which is in the name of the new
            folder, and ``content``, the digest of the negatives' lists, which :meth:`Overlay.open`
            checks.

    Returns:
        The new folder, ``NAME.<policy>-<number>`` beside the base: the first such that is not
        there.
    """
    name = f"{base.name}.{manifest['policy']}"
    number = 1
    while base.with_name(f"{name}-{number}").exists():
        number += 1
    folder = base.with_name(f"{name}-{number}")
    # once=False: a folder that another audit has written meanwhile under this name is an error, not
    # taken for ours.
    OVERLAY.write(folder, collection, arrays, {"base": base.name, **manifest}, once=False)
    return folder
