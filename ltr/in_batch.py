"""In-batch negatives are longer lists: the documents of the other lists of a batch become further columns.

Rows ``[B, N]`` become ``[B, B·N]``, and an online P×K batch the square matrix of all its texts. The caller makes the scores,
``model.score(rows, columns)``; every loss then runs as ``loss(scores, labels, mask, margin)``. Under several ranks the lists come
from :func:`ltr.gather.gathered`.

Labels must be grades, 0 for not relevant: a teacher's scores have no number for the documents of other lists.

Letters of shapes: b list, n document of a list, k text of a list, c column, t text of the batch, j judgement.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Embedded(NamedTuple):
    """B lists of up to N documents, embedded; for what is not said here see :class:`ltr.batch.RankingBatch`.

    Attributes:
        queries: ``[B, H]``, or None for groups of texts without queries.
        docs: ``[B, N, H]``; what stands at the padding means nothing.
        labels: ``[B, N]`` float, grades.
        mask: ``[B, N]`` bool.
        query_rows: ``[B]`` int64; for groups the number of what their texts share.
        doc_rows: ``[B, N]`` int64.
        judged_rows: ``[B, J]`` int64, −1 as padding, or None where nothing is known beyond the labels.
        doc_keys: ``[B, N]`` int64, equal for documents of one text, whatever their rows; None: each row has a text of its own.
    """

    queries: Tensor | None
    docs: Tensor
    labels: Tensor
    mask: Tensor
    query_rows: Tensor
    doc_rows: Tensor
    judged_rows: Tensor | None = None
    doc_keys: Tensor | None = None


class LongerLists(NamedTuple):
    """R lists over C columns that all rows share.

    Attributes:
        rows: ``[R, H]``, embeddings of queries or anchors.
        columns: ``[C, H]``, embeddings of the texts they are compared with.
        labels: ``[R, C]`` float, grades.
        mask: ``[R, C]`` bool, False for what a row must not be compared with.
    """

    rows: Tensor
    columns: Tensor
    labels: Tensor
    mask: Tensor


def queries_against_all(lists: Embedded) -> LongerLists:
    r"""Each query against the documents of all lists; column :math:`b N + n` is document n of list b.

    A query's own documents keep labels and mask. Those of other lists get label 0, and are left out where they

    * are padding,
    * are judged for the query, whatever the grade: in ``judged_rows``, or by a label other than 0 in another list of the query,
    * are in the query's own list as well,
    * repeat a document of an earlier column: each counts once in a row.

    Documents of one text are one document here, under whatever ids a corpus holds it.

    Args:
        lists: of one batch, or of all ranks.

    Returns:
        R = B rows and C = B·N columns.

    Raises:
        ValueError: for lists without queries.

    Cost:
        O(B·J + B·N) numbers to sort, and a few passes over ``[B, B·N]`` bools.

    References:
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering.

    Example:
        Two queries with two documents each. Document 7 is in both lists; document 9 is judged for the first query, though not in
        its list, so it is not taken for irrelevant.

        >>> import torch
        >>> lists = Embedded(
        ...     queries=torch.zeros(2, 4),
        ...     docs=torch.zeros(2, 2, 4),
        ...     labels=torch.tensor([[2.0, 0.0], [1.0, 0.0]]),
        ...     mask=torch.ones(2, 2, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[5, 7], [9, 7]]),
        ...     judged_rows=torch.tensor([[5, 9], [9, -1]]),
        ... )
        >>> queries_against_all(lists).labels
        tensor([[2., 0., 0., 0.],
                [0., 0., 1., 0.]])
        >>> queries_against_all(lists).mask
        tensor([[ True,  True, False, False],
                [ True, False,  True,  True]])
    """
    if lists.queries is None:
        raise ValueError("queries_against_all needs lists with queries, got none; take all_against_all for groups of texts")
    n_lists, n_docs = lists.mask.shape
    same = _same_texts(lists)
    mask_bc = same.is_first_c & ~same.judged_bc
    b = torch.arange(n_lists, device=lists.mask.device)
    mask_bc[b.unsqueeze(1), same.docs_bn] = False
    mask_bc.view(n_lists, n_lists, n_docs)[b, b] = lists.mask
    labels_bc = lists.labels.new_zeros(mask_bc.shape)
    labels_bc.view(n_lists, n_lists, n_docs)[b, b] = lists.labels
    return LongerLists(lists.queries, lists.docs.flatten(0, 1), labels_bc, mask_bc)


def all_against_all(lists: Embedded) -> LongerLists:
    r"""Every text of the batch as an anchor against all texts: the queries, if there are any, then the documents, list by list.

    A query and the relevant documents of its list are a group. Two texts of a group have label 1; only a query as the anchor sees
    the grades of its documents. All other pairs have label 0. Documents of label 0 belong to no group: they are irrelevant to
    everybody, and as anchors they have nothing to learn, so their rows are masked.

    Left out of a row are

    * the anchor itself, wherever it stands: documents of one ``doc_row`` are one text, queries of one ``query_row`` another,
    * padding,
    * texts of other lists that a judgement links with the anchor: one of the two is judged, whatever the grade, for a query that
      the other is, or is relevant to. So two lists of one query do not take each other's relevant documents for irrelevant,
    * texts of other lists that are in the anchor's own list as well, or repeat an earlier column: each counts once.

    Rows are not merged: a document that is relevant in two lists is an anchor twice, with the group of each list.
    The rows of the queries, cut to the columns of the documents, are those of :func:`queries_against_all`.

    Args:
        lists: of one batch, or of all ranks.

    Returns:
        R = C = B + B·N, or B·N without queries; rows and columns are the same embeddings.

    Cost:
        As :func:`queries_against_all` over ``[C, C]``.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification (P×K batches).

    Example:
        Two groups of two texts, without queries.

        >>> import torch
        >>> groups = Embedded(
        ...     queries=None,
        ...     docs=torch.zeros(2, 2, 4),
        ...     labels=torch.ones(2, 2),
        ...     mask=torch.ones(2, 2, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[0, 1], [2, 3]]),
        ... )
        >>> square = all_against_all(groups)
        >>> square.labels * square.mask
        tensor([[0., 1., 0., 0.],
                [1., 0., 0., 0.],
                [0., 0., 0., 1.],
                [0., 0., 1., 0.]])
    """
    (n_lists, n_docs), same, device = lists.mask.shape, _same_texts(lists), lists.mask.device
    b = torch.arange(n_lists, device=device)
    n_queries = 0 if lists.queries is None else n_lists
    # Of the texts of each list: where they stand, which are real, and which form its group.
    at_bk = n_queries + torch.arange(n_lists * n_docs, device=device).view(n_lists, n_docs)
    real_bk, group_bk = lists.mask, lists.mask & (lists.labels > 0)
    # Of all texts: where each stands first. What holds for a text is said in that row and that column.
    texts, first_t, is_first_t = lists.docs.flatten(0, 1), n_queries + same.docs_bn.flatten(), same.is_first_c
    if lists.queries is not None:
        at_bk = torch.cat([b.unsqueeze(1), at_bk], dim=1)
        real_bk, group_bk = F.pad(real_bk, (1, 0), value=True), F.pad(group_bk, (1, 0), value=True)
        texts = torch.cat([lists.queries, texts])
        first_t, is_first_t = torch.cat([same.queries_b, first_t]), torch.cat([same.queries_b == b, is_first_t])
    first_bk, rows_bk, columns_bk = first_t[at_bk], at_bk.unsqueeze(2), at_bk.unsqueeze(1)

    mask_tt = is_first_t & ~_linked(same.judged_bc, first_bk, group_bk, len(texts))[first_t]
    mask_tt[rows_bk, first_bk.unsqueeze(1)] = False
    mask_tt[rows_bk, columns_bk] = real_bk.unsqueeze(1) & (first_bk.unsqueeze(2) != first_bk.unsqueeze(1))
    mask_tt[at_bk[~group_bk]] = False

    own_labels = (group_bk.unsqueeze(2) & group_bk.unsqueeze(1)).to(lists.labels.dtype)
    if lists.queries is not None:
        own_labels[:, 0, 1:] = lists.labels
    labels_tt = lists.labels.new_zeros(mask_tt.shape)
    labels_tt[rows_bk, columns_bk] = own_labels
    return LongerLists(texts, texts, labels_tt, mask_tt)


def mask_likely_relevant(mask: Tensor, labels: Tensor, guide_scores: Tensor, margin: float = 0.0) -> Tensor:
    r"""Leave out what a second model, the guide, holds to be relevant although its label is 0 (judged so, or by nobody).

    .. math::
        M'_{rc} = M_{rc} \wedge \neg\bigl(y_{rc} = 0 \wedge g_{rc} > \min_{p \in P_r} g_{rp} + m\bigr),
        \qquad P_r = \{p : y_{rp} > 0 \wedge M_{rp}\}

    Published for one relevant document a row: a negative that the guide scores above it is left out. With several, the lowest of
    them is the threshold, so that the published rule holds for every pair of a relevant document and a negative that is kept.

    Args:
        mask, labels: ``[R, C]``, see :class:`LongerLists`.
        guide_scores: ``[R, C]``, the guide's scores of the same rows and columns.
        margin: in units of the guide's scores; how far above the relevant document a negative must come to be left out. Below 0
            negatives that come close to it are left out too.

    Returns:
        ``[R, C]`` bool. A row without a relevant document stays as it is, and so does every column whose label is not 0.

    References:
        Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning.

    Example:
        >>> import torch
        >>> mask, labels = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1.0, 0.0, 0.0]])
        >>> mask_likely_relevant(mask, labels, torch.tensor([[0.7, 0.8, 0.6]]))
        tensor([[ True, False,  True]])
    """
    relevant = mask & (labels > 0)
    # A column of +inf more: the minimum of a row without a relevant document, or without columns.
    lowest = F.pad(guide_scores.masked_fill(~relevant, torch.inf), (0, 1), value=torch.inf).amin(dim=1, keepdim=True)
    return mask & ~((labels == 0) & (guide_scores > lowest + margin))


class _SameTexts(NamedTuple):
    """Which texts of a batch are one, named by where the text stands first.

    Attributes:
        queries_b: ``[B]`` int64, the first list of the same query.
        docs_bn: ``[B, N]`` int64, the first of the B·N columns that holds the same text; padding its own.
        is_first_c: ``[B·N]`` bool, whether a column is a text that no earlier one holds.
        judged_bc: ``[B, B·N]`` bool, the documents that are judged for the query of a list, each at its first column.
    """

    queries_b: Tensor
    docs_bn: Tensor
    is_first_c: Tensor
    judged_bc: Tensor


def _same_texts(lists: Embedded) -> _SameTexts:
    n_lists, n_docs = lists.mask.shape
    n_columns, real_c = n_lists * n_docs, lists.mask.flatten()
    judged_bj = lists.doc_rows.new_empty(n_lists, 0) if lists.judged_rows is None else lists.judged_rows
    is_judgement = judged_bj >= 0
    # Judgements after the columns: one that finds its document there gets a column's number.
    rows, real = torch.cat([lists.doc_rows.flatten(), judged_bj.flatten()]), torch.cat([real_c, is_judgement.flatten()])
    docs_c, judged = _first(rows, real).split([n_columns, judged_bj.numel()])
    if lists.doc_keys is not None:
        docs_c = _first(lists.doc_keys.flatten(), real_c)
        judged = torch.cat([docs_c, judged.new_tensor([n_columns])])[judged.clamp(max=n_columns)]
    docs_bn, judged_bj = docs_c.view(n_lists, n_docs), judged.view(judged_bj.shape)
    queries_b = _first(lists.query_rows, torch.ones_like(lists.query_rows, dtype=torch.bool))
    judged_bc = torch.zeros(n_lists, n_columns, dtype=torch.bool, device=rows.device)
    for columns, holds in [(judged_bj, is_judgement & (judged_bj < n_columns)), (docs_bn, lists.mask & (lists.labels != 0))]:
        judged_bc[queries_b.unsqueeze(1).expand_as(columns)[holds], columns[holds]] = True
    is_first_c = real_c & (docs_c == torch.arange(n_columns, device=rows.device))
    return _SameTexts(queries_b, docs_bn, is_first_c, judged_bc[queries_b])


def _first(values: Tensor, real: Tensor) -> Tensor:
    """``[M]``: where the same value stands first, among the real ones; of another, its own place."""
    place, at = torch.arange(len(values), device=values.device), real.nonzero().squeeze(1)
    distinct, number = values[at].unique(return_inverse=True)
    first = at.new_full(distinct.shape, len(values)).scatter_reduce_(0, number, at, "amin")
    place[at] = first[number]
    return place


def _linked(judged_bc: Tensor, first_bk: Tensor, group_bk: Tensor, n_texts: int) -> Tensor:
    """``[T, T]`` bool: texts that a judgement links, each at its first place."""
    linked_tt = torch.zeros(n_texts, n_texts, dtype=torch.bool, device=judged_bc.device)
    b, column = judged_bc.nonzero(as_tuple=True)
    in_group = group_bk[b]
    judged = (n_texts - judged_bc.shape[1] + column).unsqueeze(1)  # documents stand after the queries
    anchor, judged = first_bk[b][in_group], judged.expand_as(in_group)[in_group]
    linked_tt[anchor, judged] = True
    linked_tt[judged, anchor] = True
    return linked_tt
