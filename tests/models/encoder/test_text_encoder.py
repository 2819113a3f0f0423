"""The text encoder: the same outputs and gradients whatever the chunks."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    MPNetConfig,
    MPNetModel,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.encoder import text_encoder
from ltr.models.encoder.text_encoder import TextEncoder
from tests.child_processes import run_ranks

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
}
LENGTHS = [7, 1, 20, 3, 7, 12, 7, 1, 5]


def bert(dropout=0.0, kind=BertModel):
    torch.manual_seed(0)
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


def mpnet():
    """An encoder that can't read texts end to end."""
    torch.manual_seed(0)
    model = MPNetModel(
        MPNetConfig(
            **SIZES, pad_token_id=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
    )
    model.pooler = None
    return model


def reader(model, pad_id=0, **options):
    return TextEncoder(model, pad_id, TextEncoder.Options(**options))


def texts(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(0)
    return Texts(torch.randint(3, 60, (sum(lengths),), generator=generator), torch.tensor(lengths))


def one_by_one(model, of, pooling):
    hidden = [model(row[None]).last_hidden_state[0] for row in of.ids.split(of.lengths.tolist())]
    by_name = {
        "cls": lambda h: h[0],
        "mean": lambda h: h.mean(dim=0),
        "max": lambda h: h.max(dim=0).values,
    }
    return torch.stack([by_name[pooling](h) for h in hidden])


def gradients(encoder, of):
    encoder.zero_grad()
    torch.manual_seed(1)  # dropout
    value = encoder(of).square().sum()
    value.backward()
    return value.detach(), {name: p.grad.clone() for name, p in encoder.named_parameters()}


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


@pytest.mark.parametrize("max_tokens", [1, None])
def test_a_ready_head_scores_each_text_as_alone(max_tokens):
    model = bert(kind=BertForSequenceClassification).eval()
    of = texts()
    expected = torch.cat([model(row[None]).logits[0] for row in of.ids.split(LENGTHS)])
    torch.testing.assert_close(
        reader(model, max_tokens=max_tokens).logits(of), expected, atol=1e-5, rtol=1e-5
    )


NO_TEXTS = Texts(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def test_no_text_gives_no_row_and_every_weight_a_gradient_of_0():
    assert reader(bert())(NO_TEXTS).shape == (0, 16)
    assert reader(bert(kind=BertForSequenceClassification)).logits(NO_TEXTS).shape == (0,)
    value, found = gradients(reader(bert()), NO_TEXTS)
    _, expected = gradients(reader(bert()), texts())
    assert value == 0 and found.keys() == expected.keys()
    assert all(not gradient.any() for gradient in found.values())


def _train_process(rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    encoder = DistributedDataParallel(reader(bert()))
    for _ in range(2):  # the second step finds out what the first has not finished
        _, found = gradients(encoder, [texts(), NO_TEXTS][rank])
    torch.save(found, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_of_two_processes_one_may_have_no_text(tmp_path):
    """Each gets the mean of both gradients."""
    run_ranks(_train_process, str(tmp_path))
    _, expected = gradients(reader(bert()), texts())
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        for name, gradient in expected.items():
            torch.testing.assert_close(found[f"module.{name}"], gradient / 2, msg=name)


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
    value, expected = gradients(kept, of)
    again, found = gradients(recomputed, of)
    assert torch.equal(again, value)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)
    torch.manual_seed(2)
    assert not torch.equal(recomputed(of).square().sum(), value)  # the dropout is real


def test_freed_memory_is_given_back_before_each_chunk_that_is_recomputed(monkeypatch):
    """Three chunks: the first two are read forwards and backwards, the last one is kept."""
    calls = []
    monkeypatch.setattr(text_encoder, "_malloc_trim", calls.append)
    gradients(reader(bert(), max_tokens=10), texts([10] * 3))
    assert calls == []
    gradients(reader(bert(), max_tokens=10, keep_tokens=0), texts([10] * 3))
    assert calls == [0] * 4


def test_gradients_of_recomputed_chunks_add_up_in_float32():
    """Forty chunks under bfloat16: a weight's gradient is as near to float32's as that of one
    chunk. Added up in bfloat16, in autocast's copy of the weight, it is 1.4 times as far."""
    of = texts([10] * 40)

    def weights(**sizes):
        return {
            name: g
            for name, g in gradients(reader(bert(), **sizes), of)[1].items()
            if "dense.weight" in name
        }

    exact = weights()
    with torch.autocast("cpu", torch.bfloat16):
        found = {
            name: weights(**sizes)
            for name, sizes in {"one": {}, "forty": {"max_tokens": 10, "keep_tokens": 0}}.items()
        }
    one, forty = (
        sum((g[name] - exact[name]).norm() / exact[name].norm() for name in exact)
        for g in (found["one"], found["forty"])
    )
    assert forty < 1.15 * one


def test_recomputing_keeps_the_activations_of_as_many_tokens_as_asked_for():
    """Numbers that the graph holds: as many for eight chunks as for two, but for the outputs. 60
    tokens: those of three.
    """

    def held(keep_tokens, n_chunks):
        model = bert()
        numbers = []
        encoder = reader(model, max_tokens=20, keep_tokens=keep_tokens)
        own = {p.data_ptr() for p in model.parameters()}

        def pack(x):
            if x.data_ptr() not in own:
                numbers.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            encoder(texts([20] * n_chunks))
        return sum(numbers)

    outputs = 6 * 20 * 16  # fewer than one layer's outputs for each chunk more
    assert held(0, 8) - held(0, 2) < outputs
    assert held(None, 8) > 3.5 * held(None, 2)
    assert (
        held(60, 8) - held(60, 3) < outputs
        and held(60, 3) == held(None, 3)
        and held(59, 3) < 0.8 * held(60, 3)
    )


@pytest.mark.long
def test_compiled_layers_give_the_same():
    model = bert()
    of = texts()
    expected_value, expected = gradients(reader(model, max_tokens=30), of)
    compiled = reader(model, max_tokens=30, compile=True)
    assert [layer._compiled_call_impl is not None for layer in model.encoder.layer] == [True, True]
    value, found = gradients(compiled, of)
    torch.testing.assert_close(value, expected_value)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-4, msg=name)


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
    sizes = {
        "d_model": 16,
        "n_layer": 1,
        "n_head": 2,
        "d_inner": 24,
        "vocab_size": 60,
        "num_labels": 1,
    }
    with pytest.raises(
        InputError,
        match="XLNetForSequenceClassification gives a text other outputs beside a longer text",
    ):
        reader(XLNetForSequenceClassification(XLNetConfig(**sizes)))


def test_an_encoder_that_cannot_be_run_is_refused():
    model = bert()
    model.register_forward_pre_hook(
        lambda *_: (_ for _ in ()).throw(ValueError("no such input\nand more"))
    )
    with pytest.raises(
        InputError,
        match=r"BertModel can't read two texts side by side \(ValueError: no such input\)",
    ):
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
    of = texts()
    found = []
    for keep_tokens in (None, 0):
        model.zero_grad()
        torch.manual_seed(1)
        encoder = reader(model, max_tokens=15, keep_tokens=keep_tokens)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, saved=saved: saved.append(x) or x, lambda x: x
        ):
            logits = encoder.logits(of)
        logits.square().sum().backward()
        found.append(
            (len(saved), logits, model.bert.encoder.layer[0].output.dense.weight.grad.clone())
        )
    assert found[1][0] < found[0][0] / 2
    torch.testing.assert_close(found[1][1:], found[0][1:])


def test_padding_is_counted_only_where_there_is_some():
    assert reader(bert()).padding_share(texts([4, 2])) == 0
    assert reader(mpnet(), pad_id=1).padding_share(texts([4, 2])) == pytest.approx(2 / 8)
