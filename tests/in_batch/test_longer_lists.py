"""Longer lists: labels, masks and distances by hand, and against a double loop."""

import pytest
import torch

from ltr.batch import RankingBatch
from ltr.in_batch.guide import mask_likely_relevant
from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from tests.in_batch.batches import bools, embedded, grades


def test_queries_against_all_by_hand():
    """Columns are documents 1 2 3, 4 2 and padding, 5 6 4.

    The first query leaves out the second 2, which is in its own list, the 6 that is judged for it,
    and the second 4. The second query has 2 and 4 in its list, wherever else they stand; the third
    has 4 in its list, and the second 2 repeats the first.
    """
    lists, *vectors = embedded(
        labels=[[2, 0, 1], [1, 0, 0], [1, 0, 0]],
        doc_rows=[[1, 2, 3], [4, 2, 6], [5, 6, 4]],
        query_rows=[10, 11, 12],
        judged_rows=[[1, 3, 6], [4, -1, -1], [5, 6, -1]],
        mask=bools("111", "110", "111"),
    )
    longer = queries_against_all(lists, *vectors)
    assert longer.labels.equal(grades("201 000 000", "000 100 000", "000 000 100"))
    assert longer.mask.equal(bools("111 100 100", "101 110 110", "111 000 111"))
    assert longer.queries.flatten().tolist() == [-11, -12, -13]
    assert longer.embeddings[0].flatten().tolist() == [1, 2, 3, 4, 2, 6, 5, 6, 4]


def test_distances_stay_with_the_own_documents_of_a_query():
    """In the square the four documents are anchors, and have none."""
    lists, *vectors = embedded(
        labels=[[1, 0], [1, 0]], doc_rows=[[1, 2], [3, 4]], query_rows=[10, 11]
    )
    _, docs = vectors
    nan = torch.nan
    given = lists._replace(distances=torch.tensor([[0.0, 0.5], [0.0, 0.25]]))
    of_queries = torch.tensor([[0.0, 0.5, nan, nan], [nan, nan, 0.0, 0.25]])
    longer = queries_against_all(given, *vectors).distances
    square = all_against_all(given, *vectors).distances
    torch.testing.assert_close(longer, of_queries, equal_nan=True)
    torch.testing.assert_close(square[:2, 2:], of_queries, equal_nan=True)
    assert square.isnan().sum() == 6 * 6 - 4
    assert all_against_all(given, None, docs).distances is None
    assert queries_against_all(lists, *vectors).distances is None
    assert all_against_all(lists, *vectors).distances is None


def test_all_against_all_by_hand():
    """Texts are the queries a and b, documents 1 (grade 2) and 2 (grade 0) of a, 3 and 1 (grade 1
    both) of b.

    Document 1 is relevant to both queries, so no text of either group is irrelevant to it, and the
    2 judged for a is so only in the list of a. The anchor of grade 0 is masked.
    """
    lists, *vectors = embedded(
        labels=[[2, 0], [1, 1]],
        doc_rows=[[1, 2], [3, 1]],
        query_rows=[0, 1],
        judged_rows=[[1, 2], [3, 1]],
    )
    square = all_against_all(lists, *vectors)
    mask = bools("01 11 10", "10 01 11", "10 01 00", "00 00 00", "11 01 01", "01 00 10")
    assert square.mask.equal(mask)
    expected = grades("00 20 00", "00 00 11", "10 00 00", "00 00 00", "01 00 01", "01 00 10")
    assert (square.labels * square.mask).equal(expected)
    for side in (square.queries, square.embeddings[0]):
        assert side.flatten().tolist() == [-1, -2, 1, 2, 3, 1]


def test_groups_without_queries_are_the_square_of_their_texts():
    """Three texts of one label, two of another and a padding; text 3 has no positive."""
    lists, *vectors = embedded(
        labels=torch.ones(3, 3),
        doc_rows=[[5, 1, 4], [2, 0, 0], [3, 0, 0]],
        query_rows=[0, 1, 2],
        mask=bools("111", "110", "100"),
        with_queries=False,
    )
    square = all_against_all(lists, *vectors)
    nothing = "000 000 000"
    first = ("011 110 100", "101 110 100", "110 110 100")
    second = ("111 010 100", "111 100 100", nothing)
    assert square.mask.equal(bools(*first, *second, "111 110 000", nothing, nothing))
    own = (square.labels * square.mask).nonzero().tolist()
    assert own == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1], [3, 4], [4, 3]]


