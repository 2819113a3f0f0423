"""The lists of a batch, embedded: what is gathered from all processes and made into longer lists."""

from typing import NamedTuple

from torch import Tensor


class Embedded(NamedTuple):
    """B lists of up to N documents, embedded. The fields that :class:`ltr.batch.RankingBatch` has too mean the same.

    Attributes:
        queries: ``[B, H]``, or None for groups of texts without queries.
        docs: ``[B, N, H]``; the values at the padding are not used.
        labels: ``[B, N]`` float, grades.
        mask: ``[B, N]`` bool.
        query_rows: ``[B]`` int64; for groups without queries the number of the group's label.
        doc_rows: ``[B, N]`` int64.
        judged_rows: ``[B, J]`` int64, −1 as padding, or None where only the labels are known.
        doc_keys: ``[B, N]`` int64, equal for documents of equal text; None: documents of different rows differ in text.
    """

    queries: Tensor | None
    docs: Tensor
    labels: Tensor
    mask: Tensor
    query_rows: Tensor
    doc_rows: Tensor
    judged_rows: Tensor | None = None
    doc_keys: Tensor | None = None
