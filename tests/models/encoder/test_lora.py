"""Adapters beside the frozen weights of an encoder."""

import copy
import sys
from functools import partial

import pytest
import torch
from transformers import AutoModel, BertForSequenceClassification

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder.lora import FrozenBase, Lora
from ltr.models.encoder.text_encoder import TextEncoder, merged
from ltr.models.ranker import all_finite, digest_of_weights
from ltr.optimiser import adamw
from tests.child_processes import run_ranks
from tests.world.encoders import (
    NO_TEXTS,
    bert,
    gradients,
    modernbert,
    reader,
    save_gradients_of_rank,
    texts,
)

pytest.importorskip("peft")

LORA = Lora(r=4, alpha=8)
WITH_DROPOUT = Lora(r=4, alpha=8, dropout=0.3)


CLASSIFIER = partial(bert, BertForSequenceClassification)
modern_bert = partial(modernbert, pad_token_id=0)


def adapted(model=None, lora=LORA, fresh=False, **options):
    """An encoder with adapters that have learnt something: their B is no longer 0."""
    torch.manual_seed(1)
    encoder = reader(bert() if model is None else model, lora=lora, **options)
    for name, weight in encoder.named_parameters():
        if "lora_B" in name and not fresh:
            torch.nn.init.normal_(weight, std=0.3)
    return encoder


def learning(encoder):
    """The names of the weights that are trained."""
    return {name for name, weight in encoder.named_parameters() if weight.requires_grad}


def value_and_gradients(encoder, of):
    """Of a weighted sum: the sum of squares behind a layer norm is always the same."""
    output = encoder(of)
    keys = torch.arange(len(output)) if of.keys is None else of.keys
    value = (output * torch.sin(keys.unsqueeze(1) + torch.arange(16.0))).sum()
    return value.detach(), gradients(encoder, value)


def test_value_by_hand():
    """W x + b + alpha / r B A x, with alpha / r = 2."""
    layer = adapted().model.encoder.layer[0].attention.self.query
    x = torch.randn(3, 16)
    by_hand = x @ layer.base_layer.weight.T + layer.base_layer.bias
    by_hand = by_hand + 2 * x @ layer.lora_A.default.weight.T @ layer.lora_B.default.weight.T
    torch.testing.assert_close(layer(x), by_hand)
    assert layer.lora_A.default.weight.shape == (4, 16)


@pytest.mark.parametrize("build", [bert, modern_bert, CLASSIFIER])
def test_fresh_adapters_change_nothing_and_other_ones_do(build):
    def read(encoder):
        return (encoder.logits if build is CLASSIFIER else encoder)(texts())

    plain = read(TextEncoder(build().eval(), 0))
    assert torch.equal(read(adapted(build(), fresh=True).eval()), plain)
    assert (read(adapted(build()).eval()) - plain).abs().max() > 1e-2


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("build", [bert, modern_bert, CLASSIFIER])
def test_merged_is_unmerged_and_the_adapters_come_back(build, kernels):
    encoder = adapted(build(), kernels=kernels).eval()
    read = encoder.logits if build is CLASSIFIER else encoder
    before = read(texts())
    names = dict(encoder.named_parameters()).keys()
    state = encoder.state_dict()
    plain = dict(TextEncoder(build(), 0).named_parameters()).keys()
    with merged(encoder):
        torch.testing.assert_close(read(texts()), before, atol=1e-5, rtol=1e-5)
        assert dict(encoder.named_parameters()).keys() == plain
        assert encoder.state_dict().keys() == plain
        with merged(encoder):  # nothing is left to be merged
            torch.testing.assert_close(read(texts()), before, atol=1e-5, rtol=1e-5)
    assert dict(encoder.named_parameters()).keys() == names
    assert torch.equal(read(texts()), before)
    assert all(torch.equal(state[name], value) for name, value in encoder.state_dict().items())


def test_only_adapters_and_heads_learn():
    classifier = adapted(CLASSIFIER())
    learns = learning(classifier)
    heads = {"model.classifier.weight", "model.classifier.bias"}
    # 6 linear layers in each of 2 layers, with A and B.
    assert heads < learns and len(learns) == 2 * 6 * 2 + 2
    assert all(".lora_" in name for name in learns - heads)
    classifier.logits(texts()).sum().backward()
    for name, weight in classifier.named_parameters():
        assert (weight.grad is not None and bool(weight.grad.any())) == (name in learns), name
    assert not any("pooler" in name for name in learns)
    groups = adamw(classifier.parameters(), 1e-3, 0.01, None).param_groups
    assert sum(len(group["params"]) for group in groups) == len(learns)


