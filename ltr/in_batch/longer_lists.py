"""In-batch negatives are longer lists: the documents of the other lists of a batch become further
columns.

Rows ``[B, N]`` become ``[B, B·N]``, and a P×K batch becomes the square matrix of all its texts.
Labels must be grades, 0 for not relevant: a teacher's scores have no number for the documents of
other lists.

Letters of shapes: b list, n document of a list, k text of a list, c column, t text of the batch, j
judgement.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.in_batch.duplicates import Duplicates, find_duplicates, linked_texts
from ltr.in_batch.embedded import Embedded


class LongerLists(NamedTuple):
    """R lists over the same C columns, not scored yet."""

    rows: Tensor  # [R, H], embeddings of queries or anchors
    columns: Tensor  # [C, H], embeddings of the texts they are compared with
    labels: Tensor  # [R, C] float, grades
    mask: Tensor  # [R, C] bool, False where a row must not be compared with a column
    distances: Tensor | None = (
        None  # [R, C] float, those of a query to its own documents, NaN elsewhere
    )


def queries_against_all(lists: Embedded) -> LongerLists:
    r"""Each query against the documents of all lists; column :math:`b N + n` is document n of list
    b.

    A query's own documents keep their labels and mask. Documents of other lists get label 0. A row
    leaves out a document that

    * is padding,
    * is judged for the query, with any grade: in ``judged_rows``, or by a label other than 0 in
      another list of the query,
    * is also in the query's own list,
    * repeats a document of an earlier column.

    Documents of equal text count as one document, whatever their ids, by ``doc_keys`` and
    ``judged_keys``.

    Args:
        lists: of one batch, or of all processes.

    Returns:
        R = B rows and C = B·N columns.

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
        raise ValueError(
            "queries_against_all needs lists with queries, got none; take all_against_all for groups of texts"
        )
    n_lists, n_docs = lists.mask.shape
    same = find_duplicates(lists)
    mask_bc = same.is_first_c & ~same.judged_bc
    b = torch.arange(n_lists, device=lists.mask.device).unsqueeze(1)
    own = b, b * n_docs + torch.arange(n_docs, device=b.device)
    mask_bc[b, same.docs_bn] = False
    mask_bc[own] = lists.mask
    labels_bc = lists.labels.new_zeros(mask_bc.shape)
    labels_bc[own] = lists.labels
    return LongerLists(
        lists.queries,
        lists.docs.flatten(0, 1),
        labels_bc,
        mask_bc,
        _distances(lists.distances, own, labels_bc),
    )


