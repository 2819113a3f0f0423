"""Adapters beside the frozen weights of an encoder."""

import copy
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    AutoModel,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
)

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder.lora import FrozenBase, Lora
from ltr.models.encoder.text_encoder import TextEncoder, merged
from ltr.models.ranker import all_finite, digest_of_weights
from ltr.optimiser import adamw
from tests.child_processes import run_ranks

pytest.importorskip("peft")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
}
LENGTHS = [7, 1, 20, 3, 7, 12, 7, 1, 5]
LORA = Lora(r=4, alpha=8)
WITH_DROPOUT = Lora(r=4, alpha=8, dropout=0.3)


def bert(kind=BertModel, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    model = kind(
        BertConfig(
            **SIZES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0, num_labels=1
        )
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    if kind is BertModel:
        model.pooler = None
    return model


def modern_bert():
    torch.manual_seed(0)
    return ModernBertModel(
        ModernBertConfig(**SIZES, pad_token_id=0, local_attention=8, reference_compile=False)
    )


def adapted(model=None, lora=LORA, fresh=False, **options):
    """An encoder with adapters that have learnt something: their B is no longer 0."""
    torch.manual_seed(1)
    encoder = TextEncoder(
        bert() if model is None else model, 0, TextEncoder.Options(lora=lora, **options)
    )
    if not fresh:
        for name, weight in encoder.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
    return encoder


def texts(lengths=LENGTHS, keys=False):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 60, (sum(lengths),), generator=generator)
    of = Texts(ids, torch.tensor(lengths))
    return of._replace(keys=torch.arange(len(lengths)) * 7919) if keys else of


def gradients(encoder, of):
    """Of a weighted sum: the sum of squares behind a layer norm is always the same."""
    encoder.zero_grad()
    output = encoder(of)
    keys = torch.arange(len(output)) if of.keys is None else of.keys
    value = (output * torch.sin(keys.unsqueeze(1) + torch.arange(16.0))).sum()
    value.backward()
    found = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.requires_grad}
    return value.detach(), found


def test_value_by_hand():
    """W x + b + alpha / r B A x, with alpha / r = 2."""
    layer = adapted().model.encoder.layer[0].attention.self.query
    x = torch.randn(3, 16)
    by_hand = x @ layer.base_layer.weight.T + layer.base_layer.bias
    by_hand = by_hand + 2 * x @ layer.lora_A.default.weight.T @ layer.lora_B.default.weight.T
    torch.testing.assert_close(layer(x), by_hand)
    assert layer.lora_A.default.weight.shape == (4, 16)


@pytest.mark.parametrize("build", [bert, modern_bert, lambda: bert(BertForSequenceClassification)])
def test_fresh_adapters_change_nothing_and_other_ones_do(build):
    own_head = hasattr(build(), "classifier")

    def read(encoder):
        return (encoder.logits if own_head else encoder)(texts())

    plain = read(TextEncoder(build().eval(), 0))
    assert torch.equal(read(adapted(build(), fresh=True).eval()), plain)
    assert (read(adapted(build()).eval()) - plain).abs().max() > 1e-2


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("build", [bert, modern_bert, lambda: bert(BertForSequenceClassification)])
def test_merged_is_unmerged_and_the_adapters_come_back(build, kernels):
    encoder = adapted(build(), kernels=kernels).eval()
    own_head = hasattr(encoder.model, "classifier")
    read = encoder.logits if own_head else encoder
    before = read(texts())
    names = dict(encoder.named_parameters()).keys()
    state = encoder.state_dict()
    plain = dict(TextEncoder(build(), 0).named_parameters()).keys()
    with merged(encoder):
        torch.testing.assert_close(read(texts()), before, atol=1e-5, rtol=1e-5)
        assert dict(encoder.named_parameters()).keys() == plain
        assert encoder.state_dict().keys() == {f"{name}" for name in plain}
        with merged(encoder):  # nothing is left to be merged
            torch.testing.assert_close(read(texts()), before, atol=1e-5, rtol=1e-5)
    assert dict(encoder.named_parameters()).keys() == names
    assert torch.equal(read(texts()), before)
    assert all(torch.equal(state[name], value) for name, value in encoder.state_dict().items())


