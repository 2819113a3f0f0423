"""In-batch negatives are longer lists: the documents of the other lists of a batch become further
columns.

Rows ``[B, N]`` become ``[B, B·N]``, and a P×K batch becomes the square matrix of all its texts.
Labels must be grades, 0 for not relevant: a teacher's scores have no number for the documents of
other lists.

Letters of shapes: b list, n document of a list, j judgement. Where queries are the rows, c is a
column, a document of the batch. Where all texts are rows and columns, t is a text of the batch, and
k a text of a list: its query, if it has one, or a document.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.batch import RankingBatch, ScoredLists
from ltr.in_batch.duplicates import Duplicates, find_duplicates, linked_texts


def queries_against_all(lists: RankingBatch, queries: Tensor | None, docs: Tensor) -> ScoredLists:
    r"""Each query against the documents of all lists; column :math:`b N + n` is document n of list
    b.

    A query's own documents keep their labels and mask. Documents of other lists get label 0. A row
    leaves out a document that

    * is padding,
    * is judged for the query or an equal one, with any grade: in ``judged_rows``, or by a label other
      than 0 in another list of the query,
    * has the text of the query (NaN in ``judged_grades``),
    * is also in the query's own list,
    * repeats a document of an earlier column,
    * is of another source than the query, whose judgements say nothing about it.

    Documents of equal text in one source count as one document, whatever their ids, by ``doc_hashes``
    and ``judged_hashes``.

    Args:
        lists: of one batch, or of all processes. Equal ``query_rows`` are equal queries.
        queries: ``[B, H]``, their embeddings; None for groups of texts without queries.
        docs: ``[B, N, H]``, those of their documents; the values at the padding are not used.

    Returns:
        R = B rows and C = B·N columns, not scored yet. A mined distance is that of a query to a
        document of its own list; it is NaN elsewhere.

    Raises:
        ValueError: for lists without queries.

    Cost:
        O(B·J + B·N) numbers to sort, and a few passes over ``[B, B·N]`` bools.

    References:
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering.

    Example:
        Two queries with two documents each. Document 7 is in both lists; document 9 is judged for
        the first query, though not in its list, so it is not taken for irrelevant.

        >>> import torch
        >>> lists = RankingBatch(
        ...     labels=torch.tensor([[2.0, 0.0], [1.0, 0.0]]),
        ...     mask=torch.ones(2, 2, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[5, 7], [9, 7]]),
        ...     judged_rows=torch.tensor([[5, 9], [9, -1]]),
        ... )
        >>> longer = queries_against_all(lists, torch.zeros(2, 4), torch.zeros(2, 2, 4))
        >>> longer.labels
        tensor([[2., 0., 0., 0.],
                [0., 0., 1., 0.]])
        >>> longer.mask
        tensor([[ True,  True, False, False],
                [ True, False,  True,  True]])
    """
    if queries is None:
        raise ValueError(
            "queries_against_all needs lists with queries, got none; take all_against_all for groups of texts"
        )
    n_lists, n_docs = lists.mask.shape
    device = lists.mask.device
    row_b1 = torch.arange(n_lists, device=device).unsqueeze(1)
    own_column_bn = row_b1 * n_docs + torch.arange(n_docs, device=device)

    # Documents of other lists: the first of equal ones, neither judged for the query nor in its list.
    duplicates = find_duplicates(lists)
    judged_bc = duplicates.judged_bp[:, : n_lists * n_docs]
    mask_bc = duplicates.is_first_c & ~judged_bc
    if lists.sources is not None:
        source_c = lists.sources.repeat_interleave(n_docs)
        mask_bc &= lists.sources.unsqueeze(1) == source_c
    mask_bc[row_b1, duplicates.first_column_bn] = False
    # The query's own documents, as they are in its list.
    mask_bc[row_b1, own_column_bn] = lists.mask
    labels_bc = lists.labels.new_zeros(mask_bc.shape)
    labels_bc[row_b1, own_column_bn] = lists.labels
    distances_bc = None
    if lists.distances is not None:
        distances_bc = torch.full_like(labels_bc, torch.nan)
        distances_bc[row_b1, own_column_bn] = lists.distances
    return ScoredLists(
        scores=labels_bc.new_empty(0),
        labels=labels_bc,
        mask=mask_bc,
        distances=distances_bc,
        embeddings=docs.flatten(0, 1).unsqueeze(0),
        queries=queries,
    )


def all_against_all(lists: RankingBatch, queries: Tensor | None, docs: Tensor) -> ScoredLists:
    r"""Every text of the batch as an anchor against all texts: first the queries, if there are any,
    then the documents.

    A query and the relevant documents of its list form a group. Two texts of a group have label 1,
    but a query as the anchor has the grades of its documents. All other pairs have label 0. A
    document of label 0 belongs to no group: it is a negative for all anchors, and its own row is
    masked.

    A row leaves out

    * the anchor itself and its duplicates: documents of one ``doc_row``, or of equal text; queries
      of one ``query_row``; a query and a document that has its text,
    * padding,
    * texts of other lists that a judgement links with the anchor. A document that is judged for a
      query of the batch, with any grade, is linked with that query and with every document relevant
      to it, in whichever lists they stand (relevant by ``judged_grades`` or a label above 0). So
      lists of one query don't use each other's positives as negatives,
    * texts of other lists that are also in the anchor's list, or repeat an earlier column,
    * texts of other sources.

    Rows are not merged: a document that is relevant in two lists is an anchor twice, once with each
    group. The rows of the queries, restricted to the columns of the documents, equal those of
    :func:`queries_against_all`, with one exception. A query that is also a document relevant for another
    query leaves out what is judged for that other query, as the document does.

    Args:
        lists, queries, docs: see :func:`queries_against_all`.

    Returns:
        R = C = B + B·N, or B·N without queries; rows and columns are the same embeddings, not scored
        yet. Mined distances are those of :func:`queries_against_all`.

    Cost:
        As :func:`queries_against_all` over ``[C, C]``, and a product ``[C, B] × [B, C]``.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification
        (P×K batches).

    Example:
        Two groups of two texts, without queries.

        >>> labels, mask = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
        >>> query_rows, doc_rows = torch.tensor([0, 1]), torch.tensor([[0, 1], [2, 3]])
        >>> lists = RankingBatch(labels, mask, query_rows, doc_rows)
        >>> square = all_against_all(lists, None, torch.zeros(2, 2, 4))
        >>> square.labels * square.mask
        tensor([[0., 1., 0., 0.],
                [1., 0., 0., 0.],
                [0., 0., 0., 1.],
                [0., 0., 1., 0.]])
    """
    duplicates = find_duplicates(lists)
    all_texts = _end_to_end(lists, queries, docs, duplicates)
    place_bk = all_texts.place_bk
    group_bk = all_texts.group_bk
    first_t = all_texts.first_t
    first_bk = first_t[place_bk]
    # The square of a list: each of its K texts as a row against each as a column.
    row_bk1 = place_bk.unsqueeze(2)
    column_b1k = place_bk.unsqueeze(1)

    # Texts of other lists: the first of equal ones, and none that judgements link to the row.
    # Links stand at first places alone: a row takes those of the first place of its text. A column
    # that is no first place is masked anyhow.
    linked_tt = linked_texts(duplicates, with_queries=queries is not None)
    mask_tt = all_texts.is_first_t & ~linked_tt[first_t]
    if lists.sources is not None:
        source_t = lists.sources.repeat_interleave(lists.mask.shape[1])
        if queries is not None:
            source_t = torch.cat([lists.sources, source_t])
        mask_tt &= source_t.unsqueeze(1) == source_t
    # None of them is a text that is also in the row's own list. What follows overrules this.
    mask_tt[row_bk1, first_bk.unsqueeze(1)] = False
    # Of its own list a row has the real texts other than its own text.
    is_other_bkk = first_bk.unsqueeze(2) != first_bk.unsqueeze(1)
    mask_tt[row_bk1, column_b1k] = all_texts.real_bk.unsqueeze(1) & is_other_bkk
    # Texts outside of a group have no row.
    mask_tt[place_bk[~group_bk]] = False

    both_in_group_bkk = group_bk.unsqueeze(2) & group_bk.unsqueeze(1)
    own_labels_bkk = both_in_group_bkk.to(lists.labels.dtype)
    if queries is not None:
        own_labels_bkk[:, 0, 1:] = lists.labels
    labels_tt = lists.labels.new_zeros(mask_tt.shape)
    labels_tt[row_bk1, column_b1k] = own_labels_bkk
    distances_tt = None
    if queries is not None and lists.distances is not None:
        distances_tt = torch.full_like(labels_tt, torch.nan)
        distances_tt[place_bk[:, :1], place_bk[:, 1:]] = lists.distances
    return ScoredLists(
        scores=labels_tt.new_empty(0),
        labels=labels_tt,
        mask=mask_tt,
        distances=distances_tt,
        embeddings=all_texts.texts.unsqueeze(0),
        queries=all_texts.texts,
    )


class _EndToEnd(NamedTuple):
    """The texts of all lists end to end: T texts, queries first. Each of B lists has K of them: its
    query, if there are queries, and then its documents.
    """

    texts: Tensor  # [T, H]
    place_bk: Tensor  # [B, K] int64, the places of a list's texts among all
    real_bk: Tensor  # [B, K] bool, False at the padding
    group_bk: Tensor  # [B, K] bool, the query and its relevant documents
    first_t: Tensor  # [T] int64, the place of the first equal text
    is_first_t: Tensor  # [T] bool, whether it is real, and the first of its equals


def _end_to_end(
    lists: RankingBatch, queries: Tensor | None, docs: Tensor, duplicates: Duplicates
) -> _EndToEnd:
    n_lists, n_docs = lists.mask.shape
    device = lists.mask.device
    n_queries = 0 if queries is None else n_lists
    doc_places = n_queries + torch.arange(n_lists * n_docs, device=device)
    place_bk = doc_places.view(n_lists, n_docs)
    real_bk = lists.mask
    group_bk = lists.mask & (lists.labels > 0)
    texts = docs.flatten(0, 1)
    first_t = n_queries + duplicates.first_column_bn.flatten()
    is_first_t = duplicates.is_first_c
    if queries is not None:
        # The query stands before the documents of its list, and all queries before all documents.
        query_places = torch.arange(n_lists, device=device)
        place_bk = torch.cat([query_places.unsqueeze(1), place_bk], dim=1)
        real_bk = F.pad(real_bk, (1, 0), value=True)
        group_bk = F.pad(group_bk, (1, 0), value=True)
        texts = torch.cat([queries, texts])
        first_t = torch.cat([duplicates.first_list_b, first_t])
        is_first_query_b = duplicates.first_list_b == query_places
        is_first_t = torch.cat([is_first_query_b, is_first_t])
    return _EndToEnd(texts, place_bk, real_bk, group_bk, first_t, is_first_t)
