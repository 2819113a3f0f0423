"""The lists of a batch, embedded: what is gathered from all processes and made into longer lists."""

from typing import NamedTuple

from torch import Tensor


class Embedded(NamedTuple):
    """B lists of up to N documents, embedded. The fields that :class:`ltr.batch.RankingBatch` has
    too mean the same.
    """

    queries: Tensor | None  # [B, H]; None for groups of texts without queries
    docs: Tensor  # [B, N, H]; the values at the padding are not used
    labels: Tensor  # [B, N] float, grades
    mask: Tensor  # [B, N] bool
    # [B] int64, equal for equal queries: their rows, or keys of what is read of them; for groups
    # without queries the number of the group's label
    query_rows: Tensor
    doc_rows: Tensor  # [B, N] int64
    # [B, J] int64, −1 as padding; None where only the labels are known
    judged_rows: Tensor | None = None
    # [B, J] float, the grades of judged_rows, NaN for a document that has the query's own text; None:
    # only labels tell what is relevant
    judged_grades: Tensor | None = None
    # [B, N] int64, equal for equal texts; None: different doc_rows are different texts
    doc_keys: Tensor | None = None
    # [B, J] int64, the keys of judged_rows; None: judged documents are found by their rows alone
    judged_keys: Tensor | None = None
    # [B, N] float, of mined negatives, NaN where none is known; None: no margin reads them
    distances: Tensor | None = None
    # [B] int64, the source of each list: texts of two sources are not compared; None: there is one
    sources: Tensor | None = None
