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
    device = lists.mask.device
    judged_rows_bj = lists.judged_rows
    if judged_rows_bj is None:
        judged_rows_bj = lists.doc_rows.new_empty(n_lists, 0)
    is_judgement_bj = judged_rows_bj >= 0
    real_c = lists.mask.flatten()

    # Judgements stand after the columns. So a judgement whose document is in the batch is mapped to
    # the first column of that document, and any other to a number from n_columns on.
    rows = torch.cat([lists.doc_rows.flatten(), judged_rows_bj.flatten()])
    real = torch.cat([real_c, is_judgement_bj.flatten()])
    first_by_row = _first_equal(rows, real)
    docs_c = first_by_row[:n_columns]
    judged_columns = first_by_row[n_columns:]
    if lists.doc_keys is not None:
        # Texts are equal by their keys instead.
        docs_c = _first_equal(lists.doc_keys.flatten(), real_c)
        if lists.judged_keys is None:
            # The column of a judged row leads to the first column of the same text.
            docs_and_none = torch.cat([docs_c, docs_c.new_tensor([n_columns])])
            judged_columns = docs_and_none[judged_columns.clamp(max=n_columns)]
        else:
            keys = torch.cat([lists.doc_keys.flatten(), lists.judged_keys.flatten()])
            judged_columns = _first_equal(keys, real)[n_columns:]
    docs_bn = docs_c.view(n_lists, n_docs)
    judged_columns_bj = judged_columns.view(judged_rows_bj.shape)
    queries_b = _first_equal(lists.query_rows, torch.ones_like(lists.query_rows, dtype=torch.bool))

    # What is judged for a query is collected at the first of its lists: what judged_rows name, and
    # what has a label other than 0 in any of them.
    judged_bc = torch.zeros(n_lists, n_columns, dtype=torch.bool, device=device)
    in_batch_bj = is_judgement_bj & (judged_columns_bj < n_columns)
    query_bj = queries_b.unsqueeze(1).expand_as(in_batch_bj)
    judged_bc[query_bj[in_batch_bj], judged_columns_bj[in_batch_bj]] = True
    graded_bn = lists.mask & (lists.labels != 0)
    query_bn = queries_b.unsqueeze(1).expand_as(graded_bn)
    judged_bc[query_bn[graded_bn], docs_bn[graded_bn]] = True

    is_first_c = real_c & (docs_c == torch.arange(n_columns, device=device))
    return Duplicates(queries_b, docs_bn, is_first_c, judged_bc[queries_b])


def _first_equal(values: Tensor, real: Tensor) -> Tensor:
    """``[M]``: index of the first real entry with the same value; an entry that is not real maps to
    itself.
    """
    first_equal = torch.arange(len(values), device=values.device)
    real_places = real.nonzero().squeeze(1)
    # For each real entry the number of its value among the distinct ones.
    distinct, numbers = values[real_places].unique(return_inverse=True)
    beyond = real_places.new_full(distinct.shape, len(values))
    first_place = beyond.scatter_reduce_(0, numbers, real_places, "amin")
    first_equal[real_places] = first_place[numbers]
    return first_equal


def linked_texts(judged_bc: Tensor, first_bk: Tensor, group_bk: Tensor, n_texts: int) -> Tensor:
    """``[T, T]`` bool, symmetric: whether a judgement links two texts: one is judged for a query
    whose group the other is in.

    Args:
        judged_bc: ``[B, C]`` bool, the documents judged for the query of a list, each at its first
            column.
        first_bk: ``[B, K]`` int64, the first place of each text of a list among the T texts. The
            result is filled at first places alone.
        group_bk: ``[B, K]`` bool, the query and its relevant documents.
        n_texts: T. The C documents stand after the queries.
    """
    linked_tt = torch.zeros(n_texts, n_texts, dtype=torch.bool, device=judged_bc.device)
    n_queries = n_texts - judged_bc.shape[1]
    b, column = judged_bc.nonzero(as_tuple=True)  # one each for J judgements
    in_group_jk = group_bk[b]
    judged_jk = (n_queries + column).unsqueeze(1).expand_as(in_group_jk)
    anchor = first_bk[b][in_group_jk]
    judged = judged_jk[in_group_jk]
    linked_tt[anchor, judged] = True
    linked_tt[judged, anchor] = True
    return linked_tt
