"""Ranks are processes (gloo on CPU)."""

import json
from pathlib import Path

import pytest
import torch
from torch import distributed

from ltr.batch import RankingBatch, ScoredLists
from ltr.in_batch.gather import gather_lists, gather_scored
from tests.child_processes import run_ranks
from tests.in_batch.batches import bools
from tests.rank_gradients import BATCHES, FORMS, LOSSES, RANKS, Difference, differences

# They deal lists out evenly and unevenly. One of four, in `make test-long`, gets none; so does one of
# the three below.
SHORTER = [2]
NUMBERS_OF_RANKS = [
    pytest.param(n_ranks, marks=[] if n_ranks in SHORTER else [pytest.mark.long])
    for n_ranks in RANKS
]


@pytest.fixture(scope="module", params=NUMBERS_OF_RANKS)
def found(request, made_once):
    """By loss, form and number of lists."""

    def compare(folder: Path) -> None:
        folder.mkdir()
        (folder / "rows.json").write_text(json.dumps(differences([request.param])))

    file = made_once(f"ranks-{request.param}", compare) / "rows.json"
    rows = [Difference(*row) for row in json.loads(file.read_text())]
    return {(row.loss, row.form, row.n_lists): row for row in rows}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", [loss.__name__ for loss in LOSSES])
def test_ranks_have_the_value_and_the_gradients_of_one_process(found, loss, form):
    """In float64, so that rounding can't hide what is wrong."""
    for n_lists in BATCHES:
        difference = found[loss, form, n_lists]
        assert difference.weakest > 1e-5, "every parameter must learn, or nothing is compared"
        assert difference.value < 1e-9 and difference.gradient < 1e-9, difference


def lists_of(rank: int) -> tuple[RankingBatch, torch.Tensor, torch.Tensor]:
    """2 lists of up to 3 documents and one judgement; none; 1 of 1 document and 2 judgements."""
    n_lists, n_docs, n_judged = [(2, 3, 1), (0, 1, 1), (1, 1, 2)][rank]
    docs = 100.0 * rank + torch.arange(n_lists * n_docs * 2).view(n_lists, n_docs, 2)
    queries = -docs[:, 0].clone().requires_grad_()
    lists = RankingBatch(
        labels=torch.full((n_lists, n_docs), 1.0 + rank),
        mask=torch.tensor([[True, True, True], [True, False, False]])[:n_lists, :n_docs],
        query_rows=10 * rank + torch.arange(n_lists),
        # Beyond 2^53: a row must not travel as a float.
        doc_rows=2**60 + 10 * rank + torch.arange(n_lists * n_docs).view(n_lists, n_docs),
        judged_rows=20 * rank + torch.arange(n_lists * n_judged).view(n_lists, n_judged),
        judged_grades=1.5 + rank + torch.zeros(n_lists, n_judged),
        doc_hashes=-(2**60) - torch.arange(n_lists * n_docs).view(n_lists, n_docs),
        judged_hashes=2**60 + 20 * rank + torch.arange(n_lists * n_judged).view(n_lists, n_judged),
        distances=torch.full((n_lists, n_docs), 0.5 + rank).requires_grad_(),
        sources=3 * rank + torch.arange(n_lists),
    )
    return lists, queries, docs.requires_grad_()


# What a batch may have or not.
MAYBE = ("judged_rows", "judged_grades", "doc_hashes", "judged_hashes", "distances")


