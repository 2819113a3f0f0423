"""Which texts of a batch are the same text, and which pairs of texts a judgement links.

Letters of shapes: b list, n document of a list, c column, t text of the batch, j judgement of a
list, p place: a column, or behind the columns the text of a query.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ltr.batch import RankingBatch

ROWS_OF_SOURCE = 2**44  # more than a collection has; 2^19 sources fit
NOWHERE = -1  # the place of what a judgement names and the batch has not


class Duplicates(NamedTuple):
    """Equal texts of a batch, each named by its first place."""

    first_list_b: Tensor  # [B] int64, the first list with the same query
    # [B, N] int64, the first of the B·N columns with the same text; padding maps to itself
    first_column_bn: Tensor
    is_first_c: Tensor  # [B·N] bool, whether no earlier column holds this text
    # [B, P] bool, the texts that are judged for the query of a list, each at its first place: the
    # B·N columns, then the texts of queries that are documents and no column
    judged_bp: Tensor
    relevant_bp: Tensor  # [B, P] bool, those of them that are relevant
    own_bp: Tensor  # [B, P] bool, the text of the query itself


def find_duplicates(lists: RankingBatch) -> Duplicates:
    """Find equal texts by query row, by document row, and by the documents' hashes where there are
    some. A query and a document are one text where a judgement has no grade (NaN). Texts of two
    sources count as different, however equal they are.
    """
    if lists.sources is not None:
        lists = _told_apart(lists, lists.sources)
    n_lists, n_docs = lists.mask.shape
    device = lists.mask.device
    judged_rows_bj = lists.judged_rows
    if judged_rows_bj is None:
        judged_rows_bj = lists.doc_rows.new_empty(n_lists, 0)
    is_judgement_bj = judged_rows_bj >= 0
    grades_bj = lists.judged_grades
    if grades_bj is None:  # the labels alone say what is relevant
        grades_bj = lists.labels.new_zeros(judged_rows_bj.shape)
    is_own_bj = is_judgement_bj & grades_bj.isnan()
    first_column_c, judged_place_bj, n_places = _places(lists, judged_rows_bj, is_own_bj)
    first_column_bn = first_column_c.view(n_lists, n_docs)
    all_real = torch.ones_like(lists.query_rows, dtype=torch.bool)
    first_list_b = _first_equal(lists.query_rows, all_real)

    def of_all_lists_of_query(chosen_bj: Tensor, chosen_bn: Tensor) -> Tensor:
        """``[B, P]`` bool: where the chosen judgements and documents of all lists of a query are."""
        at_first_list_bp = torch.zeros(n_lists, n_places, dtype=torch.bool, device=device)
        first_list_bj = first_list_b.unsqueeze(1).expand_as(chosen_bj)
        at_first_list_bp[first_list_bj[chosen_bj], judged_place_bj[chosen_bj]] = True
        first_list_bn = first_list_b.unsqueeze(1).expand_as(chosen_bn)
        at_first_list_bp[first_list_bn[chosen_bn], first_column_bn[chosen_bn]] = True
        return at_first_list_bp[first_list_b]

    is_placed_bj = judged_place_bj != NOWHERE
    is_relevant_bj = is_placed_bj & (grades_bj > 0)
    no_document_bn = torch.zeros_like(lists.mask)
    columns = torch.arange(len(first_column_c), device=device)
    return Duplicates(
        first_list_b=first_list_b,
        first_column_bn=first_column_bn,
        is_first_c=lists.mask.flatten() & (first_column_c == columns),
        # What judged_rows name, and what has a label other than 0 in a list of the query.
        judged_bp=of_all_lists_of_query(is_placed_bj, lists.mask & (lists.labels != 0)),
        relevant_bp=of_all_lists_of_query(is_relevant_bj, lists.mask & (lists.labels > 0)),
        own_bp=of_all_lists_of_query(is_own_bj, no_document_bn),
    )


def _places(
    lists: RankingBatch, judged_rows_bj: Tensor, is_own_bj: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Where the texts of a batch are: at its columns, and behind them those texts of queries that
    are documents and no column, which a judgement may name.

    Returns:
        ``[B·N]``, the first column with the text of each column; ``[B, J]``, the place of what each
        judgement names, or :data:`NOWHERE`; and the number P of places.
    """
    real_c = lists.mask.flatten()
    n_columns = len(real_c)
    column_values = lists.doc_rows
    judged_values = judged_rows_bj
    if lists.doc_hashes is not None and lists.judged_hashes is not None:
        column_values = lists.doc_hashes
        judged_values = lists.judged_hashes
    # One vector: the C columns, then the B·J judgements. A judgement whose document is in the batch
    # is equal to a column, so its first equal entry is below n_columns; of any other it is not.
    real = torch.cat([real_c, (judged_rows_bj >= 0).flatten()])
    first = _first_equal(torch.cat([column_values.flatten(), judged_values.flatten()]), real)
    first_column_c = first[:n_columns]
    judged_places = first[n_columns:]
    if lists.doc_hashes is not None and lists.judged_hashes is None:
        # Judgements without hashes: by their row to a column, and from there to the first column of
        # the same text.
        first_column_c = _first_equal(lists.doc_hashes.flatten(), real_c)
        in_batch = judged_places < n_columns
        judged_places[in_batch] = first_column_c[judged_places[in_batch]]
    own_places = judged_places[is_own_bj.flatten()].unique()
    own_places = own_places[own_places >= n_columns]
    is_outside = judged_places >= n_columns
    outside = judged_places[is_outside]
    is_own_text = torch.isin(outside, own_places)
    numbers = n_columns + torch.searchsorted(own_places, outside)
    judged_places[is_outside] = torch.where(is_own_text, numbers, NOWHERE)
    return first_column_c, judged_places.view(judged_rows_bj.shape), n_columns + len(own_places)


