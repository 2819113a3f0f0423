"""Scores of pairs of a query and a document, in their order, whatever batches they are read in."""

import numpy as np
import pytest
import torch
from torch import nn

from ltr.batch import RankingBatch, Texts
from ltr.data.collection import open_collection
from ltr.data.layouts import FeatureVectors, JoinedPairs
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.models import DualEncoder, Ranker
from ltr.search.embed_texts import encode_in_memory
from ltr.search.scores import pair_scores, to_device
from tests.world.backbones import wordpiece_tokenizer

QUERY_ROWS = np.array([3, 0, 3, 1, 0])
DOC_ROWS = np.array([10, 11, 12, 10, 11])


class ByRow(Ranker):
    """Scores a pair 100 · query + document."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return (100 * batch.query_rows[:, None] + batch.doc_rows).float()


@pytest.fixture(scope="module")
def collection(collection_folder):
    return open_collection(str(collection_folder))


def stores(collection, tokenizer):
    return (
        TokenStore.open(collection.queries, tokenizer),
        TokenStore.open(collection.corpus, tokenizer),
    )


@pytest.mark.parametrize("batch_tokens", [1, 65536])
def test_each_pair_gets_its_own_score_in_any_batches(collection, monkeypatch, batch_tokens):
    monkeypatch.setattr("ltr.search.embed_texts.BATCH_TOKENS", batch_tokens)
    ranker = ByRow(JoinedPairs(wordpiece_tokenizer(), 24)).train()
    scores = pair_scores(ranker, *stores(collection, wordpiece_tokenizer()), QUERY_ROWS, DOC_ROWS)
    assert scores.tolist() == [310, 11, 312, 110, 11] and scores.dtype == np.float32
    assert ranker.training, "it goes on training"


def test_a_dual_encoder_compares_the_embeddings_of_each_pair(collection, backbone, monkeypatch):
    """In spans of two pairs, so that the last has one."""
    monkeypatch.setattr("ltr.search.scores.PAIRS_AT_ONCE", 2)
    model = DualEncoder(backbone, max_length=24, similarity="dot", temperature=0.5).eval()
    queries, docs = stores(collection, model.reads.queries.tokenizer)
    scores = pair_scores(model, queries, docs, QUERY_ROWS, DOC_ROWS)
    q = encode_in_memory(model.query_tower, queries, model.reads.queries, QUERY_ROWS)
    d = encode_in_memory(model.doc_tower, docs, model.reads.docs, DOC_ROWS)
    np.testing.assert_allclose(scores, (q * d).sum(axis=1) / 0.5, rtol=1e-4)
    assert len({*scores.round(3).tolist()}) == 4, "two of the five pairs are equal"


def test_a_ranker_of_feature_vectors_is_refused(collection):
    with pytest.raises(InputError, match="reads texts, got one of feature vectors"):
        pair_scores(
            ByRow(FeatureVectors(3)),
            *stores(collection, wordpiece_tokenizer()),
            QUERY_ROWS,
            DOC_ROWS,
        )


def test_a_batch_goes_to_a_device_with_its_parts_and_without_what_it_has_not():
    ones = torch.ones(1, 2)
    texts = Texts(torch.zeros(4).long(), torch.tensor([2, 2]))
    batch = RankingBatch(ones, ones.bool(), torch.zeros(1).long(), ones.long(), pairs=texts)
    there = to_device(batch, torch.device("meta"))
    assert type(there) is RankingBatch and type(there.pairs) is Texts
    assert there.labels.is_meta and there.pairs.ids.is_meta
    assert there.pairs.type_ids is None and there.features is None