def _gather(rank: int, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3
    )
    lists, queries, docs = lists_of(rank)
    whole = gather_lists(lists, queries, docs)
    refused = []
    others = [(lists, None, docs)]
    others += [(lists._replace(**{name: None}), queries, docs) for name in MAYBE]
    others += [(lists, queries, docs[..., :1])]
    for other in others:
        with pytest.raises(ValueError, match="all ranks must have") as error:
            gather_lists(*(other if rank == 2 else (lists, queries, docs)))
        refused.append(str(error.value))
    groups = gather_lists(lists._replace(**dict.fromkeys(MAYBE)), None, docs)
    no_lists = RankingBatch(*(None if t is None else t[:0] for t in lists))
    none, *_ = gather_lists(no_lists, queries[:0], docs[:0])
    scored = gather_scored(
        ScoredLists(
            scores=lists.labels + 0.25,
            labels=lists.labels,
            mask=lists.mask,
            distances=lists.distances if rank == 2 else None,
            queries=queries,
            frozen=(queries + 1, docs + 1),
        )
    )
    torch.save(scored, f"{folder}/scored-{rank}")
    gradients = None
    # Alone: a backward pass with communication would wait for the others, and fail when they have
    # left.
    if rank == 0:
        _, whole_queries, whole_docs = whole
        weights = torch.arange(1.0, 19.0).view(3, 3, 2)
        value = (whole_docs * weights).sum() + 5 * whole_queries[0].sum()
        gradients = torch.autograd.grad(value, (docs, queries))
    torch.save((whole, groups, len(none.mask), refused, gradients), f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(_gather, str(folder), n_ranks=3)
    loaded = [torch.load(folder / str(rank), weights_only=False) for rank in range(3)]
    return [(*found, folder) for found in loaded]


def test_every_rank_has_the_lists_of_all_in_the_order_of_the_batch(three_ranks):
    """The list of rank 2 stands between the two of rank 0; rank 1 has none."""
    none = -(2**60)  # a hash or a row of 0, less 2^60
    for (whole, queries, docs), *_ in three_ranks:
        assert queries.tolist() == [[0, -1], [-200, -201], [-6, -7]]
        assert docs[0].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert docs[1].tolist() == [[200, 201], [0, 0], [0, 0]]
        assert docs[2].tolist() == [[6, 7], [8, 9], [10, 11]]
        assert whole.labels.tolist() == [[1, 1, 1], [3, 0, 0], [1, 1, 1]]
        assert whole.distances.tolist() == [[0.5] * 3, [2.5, 0, 0], [0.5] * 3]
        for constant in (whole.labels, whole.distances, whole.judged_grades):
            assert not constant.requires_grad
        # Both later lists have one document.
        assert whole.mask.equal(bools("111", "100", "100"))
        assert whole.query_rows.tolist() == [0, 20, 1]
        assert (whole.doc_rows - 2**60).tolist() == [[0, 1, 2], [20, none, none], [3, 4, 5]]
        assert whole.judged_rows.tolist() == [[0, -1], [40, 41], [1, -1]]
        assert whole.judged_grades.tolist() == [[1.5, 0], [3.5, 3.5], [1.5, 0]]
        assert (whole.judged_hashes - 2**60).tolist() == [[0, none], [40, 41], [1, none]]
        assert (-(2**60) - whole.doc_hashes).tolist() == [[0, 1, 2], [0, none, none], [3, 4, 5]]


def test_scored_lists_are_gathered_with_what_any_rank_has(three_ranks):
    """Rank 2 alone has a distance, 2.5; the frozen embeddings are those of the ranker plus 1."""
    for number, (gathered, *_, folder) in enumerate(three_ranks):
        whole, whole_queries, whole_docs = gathered
        scored = torch.load(folder / f"scored-{number}", weights_only=False)
        assert scored.scores.tolist() == [[1.25] * 3, [3.25, 0, 0], [1.25] * 3]
        assert scored.mask.equal(whole.mask) and scored.labels.equal(whole.labels)
        assert scored.distances.isnan().tolist() == [[True] * 3, [False] * 3, [True] * 3]
        assert scored.distances[1].tolist() == [2.5, 0, 0]
        assert scored.queries.equal(whole_queries) and scored.embeddings is None
        queries, docs = scored.frozen
        assert queries.equal(whole_queries + 1) and docs[1, 0].equal(whole_docs[1, 0] + 1)


def test_what_no_rank_has_is_not_there_and_what_some_have_is_refused_by_all(three_ranks):
    has_all = (*[True] * 6, 2)
    others = []
    for place in (2, 0, 1, 3, 4, 5):  # the queries, which come third, are left out first
        others.append(has_all[:place] + (False,) + has_all[place + 1 :])
    others.append(has_all[:-1] + (1,))
    for (_, _, whole_docs), (groups, queries, docs), n_none, refused, *_ in three_ranks:
        assert queries is None and groups.judged_rows is None and groups.distances is None
        assert docs.equal(whole_docs) and n_none == 0
        told = [message.split(": ")[-1] for message in refused]
        assert told == [str([has_all, has_all, other]) for other in others]


def test_a_rank_gets_the_gradient_of_its_own_part_times_the_ranks_without_the_others(three_ranks):
    """Weights 1 to 6 and 13 to 18 of its documents, 5 of its first query; three ranks."""
    docs, queries = three_ranks[0][-2]
    assert docs.flatten().tolist() == [3.0 * weight for weight in (*range(1, 7), *range(13, 19))]
    assert queries.tolist() == [[15.0, 15.0], [0.0, 0.0]]


def test_one_rank_keeps_its_lists(tmp_path):
    given = lists_of(0)
    assert gather_lists(*given) == given
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        assert gather_lists(*given) == given
    finally:
        distributed.destroy_process_group()