def test_two_lists_of_one_query_do_not_take_each_others_relevant_documents_for_irrelevant():
    """Documents 1 (relevant) and 2 in one list, 3 (relevant) and 4 in the other."""
    lists, *vectors = embedded(
        labels=[[1, 0], [1, 0]], doc_rows=[[1, 2], [3, 4]], query_rows=[7, 7]
    )
    assert queries_against_all(lists, *vectors).mask.equal(bools("11 01", "01 11"))
    square = all_against_all(lists, *vectors)
    mask = bools("00 11 01", "00 01 11", "10 01 01", "00 00 00", "01 01 01", "00 00 00")
    assert square.mask.equal(mask)
    assert (square.labels * square.mask).nonzero().tolist() == [[0, 2], [1, 4], [2, 0], [4, 1]]


def test_documents_relevant_to_one_query_are_no_negatives_of_each_other_in_the_lists_of_others():
    """Lists 0: [1], 1: [2], 2: [4], 3: [6]. Query 0 judges 1, 2 and 4 relevant, and 6 irrelevant.

    So no row of 1, 2 or 4 has one of them, or the 6, as a negative. Without the grades, only the 1
    is known to be relevant to query 0, by its label.
    """
    lists, *vectors = embedded(
        labels=[[1], [1], [1], [1]],
        doc_rows=[[1], [2], [4], [6]],
        query_rows=[0, 1, 2, 3],
        judged_rows=[[1, 2, 4, 6], [2, -1, -1, -1], [4, -1, -1, -1], [6, -1, -1, -1]],
        judged_grades=[[1.0, 2.0, 1.0, 0.0], [1.0, 0, 0, 0], [1.0, 0, 0, 0], [1.0, 0, 0, 0]],
    )
    square = all_against_all(lists, *vectors)
    assert square.mask[4:].equal(bools("1111 0000", "0111 0000", "0111 0000", "0111 0000"))
    rows = all_against_all(lists._replace(judged_grades=None), *vectors).mask[4:]
    assert rows.equal(bools("1111 0000", "0111 0011", "0111 0101", "0111 0110"))


def random_lists(seed: int, with_queries: bool = True):
    """Up to 5 lists of up to 5 documents, some twice in a list; queries that come twice."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    b, n, j = draw(1, 6, 3).tolist()
    return embedded(
        labels=draw(-1, 3, b, n).float(),
        doc_rows=draw(0, 9, b, n).tolist(),
        query_rows=draw(0, 6, b).tolist(),
        judged_rows=None if seed % 3 == 0 else draw(-1, 9, b, j).tolist(),
        mask=draw(0, 4, b, n) > 0,
        with_queries=with_queries,
        judged_grades=draw(-1, 3, b, j).float().tolist() if seed % 3 == 1 else None,
    )


def texts_of(lists: RankingBatch, with_queries: bool) -> list[tuple]:
    """(list, whether a query, row, label, real) of every text of the square matrix."""
    queries = []
    if with_queries:
        queries = [(b, True, row, None, True) for b, row in enumerate(lists.query_rows.tolist())]
    parts = (lists.doc_rows, lists.labels, lists.mask)
    columns = zip(*(part.flatten().tolist() for part in parts), strict=True)
    width = lists.mask.shape[1]
    return queries + [(c // width, False, *column) for c, column in enumerate(columns)]


def slow_square(lists: RankingBatch, with_queries: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels (0 where masked) and mask by a double loop over texts and sets of rows."""
    texts = texts_of(lists, with_queries)
    rows = lists.query_rows.tolist()
    judged = {row: set() for row in rows}
    relevant = {row: set() for row in rows}
    for b, is_query, row, label, real in texts:
        if not is_query and real:
            judged[rows[b]] |= {row} if label != 0 else set()
            relevant[rows[b]] |= {row} if label > 0 else set()
    if lists.judged_rows is not None:
        known_grades = lists.judged_grades
        if known_grades is None:
            known_grades = torch.zeros(lists.judged_rows.shape)
        for row, *both in zip(rows, lists.judged_rows.tolist(), known_grades.tolist(), strict=True):
            for doc, grade in zip(*both, strict=True):
                judged[row] |= {doc} if doc >= 0 else set()
                relevant[row] |= {doc} if doc >= 0 and grade > 0 else set()

    def name(text):
        return text[1:3]

    def queries_of(text):
        return {text[2]} if text[1] else {query for query in relevant if text[2] in relevant[query]}

    def is_judged(text, other):
        return not text[1] and any(text[2] in judged[query] for query in queries_of(other))

    def compared(i, j):
        anchor = texts[i]
        other = texts[j]
        in_group = anchor[1] or (anchor[4] and anchor[3] > 0)
        if not in_group or not other[4] or name(anchor) == name(other):
            return False
        if anchor[0] == other[0]:
            return True
        in_own_list = any(t[4] and t[0] == anchor[0] and name(t) == name(other) for t in texts)
        repeats = any(t[4] and name(t) == name(other) for t in texts[:j])
        return not (in_own_list or repeats or is_judged(anchor, other) or is_judged(other, anchor))

    def label(i, j):
        anchor = texts[i]
        other = texts[j]
        if anchor[0] != other[0]:
            return 0.0
        if anchor[1]:
            return other[3]
        return float(other[1] or other[3] > 0)

    size = range(len(texts))
    mask = torch.tensor([[compared(i, j) for j in size] for i in size])
    labels = torch.tensor([[label(i, j) if mask[i, j] else 0.0 for j in size] for i in size])
    return labels, mask