def test_the_state_holds_what_learns_and_a_digest_of_the_rest():
    encoder = adapted(CLASSIFIER())
    state = encoder.state_dict()
    assert state.keys() == learning(encoder) | {"base_digest"}
    assert state["base_digest"].shape == (16,) and state["base_digest"].dtype == torch.uint8
    other = adapted(CLASSIFIER(), fresh=True)
    assert not torch.equal(other.logits(texts()), encoder.logits(texts()))
    assert digest_of_weights(other) != digest_of_weights(encoder)
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(other.logits(texts()), encoder.logits(texts()))
    assert digest_of_weights(other) == digest_of_weights(encoder)


def test_another_base_is_refused_whatever_its_targets():
    encoder = adapted()
    digest = FrozenBase.from_model(encoder.model).digest
    assert digest == adapted(lora=Lora(targets=["value"])).frozen_base.digest
    other = adapted(bert(seed=1))
    assert other.frozen_base.digest != encoder.frozen_base.digest
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(InputError, match="the weights they were trained beside"):
        other.load_state_dict(encoder.state_dict())
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    with pytest.raises(InputError, match="same layers and dtype"):
        adapted(dtype="bfloat16").load_state_dict(encoder.state_dict())


def test_missing_and_unexpected_weights_are_errors():
    name = "model.encoder.layer.1.output.dense.lora_B.default.weight"
    for changes, missing, message in (
        ({}, name, f'Missing key.*"{name}"'),
        ({}, "base_digest", "base_digest"),
        ({"model.more": torch.zeros(1)}, None, 'Unexpected key.*"model.more"'),
    ):
        state = adapted().state_dict() | changes
        state.pop(missing, None)
        with pytest.raises(RuntimeError, match=message):
            adapted().load_state_dict(state)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("lora", [LORA, WITH_DROPOUT, Lora(r=2, targets=["value"])])
def test_recomputed_activations_give_the_same_gradients(lora, kernels):
    """Also where what a chunk reads wants no gradient."""

    def read(**options):
        encoder = adapted(bert(dropout=0.2), lora, max_tokens=15, kernels=kernels, **options)
        return value_and_gradients(encoder, texts(keys=True))

    value, expected = read()
    again, found = read(keep_tokens=0)
    assert torch.equal(again, value)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("lora", [LORA, WITH_DROPOUT])
def test_packed_is_padded_and_any_chunks(lora, pooling):
    """With the masks of an adapter's dropout, which follow from the key of a text."""
    of = texts(keys=True)

    def read(padded=False, **options):
        encoder = adapted(bert(dropout=0.1), lora, pooling=pooling, **options)
        assert encoder.reads_packed
        if padded:
            encoder.reads_packed = False
            encoder.model.set_attn_implementation(encoder._padded_attention)
        return value_and_gradients(encoder, of)

    value, expected = read()
    for other in (read(padded=True), read(max_tokens=9), read(max_tokens=30, padded=True)):
        torch.testing.assert_close(other[0], value, rtol=1e-5, atol=1e-5)
        for name, gradient in other[1].items():
            error = (gradient - expected[name]).norm() / expected[name].norm()
            assert error < 1e-5, name
    if lora is WITH_DROPOUT:
        without, _ = value_and_gradients(adapted(bert(dropout=0.1), pooling=pooling), of)
        assert not torch.allclose(value, without)


def test_a_base_in_bfloat16_beside_adapters_in_float32():
    encoder = adapted(modern_bert(), dtype="bfloat16").eval()
    for name, weight in encoder.named_parameters():
        assert weight.dtype == (torch.float32 if weight.requires_grad else torch.bfloat16), name
    assert all(buffer.dtype == torch.float32 for buffer in encoder.buffers())
    exact = adapted(modern_bert()).eval()(texts())
    output = encoder(texts())
    assert output.dtype == torch.float32
    assert 1e-4 < (output - exact).norm() / exact.norm() < 2e-2
    # The sums are those of the rounded weights, and are rounded as these.
    layer = encoder.model.layers[0].attn.Wo
    delta = 2 * layer.lora_B.default.weight @ layer.lora_A.default.weight
    total = layer.base_layer.weight.float() + delta
    with merged(encoder):
        assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
        assert (encoder(texts()) - output).norm() < 2e-2 * output.norm()
        assert torch.equal(encoder.model.layers[0].attn.Wo.weight, total.bfloat16().float())
    assert torch.equal(encoder(texts()), output)