def all_against_all(lists: Embedded) -> LongerLists:
    r"""Every text of the batch as an anchor against all texts: first the queries, if there are any,
    then the documents.

    A query and the relevant documents of its list form a group. Two texts of a group have label 1,
    but a query as the anchor has the grades of its documents. All other pairs have label 0. A
    document of label 0 belongs to no group: it is a negative for all anchors, and its own row is
    masked.

    A row leaves out

    * the anchor itself and its duplicates: documents of one ``doc_row``, or of equal text; queries
      of one ``query_row``,
    * padding,
    * texts of other lists that a judgement links with the anchor. One of the two is judged, with
      any grade, for a query that is the other text, or that the other text is relevant to. So lists
      of one query don't use each other's positives as negatives,
    * texts of other lists that are also in the anchor's list, or repeat an earlier column.

    Rows are not merged: a document that is relevant in two lists is an anchor twice, once with each
    group. The rows of the queries, restricted to the columns of the documents, equal those of
    :func:`queries_against_all`.

    Args:
        lists: of one batch, or of all processes.

    Returns:
        R = C = B + B·N, or B·N without queries; rows and columns are the same embeddings.

    Cost:
        As :func:`queries_against_all` over ``[C, C]``.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification
        (P×K batches).

    Example:
        Two groups of two texts, without queries.

        >>> labels, mask = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
        >>> query_rows, doc_rows = torch.tensor([0, 1]), torch.tensor([[0, 1], [2, 3]])
        >>> square = all_against_all(Embedded(None, torch.zeros(2, 2, 4), labels, mask, query_rows, doc_rows))
        >>> square.labels * square.mask
        tensor([[0., 1., 0., 0.],
                [1., 0., 0., 0.],
                [0., 0., 0., 1.],
                [0., 0., 1., 0.]])
    """
    same = find_duplicates(lists)
    texts, at_bk, real_bk, group_bk, first_t, is_first_t = _end_to_end(lists, same)
    first_bk = first_t[at_bk]
    rows_bk = at_bk.unsqueeze(2)
    columns_bk = at_bk.unsqueeze(1)

    # Texts of other lists: the first of equal ones, and none that judgements link to the row.
    mask_tt = is_first_t & ~linked_texts(same.judged_bc, first_bk, group_bk, len(texts))[first_t]
    # Of its own list a row has the real texts that are not its own.
    mask_tt[rows_bk, first_bk.unsqueeze(1)] = False
    mask_tt[rows_bk, columns_bk] = real_bk.unsqueeze(1) & (
        first_bk.unsqueeze(2) != first_bk.unsqueeze(1)
    )
    # Texts outside of a group have no row.
    mask_tt[at_bk[~group_bk]] = False

    own_labels = (group_bk.unsqueeze(2) & group_bk.unsqueeze(1)).to(lists.labels.dtype)
    if lists.queries is not None:
        own_labels[:, 0, 1:] = lists.labels
    labels_tt = lists.labels.new_zeros(mask_tt.shape)
    labels_tt[rows_bk, columns_bk] = own_labels
    of_queries = None if lists.queries is None else lists.distances
    return LongerLists(
        texts,
        texts,
        labels_tt,
        mask_tt,
        _distances(of_queries, (at_bk[:, :1], at_bk[:, 1:]), labels_tt),
    )


def _distances(own_bn: Tensor | None, places: tuple[Tensor, Tensor], like: Tensor) -> Tensor | None:
    """Distances of queries to their own documents at their places of a larger matrix, NaN
    elsewhere; None without any.
    """
    return None if own_bn is None else torch.full_like(like, torch.nan).index_put_(places, own_bn)


class _EndToEnd(NamedTuple):
    """The texts of all lists end to end: T texts, queries first; K of each of B lists."""

    texts: Tensor  # [T, H]
    at_bk: Tensor  # [B, K] int64, the places of a list's texts among all
    real_bk: Tensor  # [B, K] bool, False at the padding
    group_bk: Tensor  # [B, K] bool, the query and its relevant documents
    first_t: Tensor  # [T] int64, the place of the first equal text
    is_first_t: Tensor  # [T] bool, whether that is the text itself


def _end_to_end(lists: Embedded, same: Duplicates) -> _EndToEnd:
    n_lists, n_docs = lists.mask.shape
    device = lists.mask.device
    n_queries = 0 if lists.queries is None else n_lists
    at_bk = n_queries + torch.arange(n_lists * n_docs, device=device).view(n_lists, n_docs)
    real_bk = lists.mask
    group_bk = lists.mask & (lists.labels > 0)
    texts = lists.docs.flatten(0, 1)
    first_t = n_queries + same.docs_bn.flatten()
    is_first_t = same.is_first_c
    if lists.queries is not None:
        b = torch.arange(n_lists, device=device)
        at_bk = torch.cat([b.unsqueeze(1), at_bk], dim=1)
        real_bk = F.pad(real_bk, (1, 0), value=True)
        group_bk = F.pad(group_bk, (1, 0), value=True)
        texts = torch.cat([lists.queries, texts])
        first_t = torch.cat([same.queries_b, first_t])
        is_first_t = torch.cat([same.queries_b == b, is_first_t])
    return _EndToEnd(texts, at_bk, real_bk, group_bk, first_t, is_first_t)
