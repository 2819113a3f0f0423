"""Pooling of texts that lie end to end, by hand."""

from typing import get_args

import torch
from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling

from ltr.models.encoder.loading.pooling import Pooling, name_here, name_there, pool


def test_pooling_by_hand():
    hidden = torch.tensor([[1.0], [3.0], [5.0]]).bfloat16()
    expected = {"mean": 2.0, "cls": 1.0, "max": 3.0, "last": 3.0}  # the second text has one token
    for how, value in expected.items():
        pooled = pool(hidden, torch.tensor([2, 1]), how)
        assert pooled.tolist() == [[value], [5.0]] and pooled.dtype == torch.float32
    assert set(expected) == set(get_args(Pooling))


def test_poolings_have_the_names_of_sentence_transformers():
    there = [name_there(pooling) for pooling in get_args(Pooling)]
    assert there == ["mean", "cls", "max", "lasttoken"]
    assert [name_here(name) for name in there] == list(get_args(Pooling))
    assert set(there) <= set(TheirPooling.POOLING_MODES)
    assert name_here("weightedmean") == "weightedmean"  # not one of ours, and refused by its name


def test_the_gradient_of_a_maximum_goes_to_the_tokens_that_have_it():
    """By dimension: the second token, and both of a tie by halves. A lone token gets all."""
    hidden = torch.tensor([[1.0, 2.0], [3.0, 2.0], [5.0, -1.0]], requires_grad=True)
    weights = torch.tensor([[1.0, 4.0], [10.0, 20.0]])
    (pool(hidden, torch.tensor([2, 1]), "max") * weights).sum().backward()
    assert hidden.grad.tolist() == [[0.0, 2.0], [1.0, 2.0], [10.0, 20.0]]