@pytest.mark.parametrize("with_queries", [True, False])
def test_the_square_is_that_of_a_double_loop(with_queries):
    for seed in range(150):
        lists, *vectors = random_lists(seed, with_queries)
        labels, mask = slow_square(lists, with_queries)
        square = all_against_all(lists, *vectors)
        assert square.mask.equal(mask), seed
        assert (square.labels * mask).equal(labels), seed


def test_queries_against_all_is_the_part_of_the_square_with_their_rows_and_the_documents_columns():
    """What a list holds twice stays twice in both."""
    for seed in range(150):
        lists, *vectors = random_lists(seed)
        longer = queries_against_all(lists, *vectors)
        square = all_against_all(lists, *vectors)
        b = len(lists.query_rows)
        assert longer.mask.equal(square.mask[:b, b:]), seed
        assert (longer.labels * longer.mask).equal((square.labels * square.mask)[:b, b:]), seed


@pytest.mark.parametrize("form", [queries_against_all, all_against_all])
def test_the_order_of_the_lists_changes_only_the_order(form):
    """Whichever of the columns of a text is the one that counts."""

    def seen(longer):
        anchors = longer.queries.flatten().tolist()
        columns = longer.embeddings[0].flatten()
        rows = []
        for anchor, labels, mask in zip(anchors, longer.labels, longer.mask, strict=True):
            texts = zip(columns[mask].tolist(), labels[mask].tolist(), strict=True)
            rows.append((anchor, sorted(texts)))
        return sorted(rows)

    for seed in range(50):
        lists, *vectors = random_lists(seed)
        order = torch.randperm(len(lists.mask), generator=torch.Generator().manual_seed(seed))
        shuffled = RankingBatch(*(None if t is None else t[order] for t in lists))
        in_order = [vector[order] for vector in vectors]
        assert seen(form(shuffled, *in_order)) == seen(form(lists, *vectors)), seed


@pytest.mark.parametrize("form", [queries_against_all, all_against_all])
def test_embeddings_keep_their_gradient_and_one_list_alone_stays_itself(form):
    lists, queries, docs = embedded(
        labels=[[2, 0, 1]], doc_rows=[[3, 4, 5]], query_rows=[0], mask=bools("110")
    )
    longer = form(lists, queries.requires_grad_(), docs.requires_grad_())
    assert longer.mask[0, -3:].tolist() == [True, True, False]
    assert (longer.labels * longer.mask)[0, -3:].tolist() == [2, 0, 0]
    (longer.queries.sum() + 2 * longer.embeddings[0].sum()).backward()
    assert (queries.grad == (1 if form is queries_against_all else 3)).all()
    assert (docs.grad == (2 if form is queries_against_all else 3)).all()


def test_a_batch_without_lists_has_no_rows():
    rows = torch.zeros(0, 2, dtype=torch.int64)
    nothing, *vectors = embedded(
        labels=rows, doc_rows=rows, query_rows=rows[:, 0], mask=rows.bool()
    )
    for form in (queries_against_all, all_against_all):
        longer = form(nothing, *vectors)
        assert longer.mask.shape == longer.labels.shape == (0, 0)
        assert mask_likely_relevant(longer.mask, longer.labels, longer.labels).shape == (0, 0)


def test_queries_against_all_needs_queries():
    lists, *vectors = embedded(labels=[[1]], doc_rows=[[0]], query_rows=[0], with_queries=False)
    message = "needs lists with queries, got none; take all_against_all"
    with pytest.raises(ValueError, match=message):
        queries_against_all(lists, *vectors)
