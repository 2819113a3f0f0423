"""What an audit decides about mined negatives: an overlay beside their folder, which training reads
in its place.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from ltr.data.artefact import ArtefactKind, name_in
from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists, check_rows
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives

Remedy = Literal["drop", "relabel", "soft"]  # for likely false negatives; in options: policy


class OverlayManifest(TypedDict):
    """Of an overlay."""

    base: str  # the folder of the negatives beside it
    content: str  # the digest of their lists
    policy: Remedy


OVERLAY = ArtefactKind(
    name="overlay",
    arrays=("query_rows", "doc_rows", "scores", "labels"),
    manifest_type=OverlayManifest,
    must_be="the folder that an audit of negatives has written",
    mend="audit the negatives again",
)


class Overlay(NamedTuple):
    """Likely false negatives, and what training does with them: leave them out, take them for
    relevant, or label them softly.

    Attributes:
        policy: what training does.
        labels: the documents by query, with their new labels: NaN for ``drop``, by which training
            rows know that a document must not be drawn, a grade for ``relabel``, and for ``soft`` a number above 0 and below 1.
    """

    policy: Remedy
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
        return name_in(folder) == OVERLAY.name

    @classmethod
    def open(cls, folder: Path, collection: Collection, option: str | None = None) -> "Overlay":
        """Read an overlay; an InputError, with the option that names it, if it is damaged, or its
        negatives have gone or changed.
        """
        arrays, manifest = OVERLAY.open(folder, collection, option)
        base = folder.parent / manifest["base"]
        negatives = MinedNegatives.open(base, collection, option)
        if negatives.lists.digest() != manifest["content"]:
            raise InputError(
                f"{folder}: the negatives in {base} have changed since; audit them again"
            )
        query_rows = arrays["query_rows"]
        doc_rows = arrays["doc_rows"]
        labels = arrays["labels"]
        again = OVERLAY.mend
        check_rows(query_rows, len(collection.queries), folder / "query_rows.npy", again)
        check_rows(doc_rows, len(collection.corpus), folder / "doc_rows.npy", again)
        if not len(query_rows) == len(doc_rows) == labels.size:
            raise InputError(
                f"{folder}: query_rows, doc_rows and labels must be as long, got {len(query_rows)}, {len(doc_rows)} and {labels.size} entries; {again}"
            )
        _check_labels(labels, manifest["policy"], folder / "labels.npy")
        return cls(manifest["policy"], QueryLists.from_rows(query_rows, doc_rows, labels))


def _check_labels(labels: np.ndarray, policy: Remedy, file: Path) -> None:
    """Raise an InputError for labels that no audit with this policy writes."""
    if labels.ndim != 1 or labels.dtype.kind != "f":
        raise InputError(
            f"{file}: the file is damaged, it must hold numbers [S], got {labels.dtype} of shape {labels.shape}; {OVERLAY.mend}"
        )
    if policy == "drop":
        must_be = "NaN"
        are_valid = np.isnan(labels)
    elif policy == "relabel":
        must_be = "above 0"
        are_valid = (labels > 0) & (labels < np.inf)
    else:
        must_be = "above 0 and below 1"
        are_valid = (labels > 0) & (labels < 1)
    if not are_valid.all():
        raise InputError(
            f"{file}: the file is damaged, labels of the policy {policy} must be {must_be}, got {labels[~are_valid][0]}; {OVERLAY.mend}"
        )


def negatives_in(folder: Path) -> Path:
    """The folder of the negatives: that which an overlay lies beside, or this one."""
    if not Overlay.is_at(folder):
        return folder
    base: str = OVERLAY.manifest(folder)["base"]
    return folder.parent / base


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
    # keep_existing=False: a folder that another audit has written meanwhile under this name is an
    # error, not taken for ours.
    OVERLAY.write(folder, collection, arrays, {"base": base.name, **manifest}, keep_existing=False)
    return folder
