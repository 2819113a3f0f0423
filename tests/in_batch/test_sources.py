"""Lists of several sources in one batch: a text is compared with those of its own source alone."""

import pytest
import torch

from ltr.batch import RankingBatch
from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from tests.in_batch.batches import bools, embedded
from tests.losses.test_contract import CASES, OVER_THE_BATCH

SOURCES = torch.tensor([0, 1, 0, 1])
EQUAL = 0  # a seed by which both sources have as many rows that can be learnt from


def mixed(seed: int = 0, with_hashes: bool = True):
    """Two lists of each of two sources with two to four documents, some of them judged for other
    queries. The sources have the same texts under the same row numbers: the worst case.
    """
    generator = torch.Generator().manual_seed(seed)
    doc_rows = torch.stack([torch.randperm(6, generator=generator)[:4] for _ in SOURCES])
    labels = torch.randint(0, 3, doc_rows.shape, generator=generator).float()
    labels[:, 0] = 2.0
    labels[:, 1] = 0.0
    judged_rows = torch.randint(-1, 6, (len(SOURCES), 2), generator=generator)
    mask = torch.arange(4) < torch.tensor([4, 3, 2, 4]).unsqueeze(1)
    lists, *_ = embedded(labels, doc_rows, torch.tensor([3, 3, 4, 4]), mask=mask)
    queries = torch.randn(len(SOURCES), 3, generator=generator)
    docs = torch.randn(*doc_rows.shape, 3, generator=generator)
    lists = lists._replace(
        judged_rows=judged_rows,
        judged_grades=(judged_rows >= 3).float(),
        doc_hashes=doc_rows * 7 if with_hashes else None,
        judged_hashes=judged_rows * 7 if with_hashes else None,
        sources=SOURCES,
    )
    return lists, queries, docs


def of_source(lists: RankingBatch, queries: torch.Tensor, docs: torch.Tensor, source: int):
    """Its lists and their embeddings alone."""
    rows = source == SOURCES
    fields = {}
    for name, value in lists._asdict().items():
        if value is not None and name != "sources":
            fields[name] = value[rows]
    return RankingBatch(**fields), queries[rows], docs[rows]


def places_of(policy, lists: RankingBatch, source: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and the columns of its texts: queries first in a square, then documents."""
    n_lists, n_docs = lists.mask.shape
    queries = (source == SOURCES).nonzero().squeeze(1)
    docs = (queries.unsqueeze(1) * n_docs + torch.arange(n_docs)).flatten()
    if policy is queries_against_all:
        return queries, docs
    texts = torch.cat([queries, n_lists + docs])
    return texts, texts


@pytest.mark.parametrize("policy", [queries_against_all, all_against_all])
@pytest.mark.parametrize("with_hashes", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_mixed_batch_is_the_batches_of_its_sources_side_by_side(seed, with_hashes, policy):
    lists, *vectors = mixed(seed, with_hashes)
    longer = policy(lists, *vectors)
    for source in (0, 1):
        rows, columns = places_of(policy, lists, source)
        others = torch.ones(longer.mask.shape[1], dtype=torch.bool)
        others[columns] = False
        expected = policy(*of_source(lists, *vectors, source))
        assert torch.equal(longer.mask[rows][:, columns], expected.mask)
        assert torch.equal(longer.labels[rows][:, columns], expected.labels)
        assert not longer.mask[rows][:, others].any()


def test_without_sources_the_same_lists_are_one_source():
    """Or the law above would hold of anything."""
    apart = torch.tensor([[0], [10], [20], [30]])
    lists, *vectors = mixed(with_hashes=False)
    lists = lists._replace(doc_rows=lists.doc_rows + apart, judged_rows=None, judged_grades=None)
    lists = lists._replace(query_rows=torch.arange(4))
    assert not queries_against_all(lists, *vectors).mask[0, 4:8].any()
    assert queries_against_all(lists._replace(sources=None), *vectors).mask[0, 4:7].all()


def test_groups_without_queries_are_told_apart_too():
    """Two groups of two texts of each source."""
    doc_rows = [[0, 1], [2, 3], [4, 5], [6, 7]]
    lists, *vectors = embedded(torch.ones(4, 2), doc_rows, [0, 1, 2, 3], with_queries=False)
    square = all_against_all(lists._replace(sources=SOURCES), *vectors)
    first = ("01 00 11 00", "10 00 11 00", "00 01 00 11", "00 10 00 11")
    second = ("11 00 01 00", "11 00 10 00", "00 11 00 01", "00 11 00 10")
    assert torch.equal(square.mask, bools(*first, *second))


@pytest.mark.parametrize("policy", [queries_against_all, all_against_all])
@pytest.mark.parametrize("name", CASES)
def test_every_loss_learns_from_a_mixed_batch_what_its_sources_teach(name, policy):
    """No score of two sources has a gradient; the loss is the mean of theirs."""
    loss = CASES[name]().double()
    lists, *vectors = mixed(EQUAL)
    longer = policy(lists, *vectors)
    scores = (longer.queries @ longer.embeddings[0].T).double().requires_grad_()
    labels = longer.labels.double()
    value = loss(scores, labels, longer.mask)
    (gradient,) = torch.autograd.grad(value, scores)
    assert torch.isfinite(value) and torch.isfinite(gradient).all()
    assert not gradient[~longer.mask].any() and gradient[longer.mask].any()
    if name in OVER_THE_BATCH:
        return
    values = []
    for source in (0, 1):
        rows, columns = places_of(policy, lists, source)
        alone = policy(*of_source(lists, *vectors, source))
        own = scores.detach()[rows][:, columns]
        learnable = n_learnable(alone.labels, alone.mask)
        values.append((learnable, loss(own, alone.labels.double(), alone.mask).item()))
    assert len({learnable for learnable, _ in values}) == 1, "or their mean would have weights"
    expected = sum(value for _, value in values) / 2
    assert value.item() == pytest.approx(expected, rel=1e-9)


def n_learnable(labels: torch.Tensor, mask: torch.Tensor) -> int:
    """Rows with two labels."""
    largest = labels.masked_fill(~mask, -1.0).amax(dim=1)
    smallest = labels.masked_fill(~mask, 9.0).amin(dim=1)
    return int((largest > smallest).sum())