def test_only_adapters_and_heads_learn():
    classifier = adapted(bert(BertForSequenceClassification))
    learns = {name for name, weight in classifier.named_parameters() if weight.requires_grad}
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
    encoder = adapted(bert(BertForSequenceClassification))
    learns = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    state = encoder.state_dict()
    assert state.keys() == learns | {"base_digest"}
    assert state["base_digest"].shape == (16,) and state["base_digest"].dtype == torch.uint8
    other = adapted(bert(BertForSequenceClassification), fresh=True)
    assert not torch.equal(other.logits(texts()), encoder.logits(texts()))
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(other.logits(texts()), encoder.logits(texts()))
    assert digest_of_weights(other) == digest_of_weights(encoder)
    assert digest_of_weights(adapted(bert(BertForSequenceClassification), fresh=True)) != (
        digest_of_weights(encoder)
    )


def test_another_base_is_refused_whatever_its_targets():
    encoder = adapted()
    assert (
        FrozenBase.from_model(encoder.model).digest
        == adapted(lora=Lora(targets=["value"])).frozen_base.digest
    )
    other = adapted(bert(seed=1))
    assert other.frozen_base.digest != encoder.frozen_base.digest
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(InputError, match="the weights they were trained beside"):
        other.load_state_dict(encoder.state_dict())
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    half = adapted(dtype="bfloat16")
    with pytest.raises(InputError, match="same layers and dtype"):
        half.load_state_dict(encoder.state_dict())


def test_missing_and_unexpected_weights_are_errors():
    state = adapted().state_dict()
    name = "model.encoder.layer.1.output.dense.lora_B.default.weight"
    for wrong, said in (
        ({key: value for key, value in state.items() if key != name}, f'Missing key.*"{name}"'),
        ({key: value for key, value in state.items() if key != "base_digest"}, "base_digest"),
        (state | {"model.more": torch.zeros(1)}, 'Unexpected key.*"model.more"'),
    ):
        with pytest.raises(RuntimeError, match=said):
            adapted().load_state_dict(wrong)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("lora", [LORA, WITH_DROPOUT, Lora(r=2, targets=["value"])])
def test_recomputed_activations_give_the_same_gradients(lora, kernels):
    """Also where what a chunk reads wants no gradient."""
    of = texts(keys=True)
    value, expected = gradients(
        adapted(bert(dropout=0.2), lora, max_tokens=15, kernels=kernels), of
    )
    again, found = gradients(
        adapted(bert(dropout=0.2), lora, max_tokens=15, kernels=kernels, keep_tokens=0), of
    )
    assert torch.equal(again, value) and found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("lora", [LORA, WITH_DROPOUT])
def test_packed_is_padded_and_any_chunks(lora, pooling):
    """Outputs and gradients, with the masks of an adapter's dropout: they follow from the key of a
    text.
    """
    of = texts(keys=True)

    def read(padded=False, **options):
        encoder = adapted(bert(dropout=0.1), lora, pooling=pooling, **options)
        assert encoder.reads_packed
        if padded:
            encoder.reads_packed = False
            encoder.model.set_attn_implementation(encoder._padded_attention)
        return gradients(encoder, of)

    value, expected = read()
    for other in (read(padded=True), read(max_tokens=9), read(max_tokens=30, padded=True)):
        torch.testing.assert_close(other[0], value, rtol=1e-5, atol=1e-5)
        for name, gradient in other[1].items():
            error = (gradient - expected[name]).norm() / expected[name].norm()
            assert error < 1e-5, name
    if lora is WITH_DROPOUT:
        without, _ = gradients(adapted(bert(dropout=0.1), pooling=pooling), of)
        assert not torch.allclose(value, without)


def test_a_base_in_bfloat16_beside_adapters_in_float32():
    encoder = adapted(modern_bert(), dtype="bfloat16").eval()
    for name, weight in encoder.named_parameters():
        assert weight.dtype == (torch.float32 if weight.requires_grad else torch.bfloat16), name
    assert all(buffer.dtype == torch.float32 for buffer in encoder.buffers())
    exact = adapted(modern_bert()).eval()
    output = encoder(texts())
    assert output.dtype == torch.float32
    error = (output - exact(texts())).norm() / exact(texts()).norm()
    assert 1e-4 < error < 2e-2
    with merged(encoder):
        assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
        assert (encoder(texts()) - output).norm() < 2e-2 * output.norm()
    assert torch.equal(encoder(texts()), output)
    # The sums are those of the rounded weights, and are rounded as these.
    layer = encoder.model.layers[0].attn.Wo
    delta = 2 * layer.lora_B.default.weight @ layer.lora_A.default.weight
    total = layer.base_layer.weight.float() + delta
    assert torch.equal(merged_weight_of(encoder, "layers.0.attn.Wo"), total.bfloat16().float())


