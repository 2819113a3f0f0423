"""The option ``kernels``: ``plain`` applies nothing of ours, and computes what ``auto`` does."""

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
)

from ltr.batch import Texts
from ltr.dropout import KeyedDropout
from ltr.models import PairWiseBertRanker
from ltr.models.encoder import attention
from ltr.models.encoder.kernels import linear, use_plain
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world.backbones import wordpiece_tokenizer

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
    "pad_token_id": 1,
    "num_labels": 1,
}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
LOCAL = {"local_attention": 8, "global_attn_every_n_layers": 2}
LENGTHS = [7, 1, 20, 3, 7, 12]


def bert():
    return BertModel(BertConfig(**SIZES), add_pooling_layer=False)


def roberta():
    return RobertaModel(RobertaConfig(**SIZES), add_pooling_layer=False)


def modernbert():
    return ModernBertModel(ModernBertConfig(**SIZES, **SPECIAL, **LOCAL))


def with_large_weights(model):
    """Initial weights are so small that attention is all but uniform."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def ready(tmp_path):
    """A CrossEncoder of sentence-transformers with its head."""
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path / "plain")
    config = BertConfig(**SIZES | {"vocab_size": len(tokenizer), "pad_token_id": 0})
    model = with_large_weights(BertForSequenceClassification(config))
    model.save_pretrained(tmp_path / "plain")
    model = CrossEncoder(str(tmp_path / "plain"), device="cpu", max_length=32)
    model.save(str(tmp_path / "ready"), create_model_card=False)
    return str(tmp_path / "ready")


@pytest.fixture
def all_kernels(monkeypatch):
    """As on a CPU where each of them is the faster one."""
    monkeypatch.setattr(linear, "mkl_is_slow", torch.backends.mkldnn.is_available)


def texts():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 60, (sum(LENGTHS),), generator=generator)
    return Texts(ids, torch.tensor(LENGTHS), keys=torch.arange(len(LENGTHS)))


def output_and_gradients(model, read):
    model.zero_grad()
    output = read(texts())
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    (output * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output, gradients


def assert_equal(plain, auto):
    """To 1e-5, gradients of the largest number in each."""
    torch.testing.assert_close(plain[0], auto[0], atol=1e-5, rtol=1e-5)
    assert plain[1].keys() == auto[1].keys() and plain[1]
    for name, gradient in plain[1].items():
        largest = auto[1][name].abs().max().clamp(min=1)
        torch.testing.assert_close(
            gradient / largest, auto[1][name] / largest, atol=1e-5, rtol=0, msg=name
        )


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
    model = with_large_weights(build())
    return TextEncoder(model.train(), 1, TextEncoder.Options(**options))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("build", [bert, roberta, modernbert])
def test_plain_kernels_give_the_same_outputs_and_gradients(build, pooling, all_kernels):
    plain = encoder(build, pooling=pooling, kernels="plain", max_tokens=30)
    auto = encoder(build, pooling=pooling, max_tokens=30)
    assert plain.reads_packed and auto.reads_packed
    assert_equal(output_and_gradients(plain, plain), output_and_gradients(auto, auto))


def test_plain_kernels_give_the_same_scores_of_a_ready_cross_encoder(ready, all_kernels):
    results = []
    for kernels in ("plain", "auto"):
        options = TextEncoder.Options(kernels=kernels, max_tokens=30)
        ranker = PairWiseBertRanker(ready, max_length=32, encoder=options)
        assert ranker.has_own_head and ranker.encoder.reads_packed
        results.append(output_and_gradients(ranker, ranker.score))
    assert_equal(*results)


def ours(model):
    """The classes of its modules that are ours, but for dropout."""
    kinds = {type(module) for module in model.modules()} - {KeyedDropout}
    return {kind for kind in kinds if kind.__module__.startswith("ltr.")}


@pytest.mark.parametrize("build", [bert, roberta, modernbert])
def test_under_plain_every_module_and_gradient_is_another_library_s(build, all_kernels):
    plain = encoder(build, pooling="cls", kernels="plain")
    assert ours(plain.model) == set()
    assert not [m for m in plain.model.modules() if m._forward_pre_hooks]
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
    model = BertModel(BertConfig(**SIZES), add_pooling_layer=False)
    plain = TextEncoder(model.train(), 1, TextEncoder.Options(kernels="plain")).bfloat16()
    assert plain.reads_packed and plain(texts()).isfinite().all()


def test_what_was_made_fast_becomes_plain_again(all_kernels):
    auto = encoder(bert, pooling="cls")
    before = auto(texts())
    use_plain(auto.model)
    assert ours(auto.model) == set()
    assert not [m for m in auto.model.modules() if m._forward_pre_hooks]
    torch.testing.assert_close(auto(texts()), before, atol=1e-5, rtol=1e-5)
