"""The feature ranker: values by hand, laws of lists, presets."""

from collections import Counter

import pytest
import torch
from torch import nn

from ltr.batch import RankingBatch
from ltr.dropout import KeyedDropout
from ltr.errors import InputError
from ltr.models import FeatureRanker
from ltr.models.feature_ranker import PRESETS

EVERY_PRESET = pytest.mark.parametrize("preset", PRESETS)


def batch_of(features: torch.Tensor, mask: torch.Tensor | None = None) -> RankingBatch:
    """Without a mask nothing is padding."""
    mask = torch.ones(features.shape[:2], dtype=torch.bool) if mask is None else mask
    rows = torch.zeros(mask.shape, dtype=torch.int64)
    return RankingBatch(rows.float(), mask, rows[:, 0], rows, features=features)


@pytest.fixture
def lists() -> RankingBatch:
    """Three lists of 5, 2 and 0 documents with 4 features."""
    torch.manual_seed(1)
    mask = torch.arange(5) < torch.tensor([[5], [2], [0]])
    return batch_of(torch.randn(3, 5, 4) * mask.unsqueeze(2), mask)


def test_a_linear_ranker_by_hand():
    """w = (1, -2), b = 3: documents (1, 0), (0, 1), (2, 2) score 4, 1, 1."""
    model = FeatureRanker(2, preset="linear")
    weights = {"head.weight": torch.tensor([[1.0, -2.0]]), "head.bias": torch.tensor([3.0])}
    model.load_state_dict(weights)
    features = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]])
    assert model(batch_of(features)).tolist() == [[4.0, 1.0, 1.0]]


def test_what_the_weights_do_not_tell_is_in_the_key():
    """Equal weights, three scores: by another activation, and by other heads of attention."""
    base = FeatureRanker(4, preset="list_attention")
    others = [
        FeatureRanker(4, preset="list_attention", activation="tanh"),
        FeatureRanker(4, preset="list_attention", heads=4),
    ]
    for other in others:
        other.load_state_dict(base.state_dict())
    assert len({str(ranker.key) for ranker in (base, *others)}) == 3


def test_the_two_layer_net_is_the_one_of_ranknet():
    """Features to 10 hidden units to one score: torch's own layers with the same weights agree."""
    model = FeatureRanker(4, "two_layer")
    plain = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
    for ours, other in zip(model.parameters(), plain.parameters(), strict=True):
        other.data.copy_(ours.data)
    features = torch.randn(2, 3, 4)
    torch.testing.assert_close(model(batch_of(features)), plain(features).squeeze(2))


@EVERY_PRESET
def test_no_document_gives_every_weight_a_gradient_of_0(preset):
    """As of a process of several whose share of a step is empty: the others wait for it."""
    model = FeatureRanker(4, preset)
    for n_lists, length in ((0, 3), (2, 3)):
        model.zero_grad()
        padding = torch.zeros(n_lists, length, dtype=torch.bool)
        model(batch_of(torch.randn(n_lists, length, 4), padding)).sum().backward()
        assert all(
            weight.grad is not None and not weight.grad.any() for weight in model.parameters()
        )


def test_a_residual_block_by_hand():
    """h + W2 relu(W1 norm(h)), h = (1, -1) = norm(h), W1 = 1, W2 = 2: h becomes (3, -1)."""
    model = FeatureRanker(2, preset="linear", residual_blocks=1)
    block = model.layers[0].change
    with torch.no_grad():
        for layer, factor in ((block[1], 1.0), (block[4], 2.0)):
            layer.weight.copy_(factor * torch.eye(2))
            layer.bias.zero_()
        model.head.weight.copy_(torch.tensor([[1.0, 10.0]]))
        model.head.bias.zero_()
    score = model(batch_of(torch.tensor([[[1.0, -1.0]]])))
    assert score.item() == pytest.approx(3 - 10, abs=1e-4)


@EVERY_PRESET
def test_padding_changes_nothing_and_scores_zero(preset, lists):
    model = FeatureRanker(4, preset).eval()
    scores, embeddings = model.represent(lists)
    assert scores.shape == (3, 5) and embeddings.shape[:2] == (3, 5)
    padding = ~lists.mask
    assert not scores[padding].any() and not embeddings[padding].any() and scores.isfinite().all()
    noisy = lists._replace(features=lists.features + 1e4 * padding.unsqueeze(2))
    torch.testing.assert_close(model(noisy), scores)
    alone = batch_of(lists.features[1:2, :2], lists.mask[1:2, :2])
    torch.testing.assert_close(model(alone), scores[1:2, :2])


