"""Documents of one text are one document."""

import pytest
import torch

from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from tests.in_batch.batches import bools, embedded, grades


def test_documents_of_one_text_are_one_document():
    """Documents 1, 2 and 3, 4 of two queries, where 4 has the text of 1 and 3 that of 9, which is
    judged for the first query.

    The first query leaves out 4, the text of its own 1, and the second 1, the text of its own 4.
    The 3 stays: no document of the batch says that 9 has its text.
    """
    lists, *vectors = embedded(
        labels=[[1, 0], [1, 0]],
        doc_rows=[[1, 2], [3, 4]],
        query_rows=[0, 1],
        judged_rows=[[1, 9], [3, -1]],
    )
    longer = queries_against_all(
        lists._replace(doc_hashes=torch.tensor([[7, 8], [6, 7]])), *vectors
    )
    assert longer.labels.equal(grades("10 00", "00 10"))
    assert longer.mask.equal(bools("11 10", "01 11"))
    square = all_against_all(lists._replace(doc_hashes=torch.tensor([[7, 8], [6, 7]])), *vectors)
    assert square.mask[:2, 2:].equal(longer.mask)


def test_the_text_of_a_judged_document_is_judged_under_every_row():
    """As above, with the hashes of the judged too: the 3, which has the text of the judged 9, is left
    out, in the batch or not.
    """
    lists, *vectors = embedded(
        labels=[[1, 0], [1, 0]],
        doc_rows=[[1, 2], [3, 4]],
        query_rows=[0, 1],
        judged_rows=[[1, 9], [3, -1]],
    )
    lists = lists._replace(
        doc_hashes=torch.tensor([[7, 8], [6, 7]]), judged_hashes=torch.tensor([[7, 6], [6, 0]])
    )
    longer = queries_against_all(lists, *vectors)
    assert longer.mask.equal(bools("11 00", "01 11"))
    assert all_against_all(lists, *vectors).mask[:2, 2:].equal(longer.mask)


@pytest.mark.parametrize(
    "form, with_queries",
    [(queries_against_all, True), (all_against_all, True), (all_against_all, False)],
)
def test_hashes_do_what_one_row_for_each_text_would(form, with_queries):
    """Of forty random batches, rows r and r + 10 of one text: as if all rows were taken modulo 10."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        rows = torch.stack([torch.randperm(20, generator=generator)[:4] for _ in range(5)])
        lists, *vectors = embedded(
            labels=torch.randint(0, 2, (5, 4), generator=generator),
            doc_rows=rows,
            query_rows=torch.randint(0, 4, (5,), generator=generator),
            mask=torch.rand(5, 4, generator=generator) < 0.8,
            with_queries=with_queries,
        )
        hashes = 1000 - rows % 10
        found = form(lists._replace(doc_hashes=hashes), *vectors)
        expected = form(lists._replace(doc_rows=rows % 10), *vectors)
        judged = torch.randint(-1, 20, (5, 3), generator=generator)
        named = lists._replace(
            judged_rows=judged, doc_hashes=hashes, judged_hashes=1000 - judged % 10
        )
        other = form(
            lists._replace(doc_rows=rows % 10, judged_rows=judged.where(judged < 0, judged % 10)),
            *vectors,
        )
        assert form(named, *vectors).mask.equal(other.mask)
        assert found.mask.equal(expected.mask) and (found.labels * found.mask).equal(
            expected.labels * expected.mask
        )
        assert not found.mask.equal(form(lists, *vectors).mask)
        assert form(lists._replace(doc_hashes=rows), *vectors).mask.equal(
            form(lists, *vectors).mask
        )