def merged_weight_of(encoder, name):
    with merged(encoder):
        return encoder.model.get_submodule(name).weight.detach().clone()


def test_a_head_reads_float32_behind_a_base_in_bfloat16():
    encoder = adapted(bert(BertForSequenceClassification), dtype="bfloat16").eval()
    assert encoder.model.classifier.weight.dtype == torch.float32
    scores = encoder.logits(texts())
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, scores.bfloat16().float()), "they are not rounded"
    exact = adapted(bert(BertForSequenceClassification)).eval().logits(texts())
    assert (scores - exact).norm() < 3e-2 * exact.norm()
    encoder.logits(texts()).sum().backward()
    assert all_finite(encoder)
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder.logits(texts()).shape == (9,)


def test_no_text_gives_no_row_and_every_weight_that_learns_a_gradient_of_0():
    no_texts = Texts(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    for dtype in (None, "bfloat16"):
        encoder = adapted(dtype=dtype)
        output = encoder(no_texts)
        assert output.shape == (0, 16) and output.dtype == torch.float32
        _, found = gradients(encoder, no_texts)
        assert len(found) == 24 and not any(gradient.any() for gradient in found.values())


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


@pytest.mark.parametrize(
    "options, said",
    [
        ({"lora": {"r": 0}}, "r must be at least 1, got 0"),
        ({"lora": {"alpha": 0}}, "alpha must be at least 1, got 0"),
        ({"lora": {"dropout": 1.0}}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"lora": {"targets": []}}, "targets must name linear layers, got an empty list"),
        (
            {"lora": {"targets": ["query", "q_proj"]}},
            "targets must be linear layers of BertModel (attention.output.dense, attention.self.key, attention.self.query, attention.self.value, intermediate.dense, output.dense), got q_proj",
        ),
        ({"dtype": "bfloat16"}, "got bfloat16 without lora"),
        ({"dtype": "float16", "lora": {}}, "dtype must be one of"),
    ],
)
def test_bad_options_are_named(options, said):
    def build():
        lora = Lora(**options["lora"]) if "lora" in options else None
        return TextEncoder(bert(), 0, TextEncoder.Options(**options | {"lora": lora}))

    with pytest.raises(InputError) as error:
        build()
    assert said in error.value.message


def test_a_part_of_a_name_may_stand_for_several_layers():
    """``dense``: three in each layer, and not the pooler, which nothing trains."""
    encoder = adapted(bert(BertForSequenceClassification), Lora(r=2, targets=["dense"]))
    names = {name for name, _ in encoder.named_parameters() if "lora_A" in name}
    assert len(names) == 6 and not any("pooler" in name for name in names)


def test_without_peft_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install 'ltr-lab\[lora\]'"):
        adapted()


def _train_process(rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    of = texts(keys=True)
    halves = (
        [of.ids[:28], of.ids[28:]],
        [of.lengths[:3], of.lengths[3:]],
        [of.keys[:3], of.keys[3:]],
    )
    ids, lengths, keys = (part[rank] for part in halves)
    encoder = DistributedDataParallel(adapted(bert(dropout=0.1), WITH_DROPOUT))
    for _ in range(2):  # the second step finds out what the first has not finished
        _, found = gradients(encoder, Texts(ids, lengths, keys=keys))
    torch.save(found, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_two_processes_have_the_gradients_of_one(tmp_path):
    """Each gets the mean over both."""
    run_ranks(_train_process, str(tmp_path))
    _, expected = gradients(adapted(bert(dropout=0.1), WITH_DROPOUT), texts(keys=True))
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        assert found.keys() == {f"module.{name}" for name in expected}
        for name, gradient in expected.items():
            torch.testing.assert_close(
                found[f"module.{name}"], gradient / 2, rtol=1e-6, atol=1e-6, msg=name
            )


def test_an_encoder_of_few_layers_and_a_saved_one(tmp_path):
    """``layers``: the kept ones have adapters. Reloaded, the merged model is another's backbone."""
    encoder = adapted(layers=1).eval()
    assert len([name for name in encoder.state_dict() if "lora_A" in name]) == 6
    before = encoder(texts())
    with merged(encoder):
        encoder.model.save_pretrained(tmp_path)
    plain = TextEncoder(AutoModel.from_pretrained(tmp_path, dtype=torch.float32).eval(), 0)
    torch.testing.assert_close(plain(texts()), before, atol=1e-5, rtol=1e-5)
