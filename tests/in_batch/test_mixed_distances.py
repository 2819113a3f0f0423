"""Lists of a batch with and without mined distances: each takes its own, in however many processes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, Texts
from ltr.data.collate import padded_lists
from ltr.data.query_lists import LabelledList
from ltr.in_batch import AllTexts, OtherQueries, OwnLists
from ltr.losses import MarginRankingLoss
from ltr.margins import Annealed, FromDistance, FromQuery, Learnable, NormalSample
from ltr.models import DualEncoder
from ltr.models.ranker import Ranker
from ltr.similarity import Dot
from tests.in_batch.batches import on_ranks

SIZE = 3  # of the vectors of texts


class Vectors(DualEncoder):
    """Texts are rows of a table, brought into one space by a matrix that is trained."""

    def __init__(self, queries: Tensor, docs: Tensor, matrix: Tensor) -> None:
        nn.Module.__init__(self)
        self.of_queries = queries
        self.of_docs = docs
        self.matrix = nn.Parameter(matrix.clone())
        self.similarity = Dot()
        self._temperature = 1.0
        self.learn_temperature = False

    @property
    def reads(self):
        return SimpleNamespace(docs=SimpleNamespace(has_many_embeddings=False), queries=None)

    def embed(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        docs = self.of_docs[batch.doc_rows[batch.mask]] @ self.matrix
        return self.of_queries[batch.query_rows] @ self.matrix, batch.in_lists(docs)

    @property
    def temperature(self) -> float:
        return 1.0


def mixed_lists(rng: np.random.Generator) -> list[LabelledList]:
    """Some with distances, some without, some with both kinds of negatives; a distance may be 0."""
    lists = []
    n_docs = 0
    for query in range(int(rng.integers(3, 8))):
        n_relevant, n_negatives = rng.integers(1, 3), rng.integers(1, 4)
        n = int(n_relevant + n_negatives)
        distances = rng.choice([0.0, 0.5, 3.0], n).astype(np.float32)
        distances[:n_relevant] = np.nan
        share_without = rng.choice([0.0, 0.5, 1.0])
        distances[rng.random(n) < share_without] = np.nan
        grades = np.zeros(n, np.float32)
        grades[:n_relevant] = rng.integers(1, 3, n_relevant)
        only_nan = np.isnan(distances).all()
        given = None if only_nan and rng.random() < 0.5 else distances
        lists.append(LabelledList(query, n_docs + np.arange(n), grades, given))
        n_docs += n
    return lists


def batch_of(lists: list[LabelledList]) -> RankingBatch:
    batch = padded_lists(lists)
    batch = batch._replace(sources=batch.query_rows % 2)
    doc_rows = batch.doc_rows[batch.mask]
    return batch._replace(docs=Texts(doc_rows, torch.ones_like(doc_rows)))


def losses_of_ranks(lists, ranker_options, policy, margins, n_ranks):
    """The loss of each rank, and the mean of their gradients."""

    def run(rank):
        ranker = Vectors(*ranker_options)
        margin = margins()
        scored = policy(ranker, batch_of(lists[rank::n_ranks]), margin)
        of_batch = margin(scored)
        loss = MarginRankingLoss()(scored.scores, scored.labels, scored.mask, of_batch)
        return loss.detach(), torch.autograd.grad(loss, ranker.matrix)[0]

    losses, gradients = zip(*on_ranks(run, n_ranks), strict=True)
    return list(losses), torch.stack(gradients).mean(dim=0)


def by_hand(lists, ranker_options, margin, in_batch: bool):
    """The loss and its gradient, list by list, without anything of the package."""
    queries, docs, matrix = ranker_options
    matrix = matrix.clone().requires_grad_()
    width = max(len(one.doc_rows) for one in lists)
    if in_batch:  # each list stands in as many columns
        width *= len(lists)
    draws = np.random.default_rng([0, 0, 0]).normal(0.3, 0.1, (len(lists), width))
    of_lists = []
    for number, one in enumerate(lists):
        query = queries[one.query_row] @ matrix
        doc_rows = one.doc_rows.tolist()
        grades = one.labels.tolist()
        mined = [float("nan")] * len(grades)
        if one.distances is not None:
            mined = one.distances.tolist()
        if in_batch:
            for other in lists:
                if other is not one and other.query_row % 2 == one.query_row % 2:
                    doc_rows += other.doc_rows.tolist()
                    grades += [0.0] * len(other.doc_rows)
                    mined += [float("nan")] * len(other.doc_rows)
        embedded = docs[doc_rows] @ matrix
        scores = embedded @ query
        now = (embedded - query).norm(dim=1).tolist()
        lower = [place for place, grade in enumerate(grades) if grade < max(grades)]
        asked = {}
        if isinstance(margin, FromDistance):
            for place in lower:
                d = now[place] if np.isnan(mined[place]) else mined[place]
                asked[place] = min(0.5 * d**0.5, 0.8)
        else:
            # An in-batch policy hands on no distances that its margin does not ask for.
            goes_by_score = in_batch or any(np.isnan(mined[place]) for place in lower)
            ease = (-scores).tolist() if goes_by_score else mined
            smallest_first = np.sort(draws[number, : len(lower)])
            easiest_last = sorted(lower, key=lambda place: ease[place])
            for place, draw in zip(easiest_last, smallest_first, strict=True):
                asked[place] = float(np.clip(draw, 1e-4, 0.5))
        costs = []
        for i, grade in enumerate(grades):
            for j in lower:
                if grade > grades[j]:
                    costs.append(torch.relu(asked[j] - (scores[i] - scores[j])))
        if costs:
            of_lists.append(torch.stack(costs).mean())
    loss = torch.stack(of_lists).mean()
    return loss.detach(), torch.autograd.grad(loss, matrix)[0]


FROM_DISTANCE = FromDistance(k=0.5, power=0.5, cap=0.8)


def options_of(lists, rng):
    """Queries, documents and the matrix of a ranker."""
    shapes = [(len(lists), SIZE), (sum(len(one.doc_rows) for one in lists), SIZE), (SIZE, SIZE)]
    return [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]


def test_each_list_takes_its_own_distances_in_any_number_of_processes():
    """Value and gradient are those of a loop over lists, documents and pairs."""
    rng = np.random.default_rng(0)
    for number in range(60):
        lists = mixed_lists(rng)
        options = options_of(lists, rng)
        policy = (OwnLists, OtherQueries)[number % 2]
        make = (lambda: FROM_DISTANCE, NormalSample)[number // 2 % 2]
        value, gradient = by_hand(lists, options, make(), policy is OtherQueries)
        for n_ranks in (1, 2, 4):
            if n_ranks > len(lists):
                continue
            values, found = losses_of_ranks(lists, options, policy(), make, n_ranks)
            # Distances are float32 on disk.
            for of_rank in values:
                torch.testing.assert_close(of_rank, value, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(found, gradient, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("policy", [OwnLists, OtherQueries, AllTexts])
@pytest.mark.parametrize(
    "margin",
    [lambda: Annealed(FROM_DISTANCE, 1), lambda: FromQuery(gradient=True), Learnable, NormalSample],
)
def test_every_margin_is_that_of_one_process(policy, margin):
    rng = np.random.default_rng(1)
    lists = mixed_lists(rng)
    while len(lists) < 4:
        lists = mixed_lists(rng)
    options = options_of(lists, rng)
    (value,), gradient = losses_of_ranks(lists, options, policy(), margin, 1)
    assert value.isfinite() and gradient.isfinite().all()
    for n_ranks in (2, 3, 4):
        values, found = losses_of_ranks(lists, options, policy(), margin, n_ranks)
        torch.testing.assert_close(values, [value] * n_ranks)
        torch.testing.assert_close(found, gradient)


class Scores(Ranker):
    """Of no dual encoder, all of them 0."""

    gives_embeddings = False

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, batch: RankingBatch) -> Tensor:
        return torch.zeros_like(batch.labels)


def test_another_ranker_asks_no_gap_between_relevant_documents():
    """Of grades 2 and 1 with a mined negative; of a teacher's scores; without any distance."""
    nan = float("nan")

    def lists(*docs):
        """Of the grades and the distances of their documents."""
        batch = padded_lists(
            [
                LabelledList(number, np.arange(len(grades)), np.float32(grades), *distances)
                for number, (grades, *distances) in enumerate(docs)
            ]
        )
        return OwnLists()(Scores(), batch, FromDistance())

    graded = ([2, 1, 0], np.float32([nan, nan, 0.5]))
    of_teacher = ([-1, -3, -2], np.float32([nan, nan, 0.0]))
    assert FromDistance()(lists(graded, of_teacher)).tolist() == [[0, 0, 0.5], [0, 0, 0]]
    others = lists(([1, 0], np.float32([nan, 0.5])), ([1, 0],))
    with pytest.raises(ValueError, match="got negatives without one"):
        FromDistance()(others)
