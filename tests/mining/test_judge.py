"""A second ranker scores negatives."""

import numpy as np
import torch
from torch import nn

from ltr.data.layouts import JoinedPairs
from ltr.data.query_lists import QueryLists
from ltr.mining.audit import find_suspects
from ltr.mining.judge import TextScorer
from ltr.models import PairWiseBertRanker, Ranker
from tests.mining.audited import negatives_of
from tests.world.backbones import wordpiece_tokenizer


class ByNumber(Ranker):
    """Scores a document by its row: the test says what."""

    def __init__(self, scores: dict[int, float]) -> None:
        super().__init__()
        self.reads = JoinedPairs(wordpiece_tokenizer(), 24)
        self.scores = scores
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return torch.tensor([[self.scores[doc] for doc in row] for row in batch.doc_rows.tolist()])


def test_what_the_judge_scores_above_the_weakest_relevant_document(collection):
    """Query 0 has 10 (score 5) and 11 (score 2) as relevant: 12 (3) is above 2, 13 (1.5) only by a
    margin of 1; 14 is judged.

    Query 1 has 20 (score 1): 21 with 9 has the largest gap. Query 2 has no negatives.
    """
    judged = QueryLists.from_rows([0, 0, 0, 1, 2], [10, 11, 14, 20, 30], [2, 1, 0, 1, 1])
    negatives = negatives_of(collection, {0: [14, 12, 13], 1: [21, 22]})
    scores = dict.fromkeys(range(len(collection.corpus)), 0.0)
    scores |= {10: 5, 11: 2, 12: 3, 13: 1.5, 14: 9, 20: 1, 21: 9, 22: 1, 30: 0}
    judge = TextScorer("a table", ByNumber(scores), collection)
    found, counts = find_suspects(negatives, judged, judge)
    expected = [[1, 0], [21, 12], [0, 1], [9, 3], [20, 11], [1, 2]]
    assert [values.tolist() for values in found] == expected
    assert counts == {"queries": 2, "negatives": 4, "suspects": 2, "suspect_queries": 2}
    more, _ = find_suspects(negatives, judged, judge, margin=1.0)
    assert more.doc_rows.tolist() == [21, 12, 22, 13] and more.gaps.tolist() == [8, 1, 0, -0.5]
    none, counts = find_suspects(negatives, judged, judge, margin=-100.0)
    assert counts["suspects"] == 0 and all(len(values) == 0 for values in none)


def test_scores_are_those_of_the_ranker(collection, backbone):
    """A real cross-encoder gives a list the same, whatever else is judged with it."""
    torch.manual_seed(1)
    judge = TextScorer("x", PairWiseBertRanker(backbone, max_length=24).eval(), collection)
    judged = collection.judgements("train")
    rng = np.random.default_rng(0)
    ids = rng.integers(len(collection.corpus), size=(len(judged.query_rows), 5))
    by_query = dict(zip(judged.query_rows.tolist(), ids.tolist(), strict=True))
    found, _ = find_suspects(negatives_of(collection, by_query), judged, judge)
    scores, lowest = judge.scores(judged, ids)
    known = [np.isin(row, judged.of(query)[0]) for query, row in by_query.items()]
    above = (scores > lowest[:, None]) & ~np.array(known)
    assert len(found.scores) == above.sum() > 10
    place = np.searchsorted(judged.query_rows, found.query_rows)
    np.testing.assert_allclose(found.scores, scores[place, found.places], atol=1e-5)
    np.testing.assert_allclose(found.relevant_scores, lowest[place], atol=1e-5)
    assert (np.diff(found.gaps) <= 0).all()