def _told_apart(lists: RankingBatch, sources_b: Tensor) -> RankingBatch:
    """The lists with rows and hashes that no two sources share."""
    # A hash may wrap around: it stays as unlikely as before that two texts have the same.
    shift_b = sources_b * ROWS_OF_SOURCE
    shift_b1 = shift_b.unsqueeze(1)

    def shifted(values: Tensor | None) -> Tensor | None:
        return None if values is None else values + shift_b1

    judged_rows = lists.judged_rows
    if judged_rows is not None:
        is_padding = judged_rows < 0
        judged_rows = torch.where(is_padding, judged_rows, judged_rows + shift_b1)
    return lists._replace(
        query_rows=lists.query_rows + shift_b,
        doc_rows=lists.doc_rows + shift_b1,
        judged_rows=judged_rows,
        doc_hashes=shifted(lists.doc_hashes),
        judged_hashes=shifted(lists.judged_hashes),
    )


def _first_equal(values: Tensor, real: Tensor) -> Tensor:
    """``[M]``: index of the first real entry of the same value; what is not real maps to itself."""
    first_equal = torch.arange(len(values), device=values.device)
    real_places = real.nonzero().squeeze(1)
    # For each real entry the number of its value among the distinct ones.
    distinct, numbers = values[real_places].unique(return_inverse=True)
    beyond = real_places.new_full(distinct.shape, len(values))
    first_place = beyond.scatter_reduce_(0, numbers, real_places, "amin")
    first_equal[real_places] = first_place[numbers]
    return first_equal


def linked_texts(duplicates: Duplicates, *, with_queries: bool) -> Tensor:
    """``[T, T]`` bool: whether a judgement links two texts. Text y is linked with x, and x with y,
    if y is judged for a query of the batch, and x is that query or one of its relevant documents.
    Only the first of equal texts has links. A query and a document may be one text: it has the links
    of both.

    Args:
        duplicates: of the batch.
        with_queries: whether the T texts are the B queries followed by the C documents, or the
            documents alone.
    """
    n_columns = len(duplicates.is_first_c)
    group_bp = duplicates.relevant_bp | duplicates.own_bp
    judged_bt = duplicates.judged_bp[:, :n_columns]
    group_bt = group_bp[:, :n_columns]
    if with_queries:
        n_lists = len(judged_bt)
        is_query_bb = duplicates.first_list_b.unsqueeze(1) == torch.arange(
            n_lists, device=judged_bt.device
        )
        judged_bb = _have_common(duplicates.judged_bp, duplicates.own_bp)
        group_bb = is_query_bb | _have_common(group_bp, duplicates.own_bp)
        judged_bt = torch.cat([judged_bb, judged_bt], dim=1)
        group_bt = torch.cat([group_bb, group_bt], dim=1)
    # The lists whose query links two texts.
    linked_tt = _have_common(group_bt.T, judged_bt.T)
    return linked_tt | linked_tt.T


def _have_common(first: Tensor, second: Tensor) -> Tensor:
    """``[X, Y]`` bool: whether a row of the first ``[X, P]`` and one of the second ``[Y, P]`` are both
    true at a place; a product, as it costs no more than scores.
    """
    return first.float() @ second.float().T > 0
