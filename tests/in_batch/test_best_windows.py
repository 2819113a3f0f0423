"""In-batch negatives in windows: each query beside the best window of every document."""

import numpy as np
import pytest
import torch

from ltr.data.windows import Windows
from ltr.in_batch import OtherQueries
from ltr.in_batch.best_windows import best_embeddings, windows_in_rows
from ltr.margins import FromDistance, FromDocuments
from ltr.use.rankers import TextRanker
from tests.child_processes import run_ranks
from tests.models.test_windows import BEST, DOCS, QUERIES, batch_of, dual, windows_of

LISTS = [[0, 1], [2, 4]]
COLUMNS = [0, 1, 2, 4]


def test_windows_stand_side_by_side_and_the_first_fills_up():
    windows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert windows_in_rows(windows, torch.tensor([2, 1])).tolist() == [[1, 2, 3, 4], [5, 6, 5, 6]]


def test_each_row_has_its_own_best_window(backbone):
    """By dot product: of the windows (1, 0) and (0, 1), and of (−1, −1) twice."""
    columns = torch.tensor([[1.0, 0.0, 0.0, 1.0], [-1.0, -1.0, -1.0, -1.0]], requires_grad=True)
    rows = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    best = best_embeddings(dual(backbone), rows, columns)
    assert best.tolist() == [[[1, 0], [-1, -1]], [[0, 1], [-1, -1]]]
    (gradient,) = torch.autograd.grad(best[0].sum(), columns)
    assert gradient.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]


def scores_alone(plain):
    """``[query, column]``: the highest score of a document's windows, each a text of its own."""
    alone = TextRanker(plain)
    return np.array(
        [
            [max(alone.score([(query, text) for text in windows_of(DOCS[doc])])) for doc in COLUMNS]
            for query in QUERIES
        ]
    )


@pytest.mark.parametrize("similarity", ["dot", "cosine", "euclidean"])
def test_scores_are_those_of_the_best_windows(backbone, similarity):
    plain, ranker = dual(backbone, similarity=similarity), dual(backbone, BEST, similarity)
    policy = OtherQueries()
    policy.attach(ranker)
    lists = policy(ranker.eval(), batch_of(ranker, LISTS))
    np.testing.assert_allclose(lists.scores.detach(), scores_alone(plain), atol=1e-4)
    assert lists.mask.all() and lists.labels.tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]
    assert lists.embeddings.shape == (2, 4, 16)


@pytest.mark.parametrize("margin", [FromDistance(), FromDocuments()])
def test_margins_see_the_best_windows(backbone, margin):
    """Documents of one window each have the margins that they have without windows."""
    found = []
    for windows in (None, Windows(20, 10), BEST):
        ranker = dual(backbone, windows, "cosine").eval()
        policy = OtherQueries()
        policy.attach(ranker)
        lists = policy(ranker, batch_of(ranker, LISTS), margin)
        found.append(margin(lists).detach())
    torch.testing.assert_close(found[1].expand_as(found[0]), found[0], atol=1e-5, rtol=0)
    assert found[2].isfinite().all() and (found[2] - found[0]).abs().max() > 1e-4


def test_a_guide_and_the_encoder_of_a_margin_choose_their_own_windows(backbone):
    ranker = dual(backbone, BEST, "cosine")
    policy = OtherQueries(guide=backbone)
    policy.attach(ranker)
    guide = policy._encoders_beside[backbone]
    assert guide.reads.docs.windows == BEST
    batch = batch_of(ranker, LISTS)
    margin = FromDistance()
    margin.encoder = backbone
    lists = policy(ranker.eval(), batch, margin)
    expected = scores_alone(dual(backbone, similarity="cosine").eval())
    frozen_queries, frozen_docs = lists.frozen
    cosines = torch.nn.functional.cosine_similarity(frozen_queries.unsqueeze(1), frozen_docs, dim=2)
    np.testing.assert_allclose(cosines, expected, atol=1e-4)
    relevant = expected[[0, 1], [0, 2]]
    above = expected > relevant[:, None]
    above[[0, 1], [0, 2]] = False
    assert (lists.mask == torch.from_numpy(~above)).all()


def scores_and_gradients(ranker, batch):
    policy = OtherQueries()
    lists = policy(ranker.eval(), batch)
    lists.scores.square().sum().backward()
    return [lists.scores.detach(), *(p.grad for p in ranker.parameters() if p.grad is not None)]


def _rank(rank: int, folder: str, backbone: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    ranker = dual(backbone, BEST)
    batch = batch_of(ranker, [LISTS[rank]], first_query=rank)
    torch.save(scores_and_gradients(ranker, batch), f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_scores_and_gradients_of_one(backbone, tmp_path):
    """The second one alone has a document of five windows. Gradients are averaged there."""
    ranker = dual(backbone, BEST)
    expected = scores_and_gradients(ranker, batch_of(ranker, LISTS))
    run_ranks(_rank, str(tmp_path), backbone)
    first, second = (torch.load(tmp_path / str(rank)) for rank in (0, 1))
    for scores in (first[0], second[0]):
        torch.testing.assert_close(scores, expected[0], atol=1e-5, rtol=1e-4)
    for ours, theirs, one in zip(first[1:], second[1:], expected[1:], strict=True):
        torch.testing.assert_close((ours + theirs) / 2, one, atol=1e-4, rtol=1e-3)
