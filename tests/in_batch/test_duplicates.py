"""Documents of one text are one document."""

import pytest
import torch

from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from tests.in_batch.batches import bools, embedded, grades


@pytest.mark.parametrize(
    ("judged_hashes", "of_first"), [(None, "11 10"), ([[7, 6], [6, 0]], "11 00")]
)
def test_documents_of_one_text_are_one_document(judged_hashes, of_first):
    """Documents 1, 2 and 3, 4 of two queries, where 4 has the text of 1 and 3 that of 9, which is
    judged for the first query.

    The first query leaves out 4, the text of its own 1, and the second 1, the text of its own 4.
    The 3 stays where no document of the batch says that 9 has its text; with the hashes of the
    judged it is left out, in the batch or not.
    """
    lists, *vectors = embedded(
        labels=[[1, 0], [1, 0]],
        doc_rows=[[1, 2], [3, 4]],
        query_rows=[0, 1],
        judged_rows=[[1, 9], [3, -1]],
    )
    lists = lists._replace(doc_hashes=torch.tensor([[7, 8], [6, 7]]))
    if judged_hashes is not None:
        lists = lists._replace(judged_hashes=torch.tensor(judged_hashes))
    longer = queries_against_all(lists, *vectors)
    assert longer.labels.equal(grades("10 00", "00 10"))
    assert longer.mask.equal(bools(of_first, "01 11"))
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
        judged = torch.randint(-1, 20, (5, 3), generator=generator)
        found = form(lists._replace(doc_hashes=hashes), *vectors)
        expected = form(lists._replace(doc_rows=rows % 10), *vectors)
        assert found.mask.equal(expected.mask)
        assert (found.labels * found.mask).equal(expected.labels * expected.mask)
        named = {"judged_rows": judged, "judged_hashes": 1000 - judged % 10}
        named = lists._replace(**named, doc_hashes=hashes)
        numbered = {"judged_rows": judged.where(judged < 0, judged % 10)}
        numbered = lists._replace(**numbered, doc_rows=rows % 10)
        assert form(named, *vectors).mask.equal(form(numbered, *vectors).mask)
        plain = form(lists, *vectors)
        assert not found.mask.equal(plain.mask)
        assert form(lists._replace(doc_hashes=rows), *vectors).mask.equal(plain.mask)
