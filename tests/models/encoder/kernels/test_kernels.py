"""The option ``kernels``: ``plain`` applies nothing of ours, and computes what ``auto`` does."""

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import RobertaConfig, RobertaModel

from ltr.dropout import KeyedDropout
from ltr.models import PairWiseBertRanker
from ltr.models.encoder import attention
from ltr.models.encoder.kernels import linear, use_plain
from ltr.models.encoder.packed import _one_row_per_text
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world import encoders
from tests.world.backbones import make_classifier
from tests.world.decoders import decoder
from tests.world.encoders import (
    SIZES,
    assert_same_gradients,
    bert,
    gradients,
    modernbert,
    reader,
    with_large_weights,
)


def roberta(**changes):
    model = RobertaModel(RobertaConfig(**SIZES, **changes), add_pooling_layer=False)
    return with_large_weights(model)


BUILDS = [bert, roberta, lambda **changes: with_large_weights(modernbert(**changes))]


@pytest.fixture
def ready(tmp_path):
    """A CrossEncoder of sentence-transformers with its head."""
    folder = make_classifier(tmp_path / "plain", n_layers=2)
    model = CrossEncoder(folder, device="cpu", max_length=32)
    with_large_weights(model)
    model.save(str(tmp_path / "ready"), create_model_card=False)
    return str(tmp_path / "ready")


@pytest.fixture
def all_kernels(monkeypatch):
    """As on a CPU where each of them is the faster one."""
    monkeypatch.setattr(linear, "mkl_is_slow", torch.backends.mkldnn.is_available)


def texts():
    return encoders.texts(keys=True)


def assert_same(plain, auto, read_plain, read_auto):
    """In value, and in the gradients of a weighted sum."""
    outputs = [read(texts()) for read in (read_plain, read_auto)]
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 1, outputs[0].numel()).view_as(outputs[0])
    found, expected = (
        gradients(model, (output * weights).sum())
        for model, output in zip((plain, auto), outputs, strict=True)
    )
    assert_same_gradients(found, expected)


def graph_nodes(tensor):
    """The names of the functions that the backward pass goes through."""
    names = set()
    nodes = [tensor.grad_fn]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names.add(node.name())
        nodes += [parent for parent, _ in node.next_functions]
    return names


def encoder(build, **options):
    """In training mode, with dropout: its masks follow from the keys of the texts."""
    torch.manual_seed(0)
    model = build(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pad_token_id=1)
    return reader(model.train(), 1, **options)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("build", BUILDS)
def test_plain_kernels_give_the_same_outputs_and_gradients(build, pooling, all_kernels):
    plain = encoder(build, pooling=pooling, kernels="plain", max_tokens=30)
    auto = encoder(build, pooling=pooling, max_tokens=30)
    assert plain.reads_packed and auto.reads_packed
    assert_same(plain, auto, plain, auto)


def test_plain_kernels_give_the_same_scores_of_a_ready_cross_encoder(ready, all_kernels):
    rankers = []
    for kernels in ("plain", "auto"):
        options = TextEncoder.Options(kernels=kernels, max_tokens=30)
        ranker = PairWiseBertRanker(ready, max_length=32, encoder=options)
        assert ranker.has_own_head and ranker.encoder.reads_packed
        rankers.append(ranker)
    plain, auto = rankers
    assert_same(plain, auto, plain.score, auto.score)


def ours(model):
    """The classes of its modules that are ours, but for dropout, and modules with a hook."""
    kinds = {type(module) for module in model.modules()} - {KeyedDropout}
    hooked = set()
    for module in model.modules():
        # One hook behind a model is ours under plain, too: it hands a head one row for each text.
        others = set(module._forward_hooks.values()) - {_one_row_per_text}
        if module._forward_pre_hooks or others or vars(module).keys() & {"linears", "forward"}:
            hooked.add(module)
    return {kind for kind in kinds if kind.__module__.startswith("ltr.")} | hooked


@pytest.mark.parametrize("build", BUILDS)
def test_under_plain_every_module_and_gradient_is_another_library_s(build, all_kernels):
    plain = encoder(build, pooling="cls", kernels="plain")
    assert ours(plain.model) == set()

    functions = graph_nodes(plain(texts()))
    assert functions and not [name for name in functions if name.startswith("_")]
    auto = encoder(build, pooling="cls")
    assert ours(auto.model)
    if torch.backends.mkldnn.is_available():
        assert "_ByOneDnnBackward" in graph_nodes(auto(texts()))


def test_under_plain_attention_is_torch_s(monkeypatch):
    """Not in blocks in bfloat16."""

    def missing(*args):
        raise AssertionError("a kernel of ours was called")

    monkeypatch.setattr(attention, "takes_blocks", lambda query, longest: True)
    monkeypatch.setattr(attention, "attend_in_blocks", missing)
    plain = reader(bert().train(), 1, kernels="plain").bfloat16()
    assert plain.reads_packed and plain(texts()).isfinite().all()


def test_what_was_made_fast_becomes_plain_again(all_kernels):
    auto = encoder(bert, pooling="cls")
    before = auto(texts())
    use_plain(auto.model)
    assert ours(auto.model) == set()

    torch.testing.assert_close(auto(texts()), before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", [bert, modernbert, lambda: decoder("qwen3")])
def test_what_saves_launches_is_left_out_of_compiled_layers(build):
    """They would be compiled one by one: what stands at each of them differs."""
    for compiled in (False, True):
        model = reader(build(), 3, pooling="last", compile=compiled).model
        has_ours = [bool(vars(m).keys() & {"linears", "forward"}) for m in model.modules()]
        assert any(has_ours) != compiled
