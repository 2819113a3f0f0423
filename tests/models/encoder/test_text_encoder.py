"""The text encoder: the same outputs and gradients whatever the chunks."""

from functools import partialmethod

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from transformers import (
    BertForSequenceClassification,
    MPNetConfig,
    MPNetModel,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from ltr import draws
from ltr.errors import InputError
from ltr.models.encoder import text_encoder
from ltr.models.encoder.kernels import linear
from ltr.models.encoder.text_encoder import TextEncoder
from tests.child_processes import run_ranks
from tests.world.encoders import (
    LENGTHS,
    NO_TEXTS,
    SIZES,
    bert,
    gradients,
    one_by_one,
    reader,
    save_gradients_of_rank,
    texts,
)


def mpnet():
    """An encoder that can't read texts end to end."""
    torch.manual_seed(0)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = MPNetModel(MPNetConfig(**SIZES, **no_dropout, pad_token_id=1))
    model.pooler = None
    return model


def value_and_gradients(encoder, of):
    torch.manual_seed(1)  # dropout
    value = encoder(of).square().sum()
    return value.detach(), gradients(encoder, value)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("max_tokens", [1, 30, None])
@pytest.mark.parametrize("build", [bert, mpnet])
def test_each_text_gets_what_it_gets_alone(build, max_tokens, pooling):
    model = build()
    of = texts()
    expected = one_by_one(model, of, pooling)
    encoder = reader(model, pad_id=1, pooling=pooling, max_tokens=max_tokens)
    assert encoder.reads_packed == (build is bert)
    torch.testing.assert_close(encoder(of), expected, atol=1e-5, rtol=1e-5)


def test_no_text_gives_no_row_and_every_weight_a_gradient_of_0():
    assert reader(bert())(NO_TEXTS).shape == (0, 16)
    assert reader(bert(kind=BertForSequenceClassification)).logits(NO_TEXTS).shape == (0,)
    encoder = reader(bert())
    value, found = value_and_gradients(encoder, NO_TEXTS)
    assert value == 0 and found.keys() == dict(encoder.named_parameters()).keys()
    assert all(not gradient.any() for gradient in found.values())


def bert_reader():
    return reader(bert())


@pytest.mark.long
def test_of_two_processes_one_may_have_no_text(tmp_path):
    """Each gets the mean of both gradients."""
    of_ranks = [texts(), NO_TEXTS]
    job = (str(tmp_path), bert_reader, value_and_gradients, of_ranks)
    run_ranks(save_gradients_of_rank, *job)
    _, expected = value_and_gradients(bert_reader(), texts())
    halves = {name: gradient / 2 for name, gradient in expected.items()}
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / str(rank)), halves)


@pytest.mark.parametrize("keep_tokens, n_recomputed", [(0, 4), (40, 2)])
@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_recomputing_changes_no_gradient_and_draws_the_same_dropout(
    kernels, keep_tokens, n_recomputed
):
    model = bert(dropout=0.2)
    kept = reader(model, max_tokens=15, kernels=kernels)
    recomputed = reader(model, max_tokens=15, kernels=kernels, keep_tokens=keep_tokens)
    of = texts()
    assert recomputed._count_recomputed(recomputed._chunks(of)) == n_recomputed
    value, expected = value_and_gradients(kept, of)
    again, found = value_and_gradients(recomputed, of)
    assert torch.equal(again, value)
    torch.testing.assert_close(found, expected)
    torch.manual_seed(2)
    assert not torch.equal(recomputed(of).square().sum(), value)  # the dropout is real


def test_freed_memory_is_given_back_before_each_chunk_that_is_recomputed(monkeypatch):
    """Three chunks: the first two are read forwards and backwards, the last one is kept."""
    calls = []
    monkeypatch.setattr(text_encoder, "_malloc_trim", calls.append)
    for keep_tokens, expected in ((None, []), (0, [0] * 4)):
        encoder = reader(bert(), max_tokens=10, keep_tokens=keep_tokens)
        value_and_gradients(encoder, texts([10] * 3))
        assert calls == expected


def test_gradients_of_recomputed_chunks_add_up_in_float32():
    """Forty chunks under bfloat16: a weight's gradient is as near to float32's as that of one
    chunk. Added up in bfloat16, in autocast's copy of the weight, it is 1.4 times as far."""
    of = texts([10] * 40)

    def weights(**sizes):
        _, found = value_and_gradients(reader(bert(), **sizes), of)
        return {name: gradient for name, gradient in found.items() if "dense.weight" in name}

    exact = weights()

    def error(**sizes):
        with torch.autocast("cpu", torch.bfloat16):
            found = weights(**sizes)
        return sum((found[name] - exact[name]).norm() / exact[name].norm() for name in exact)

    assert error(max_tokens=10, keep_tokens=0) < 1.15 * error()


def numbers_held(model, read):
    """How many numbers a read keeps for the backward pass, without the weights."""
    numbers = []
    own = {p.data_ptr() for p in model.parameters()}

    def pack(x):
        if x.data_ptr() not in own:
            numbers.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = read()
    return sum(numbers), output


