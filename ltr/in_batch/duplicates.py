"""Which texts of a batch are the same text, and which pairs of texts a judgement links.

Letters of shapes: b list, n document of a list, k text of a list, c column, t text of the batch, j
judgement.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ltr.in_batch.embedded import Embedded


class Duplicates(NamedTuple):
    """Equal texts of a batch, each named by its first place."""

    queries_b: Tensor  # [B] int64, index of the first list with the same query
    # [B, N] int64, the first of the B·N columns with the same text; padding maps to itself
    docs_bn: Tensor
    is_first_c: Tensor  # [B·N] bool, whether no earlier column holds this text
    # [B, B·N] bool, the documents judged for the query of a list, each at its first column
    judged_bc: Tensor


def find_duplicates(lists: Embedded) -> Duplicates:
    """Find equal texts by query row, by document row, and by the documents' keys where there are
    keys.
    """
    n_lists, n_docs = lists.mask.shape
    n_columns = n_lists * n_docs
    real_c = lists.mask.flatten()
    judged_bj = (
        lists.doc_rows.new_empty(n_lists, 0) if lists.judged_rows is None else lists.judged_rows
    )
    is_judgement = judged_bj >= 0
    # Judgements come after the columns: a judgement whose document is in the batch gets the number
    # of its column.
    rows = torch.cat([lists.doc_rows.flatten(), judged_bj.flatten()])
    real = torch.cat([real_c, is_judgement.flatten()])
    docs_c, judged = _first(rows, real).split([n_columns, judged_bj.numel()])
    if lists.doc_keys is not None:
        docs_c = _first(lists.doc_keys.flatten(), real_c)
        if lists.judged_keys is None:
            judged = torch.cat([docs_c, judged.new_tensor([n_columns])])[
                judged.clamp(max=n_columns)
            ]
        else:
            judged = _first(
                torch.cat([lists.doc_keys.flatten(), lists.judged_keys.flatten()]), real
            )[n_columns:]
    docs_bn = docs_c.view(n_lists, n_docs)
    judged_bj = judged.view(judged_bj.shape)
    queries_b = _first(lists.query_rows, torch.ones_like(lists.query_rows, dtype=torch.bool))
    judged_bc = torch.zeros(n_lists, n_columns, dtype=torch.bool, device=rows.device)
    in_batch_bj = is_judgement & (judged_bj < n_columns)
    graded_bn = lists.mask & (lists.labels != 0)
    for columns, holds in ((judged_bj, in_batch_bj), (docs_bn, graded_bn)):
        judged_bc[queries_b.unsqueeze(1).expand_as(columns)[holds], columns[holds]] = True
    is_first_c = real_c & (docs_c == torch.arange(n_columns, device=rows.device))
    return Duplicates(queries_b, docs_bn, is_first_c, judged_bc[queries_b])


def _first(values: Tensor, real: Tensor) -> Tensor:
    """``[M]``: index of the first real entry with the same value; an entry that is not real maps to
    itself.
    """
    place = torch.arange(len(values), device=values.device)
    at = real.nonzero().squeeze(1)
    distinct, number = values[at].unique(return_inverse=True)
    first = at.new_full(distinct.shape, len(values)).scatter_reduce_(0, number, at, "amin")
    place[at] = first[number]
    return place


def linked_texts(judged_bc: Tensor, first_bk: Tensor, group_bk: Tensor, n_texts: int) -> Tensor:
    """``[T, T]`` bool, symmetric: whether a judgement links two texts, each at its first place."""
    linked_tt = torch.zeros(n_texts, n_texts, dtype=torch.bool, device=judged_bc.device)
    b, column = judged_bc.nonzero(as_tuple=True)
    in_group = group_bk[b]
    judged = (n_texts - judged_bc.shape[1] + column).unsqueeze(
        1
    )  # documents stand after the queries
    anchor = first_bk[b][in_group]
    judged = judged.expand_as(in_group)[in_group]
    linked_tt[anchor, judged] = True
    linked_tt[judged, anchor] = True
    return linked_tt