@EVERY_PRESET
def test_the_order_of_documents_changes_nothing(preset, lists):
    model = FeatureRanker(4, preset).eval()
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = batch_of(lists.features[:, order], lists.mask[:, order])
    torch.testing.assert_close(model(shuffled), model(lists)[:, order])


def test_only_attention_lets_documents_see_each_other(lists):
    other = lists._replace(features=lists.features.clone())
    other.features[0, 4] += 1
    for preset in PRESETS:
        model = FeatureRanker(4, preset).eval()
        unchanged = torch.equal(model(lists)[0, :4], model(other)[0, :4])
        assert unchanged == (preset != "list_attention")
        assert not torch.equal(model(lists)[0, 4], model(other)[0, 4])


@EVERY_PRESET
def test_training_and_measuring_agree_without_dropout(preset, lists):
    """Torch has a fused kernel of the attention block for evaluation alone."""
    model = FeatureRanker(4, preset, dropout=0.0)
    trained = model.train()(lists)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(lists), trained, rtol=1e-4, atol=1e-5)


@EVERY_PRESET
def test_every_weight_learns_and_an_empty_list_harms_no_gradient(preset, lists):
    model = FeatureRanker(4, preset)
    (model(lists) * torch.randn(3, 5)).sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad.isfinite().all() and weight.grad.any(), name


@EVERY_PRESET
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("n_lists", [0, 2])
def test_a_batch_without_a_document_has_scores_and_no_gradient(preset, heads, n_lists):
    """A rank that has no list left to measure gets such a batch."""
    model = FeatureRanker(4, preset, heads=heads)
    nothing = batch_of(torch.zeros(n_lists, 1, 4), torch.zeros(n_lists, 1, dtype=torch.bool))
    assert (model(nothing) == torch.zeros(n_lists, 1)).all()
    with torch.inference_mode():
        assert model.eval()(nothing).shape == (n_lists, 1)


def test_options_build_what_they_say():
    """2 hidden layers with norm, tanh and dropout, 3 residual blocks, 1 attention block."""
    options = {"residual_blocks": 3, "attention_blocks": 1, "heads": 3}
    model = FeatureRanker(4, "linear", [8, 6], "tanh", True, 0.3, **options)
    kinds = Counter(type(m) for part in (model.layers, model.head) for m in part.modules())
    assert kinds[nn.LayerNorm] == kinds[nn.Tanh] == kinds[KeyedDropout] == 2 + 3
    assert kinds[nn.Linear] == 2 + 2 * 3 + 1 and kinds[nn.ReLU] == 0
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.3}
    (block,) = model.attention
    assert block.self_attn.num_heads == 3 and block.self_attn.dropout == 0.3


def test_an_option_replaces_that_of_the_preset_alone():
    """The preset mlp has two layers, 128 and 64 wide, with ReLU and a dropout of 0.4."""
    layers = FeatureRanker(4, "mlp", hidden=[3], activation="tanh").layers
    assert [type(layer).__name__ for layer in layers] == ["Linear", "Tanh", "KeyedDropout"]
    assert layers[0].out_features == 3 and layers[2].p == 0.4
    assert len(FeatureRanker(4, "mlp", hidden=[]).layers) == 0
    assert FeatureRanker(4, "mlp", dropout=0.0).layers[2].p == 0.0


def test_a_batch_with_other_features_is_refused(lists):
    """Where the data was not laid out for this ranker, as in a loop of one's own."""
    rule = "reads 5 features, got a batch with 4; set n_features to 4"
    with pytest.raises(InputError, match=rule):
        FeatureRanker(5)(lists)


def test_scores_are_float32_under_autocast(lists):
    model = FeatureRanker(4, "list_attention")
    with torch.autocast("cpu", torch.bfloat16):
        assert model(lists).dtype == torch.float32


PRESET = "preset must be one of linear, two_layer, mlp, deep, list_attention, got 'huge'"
ACTIVATION = "activation must be one of relu, gelu, tanh, sigmoid, got 'swish'"
HEADS = "heads must be a number that divides the last width, 10, got 3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, PRESET),
        ({"n_features": 0}, "n_features must be at least 1, got 0"),
        ({"hidden": [8, 0]}, r"hidden must be widths of at least 1, got \[8, 0\]"),
        ({"activation": "swish"}, ACTIVATION),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"residual_blocks": -1}, "residual_blocks must be at least 0"),
        ({"attention_blocks": 1, "heads": 3}, HEADS),
    ],
)
def test_sizes_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message):
        FeatureRanker(**{"n_features": 4} | options)
