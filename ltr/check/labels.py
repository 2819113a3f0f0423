"""What the labels of texts allow: how many texts belong together."""

import numpy as np

from ltr.check.section import Section
from ltr.compare.tables import Table
from ltr.data.labelled_texts import LabelledTexts


def labels_section(texts: LabelledTexts) -> Section:
    """How many texts the labels of each split have. A text whose label no other has belongs to
    nothing, so nothing is learnt or measured of it.
    """
    rows = []
    lines = []
    entries: dict[str, object] = {}
    for split, labels in texts.labels.items():
        _, sizes = np.unique(labels, return_counts=True)
        n_alone = int((sizes == 1).sum())
        entries[split] = {
            "texts": len(labels),
            "labels": len(sizes),
            "texts_median": float(np.median(sizes)),
            "texts_least": int(sizes.min()),
            "texts_most": int(sizes.max()),
            "labels_of_one_text": n_alone,
        }
        cells = [f"{len(labels):,}", f"{len(sizes):,}", f"{np.median(sizes):,.9g}"]
        rows.append([split, *cells, f"{sizes.min():,}", f"{sizes.max():,}"])
        if n_alone:
            lines.append(
                f"{n_alone:,} of {len(sizes):,} labels of {split} have one text, which belongs to no other"
            )
    header = ["split", "texts", "labels", "texts of a label, median", "least", "most"]
    table = Table("labelled texts", header, rows)
    return Section("Labels", [table], lines=lines, entries=entries)
