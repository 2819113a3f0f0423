"""Batches made of lists: padding, feature vectors, and the texts of rankers."""

import itertools

import numpy as np
import pytest
import torch

from ltr.batch import Texts
from ltr.data.collate import FeatureCollator, PairCollator
from ltr.data.layouts import JoinedPairs
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.tokens import TokenStore
from tests.world.backbones import wordpiece_tokenizer
from tests.world.tokenizers import TEXTS, table_of


@pytest.fixture
def collator():
    tokenizer = wordpiece_tokenizer()
    store = TokenStore.open(table_of(TEXTS), tokenizer)
    return PairCollator(store, store, JoinedPairs(tokenizer, 24))


def labelled(query_row, doc_rows, labels, distances=None, ideal=None):
    floats = [
        None if values is None else np.asarray(values, np.float32)
        for values in (labels, distances, ideal)
    ]
    return LabelledList(query_row, np.asarray(doc_rows, np.int64), *floats)


def test_lists_are_padded_to_one_width(collator):
    first = labelled(1, [3], [2.0], [0.5], [2.0, 1.0, 1.0])
    second = labelled(0, [5, 2], [0.0, 1.0], [0.25, 0.75], [1.0])
    batch = collator([first, second])
    assert batch.labels.tolist() == [[2.0, 0.0], [0.0, 1.0]]
    assert batch.mask.tolist() == [[True, False], [True, True]]
    assert batch.doc_rows.tolist() == [[3, 0], [5, 2]] and batch.query_rows.tolist() == [1, 0]
    assert batch.distances.tolist() == [[0.5, 0.0], [0.25, 0.75]]
    assert batch.ideal.tolist() == [[2.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    rows = (np.array([1, 0, 0]), np.array([3, 5, 2]))
    queries, docs = collator.query_tokens, collator.doc_tokens
    expected = collator.layout.lay_out(queries, rows[0], docs, rows[1])
    for ours, theirs in zip(batch.pairs[:3], expected[:3], strict=True):
        assert torch.equal(ours, theirs)


def test_lists_to_be_measured_say_what_is_judged(collator):
    """Of query 4 the documents 3, 5 and 2 are judged, 5 as irrelevant and 2 below 0; 1 and 4 are
    not. Of query 5 nothing is. Training lists do not say it.
    """
    judged = QueryLists.from_rows([4, 4, 4], [3, 5, 2], [2.0, 0.0, -1.0])
    lists = [judged.labelled(4, np.array([1, 2, 3, 4, 5])), judged.labelled(5, np.array([3]))]
    batch = collator(lists)
    assert batch.judged.tolist() == [
        [False, True, True, False, True],
        [False, False, False, False, False],
    ]
    assert batch.judged.dtype == torch.bool
    assert collator([labelled(0, [5], [1.0])]).judged is None


def test_a_list_without_documents_keeps_its_row(collator):
    batch = collator([labelled(1, [], [], ideal=[1.0]), labelled(0, [5], [1.0], ideal=[])])
    assert batch.mask.tolist() == [[False], [True]] and batch.pairs.lengths.shape == (1,)
    assert batch.ideal.tolist() == [[1.0], [0.0]] and batch.distances[1].isnan().all()
    alone = collator([labelled(1, [], [])])
    assert alone.mask.tolist() == [[False]]
    assert alone.pairs.ids.shape == alone.pairs.lengths.shape == (0,)


def test_a_batch_without_lists_has_the_types_of_any_other(collator):
    features = FeatureCollator(np.ones((6, 3), dtype=np.float32))
    assert features([]).features.shape == (0, 1, 3)
    some = collator([labelled(1, [3], [2.0])])
    none = collator([])
    assert none.labels.shape == none.mask.shape == none.doc_rows.shape == (0, 1)
    fields = zip((*none[:4], *none.pairs[:3]), (*some[:4], *some.pairs[:3]), strict=True)
    assert none.pairs.keys is None and some.pairs.keys is None
    for ours, theirs in fields:
        assert ours.dtype == theirs.dtype and ours.numel() == 0


def test_keys_are_equal_for_equal_texts_alone():
    """Every text of up to 4 ids out of 0, 1, 2, twice, in another order: as many keys as texts."""
    texts = [one for n in range(5) for one in itertools.product(range(3), repeat=n)]
    order = torch.randperm(2 * len(texts), generator=torch.Generator().manual_seed(0)) % len(texts)
    both = [texts[i] for i in order]
    ids = torch.tensor([*itertools.chain(*both)])
    keys = Texts(ids, torch.tensor([len(one) for one in both])).hashes()
    assert len(set(keys.tolist())) == len(texts) == 121
    assert len(set(zip(keys.tolist(), both, strict=True))) == 121