def test_recomputing_keeps_the_activations_of_as_many_tokens_as_asked_for():
    """As many for eight chunks as for two, but for the outputs. 60 tokens: those of three."""

    def held(keep_tokens, n_chunks):
        model = bert()
        encoder = reader(model, max_tokens=20, keep_tokens=keep_tokens)
        return numbers_held(model, lambda: encoder(texts([20] * n_chunks)))[0]

    outputs = 6 * 20 * 16  # fewer than one layer's outputs for each chunk more
    assert held(0, 8) - held(0, 2) < outputs
    assert held(None, 8) > 3.5 * held(None, 2)
    assert held(60, 8) - held(60, 3) < outputs
    assert held(60, 3) == held(None, 3)
    assert held(59, 3) < 0.8 * held(60, 3)


@pytest.mark.long  # kernels/test_first_tokens.py compiles layers every day
@pytest.mark.parametrize("dropout, on_a_gpu", [("hidden", True), ("hidden", False), ("own", True)])
def test_layers_share_what_is_compiled(dropout, on_a_gpu, monkeypatch):
    """However many there are, and whatever the sizes of chunks: torch would run eagerly what it has
    compiled 8 times, and here it raises an error then.
    """
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    compile_by_torch = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", partialmethod(compile_by_torch, backend=backend))
    monkeypatch.setattr(draws, "takes_kernel", lambda x: on_a_gpu)
    monkeypatch.setattr(linear, "mkl_is_slow", lambda: False)  # other layers, in more graphs
    torch.compiler.reset()
    model = bert(dropout=0.1, num_hidden_layers=12, attention_probs_dropout_prob=0.1).train()
    encoder = reader(model, compile=True, dropout=dropout)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for lengths in ([4, 9, 11], [30], [3, 3, 5, 8, 20, 21]):
            encoder(texts(lengths, keys=True)).sum().backward()
    assert 0 < len(graphs) <= 12


@pytest.mark.long
def test_compiled_layers_give_the_same():
    model = bert()
    of = texts()
    expected_value, expected = value_and_gradients(reader(model, max_tokens=30), of)
    compiled = reader(model, max_tokens=30, compile=True)
    assert [layer._compiled_call_impl is not None for layer in model.encoder.layer] == [True, True]
    value, found = value_and_gradients(compiled, of)
    torch.testing.assert_close(value, expected_value)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("keep_tokens", -1, "keep_tokens must be at least 0, got -1"),
        ("max_tokens", 0, "max_tokens must be at least 1, got 0"),
        ("dropout", "some", "dropout must be one of hidden, own, none, got 'some'"),
        ("kernels", "fast", "kernels must be one of auto, plain, got 'fast'"),
        ("pooling", "sum", "pooling must be one of mean, cls, max, last, None, got 'sum'"),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(option, value, message):
    with pytest.raises(InputError, match=message) as caught:
        TextEncoder.Options(**{option: value})
    assert caught.value.option == option


def test_an_encoder_that_depends_on_the_neighbours_of_a_text_is_refused():
    """XLNet's classifier reads the last place of a row, padding or not."""
    sizes = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24}
    model = XLNetForSequenceClassification(XLNetConfig(**sizes, vocab_size=60, num_labels=1))
    rule = "XLNetForSequenceClassification gives a text other outputs beside a longer text"
    with pytest.raises(InputError, match=rule):
        reader(model)


def test_an_encoder_that_cannot_be_run_is_refused():
    def fails(*_):
        raise ValueError("no such input\nand more")

    model = bert()
    model.register_forward_pre_hook(fails)
    rule = r"BertModel can't read two texts side by side \(ValueError: no such input\)"
    with pytest.raises(InputError, match=rule):
        reader(model)


def test_token_types_are_read_in_padded_chunks_too():
    model = bert()
    of = texts()._replace(type_ids=torch.arange(sum(LENGTHS)) % 2)
    encoder = reader(model, max_tokens=30)
    expected = encoder(of)
    encoder.reads_packed = False
    torch.testing.assert_close(encoder(of), expected, atol=1e-5, rtol=1e-5)
    assert (encoder(of._replace(type_ids=None)) - expected).abs().max() > 0.01


def test_recomputing_a_ready_head_changes_no_gradient():
    model = bert(dropout=0.2, kind=BertForSequenceClassification)
    found = []
    for keep_tokens in (None, 0):
        torch.manual_seed(1)
        encoder = reader(model, max_tokens=15, keep_tokens=keep_tokens)
        held, logits = numbers_held(model, lambda encoder=encoder: encoder.logits(texts()))
        weights = gradients(model, logits.square().sum())
        found.append((held, logits, weights["bert.encoder.layer.0.output.dense.weight"]))
    assert found[1][0] < found[0][0] / 2
    torch.testing.assert_close(found[1][1:], found[0][1:])


def test_padding_is_counted_only_where_there_is_some():
    assert reader(bert()).padding_share(texts([4, 2])) == 0
    assert reader(mpnet(), pad_id=1).padding_share(texts([4, 2])) == pytest.approx(2 / 8)


def test_on_another_device_it_is_counted_in_every_step_or_in_none():
    encoder = reader(bert())
    of = texts([4, 2])
    of = of._replace(ids=of.ids.to("meta"))
    assert encoder.padding_share(of) is None
    encoder.longest_packed = 4
    assert encoder.padding_share(of) == 0
    encoder.longest_packed = 3
    assert encoder.padding_share(of) == pytest.approx(2 / 8)