def test_a_head_reads_float32_behind_a_base_in_bfloat16():
    encoder = adapted(CLASSIFIER(), dtype="bfloat16").eval()
    assert encoder.model.classifier.weight.dtype == torch.float32
    scores = encoder.logits(texts())
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, scores.bfloat16().float()), "they are not rounded"
    exact = adapted(CLASSIFIER()).eval().logits(texts())
    assert (scores - exact).norm() < 3e-2 * exact.norm()
    scores.sum().backward()
    assert all_finite(encoder)
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder.logits(texts()).shape == (9,)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_no_text_gives_no_row_and_every_weight_that_learns_a_gradient_of_0(dtype):
    encoder = adapted(dtype=dtype)
    output = encoder(NO_TEXTS)
    assert output.shape == (0, 16) and output.dtype == torch.float32
    _, found = value_and_gradients(encoder, NO_TEXTS)
    assert found.keys() == learning(encoder) and len(found) == 24
    assert not any(gradient.any() for gradient in found.values())


def test_a_copy_reads_and_saves_as_the_original():
    """As the one of averaged weights."""
    encoder = adapted()
    other = copy.deepcopy(encoder)
    for weight in encoder.parameters():
        if weight.requires_grad:
            weight.data.zero_()
    assert other.state_dict().keys() == encoder.state_dict().keys()
    encoder.load_state_dict(other.state_dict())
    of = texts(keys=True)
    assert torch.equal(encoder(of), other(of))


LAYERS = (
    "targets must be linear layers of BertModel (attention.output.dense, attention.self.key, "
    "attention.self.query, attention.self.value, intermediate.dense, output.dense), got q_proj"
)


@pytest.mark.parametrize(
    ("lora", "dtype", "said"),
    [
        ({"r": 0}, None, "r must be at least 1, got 0"),
        ({"alpha": 0}, None, "alpha must be at least 1, got 0"),
        ({"dropout": 1.0}, None, "dropout must be at least 0 and below 1, got 1.0"),
        ({"targets": []}, None, "targets must name linear layers, got an empty list"),
        ({"targets": ["query", "q_proj"]}, None, LAYERS),
        (None, "bfloat16", "got bfloat16 without lora"),
        ({}, "float16", "dtype must be one of"),
    ],
)
def test_bad_options_are_named(lora, dtype, said):
    with pytest.raises(InputError) as error:
        reader(bert(), lora=None if lora is None else Lora(**lora), dtype=dtype)
    assert said in error.value.message


def test_a_part_of_a_name_may_stand_for_several_layers():
    """``dense``: three in each layer, and not the pooler, which nothing trains."""
    encoder = adapted(CLASSIFIER(), Lora(r=2, targets=["dense"]))
    names = {name for name, _ in encoder.named_parameters() if "lora_A" in name}
    assert len(names) == 6 and not any("pooler" in name for name in names)


def test_without_peft_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install 'ltr-lab\[lora\]'"):
        adapted()


def with_dropout():
    return adapted(bert(dropout=0.1), WITH_DROPOUT)


@pytest.mark.long
def test_two_processes_have_the_gradients_of_one(tmp_path):
    """Each gets the mean over both."""
    of = texts(keys=True)
    of_ranks = [
        Texts(of.ids[:28], of.lengths[:3], keys=of.keys[:3]),
        Texts(of.ids[28:], of.lengths[3:], keys=of.keys[3:]),
    ]
    job = (str(tmp_path), with_dropout, value_and_gradients, of_ranks)
    run_ranks(save_gradients_of_rank, *job)
    _, whole = value_and_gradients(with_dropout(), of)
    halves = {name: gradient / 2 for name, gradient in whole.items()}
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        torch.testing.assert_close(found, halves, rtol=1e-6, atol=1e-6)


def test_an_encoder_of_few_layers_and_a_saved_one(tmp_path):
    """``layers``: the kept ones have adapters. Reloaded, the merged model is another's backbone."""
    encoder = adapted(layers=1).eval()
    assert len([name for name in encoder.state_dict() if "lora_A" in name]) == 6
    before = encoder(texts())
    with merged(encoder):
        encoder.model.save_pretrained(tmp_path)
    plain = TextEncoder(AutoModel.from_pretrained(tmp_path, dtype=torch.float32).eval(), 0)
    torch.testing.assert_close(plain(texts()), before, atol=1e-5, rtol=1e-5)
