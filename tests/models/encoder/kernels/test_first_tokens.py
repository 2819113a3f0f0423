"""First tokens alone in the last layer: the same outputs and gradients."""

import copy
import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from transformers import AutoModel, BertForSequenceClassification, BertModel

from ltr.models.encoder.kernels.first_tokens import _first_rows, announce_first_tokens
from ltr.models.encoder.loading.architecture import layers_of
from tests.models.encoder.test_packed import CONFIGS, built
from tests.models.encoder.test_text_encoder import value_and_gradients
from tests.world.encoders import bert, one_by_one, reader, texts

LENGTHS = [7, 1, 20, 3]
AS_BERT = ["bert", "roberta", "xlm-roberta"]


class Outside(nn.Module):
    """Attention with ``output``, too, but the layer's input is added outside of it."""

    def __init__(self, attention):
        super().__init__()
        self.mix = attention.self
        self.output = attention.output.dense
        self.norm = attention.output.LayerNorm

    def forward(self, hidden, attention_mask=None, **others):
        return self.norm(self.output(self.mix(hidden, attention_mask, **others)[0]) + hidden), None


def rows_behind_attention(model):
    """How many rows go into the last layer's wide matrix in each call, from now on."""
    found = []
    layers_of(model)[-1].intermediate.register_forward_hook(
        lambda _, args, output: found.append(args[0].shape[:-1].numel())
    )
    return found


def prepared(model):
    layer = layers_of(model)[-1]
    return any(_first_rows in module._forward_pre_hooks.values() for module in layer.modules())


@pytest.mark.parametrize("name", AS_BERT)
def test_the_last_layer_computes_the_first_tokens_alone(name):
    model = built(name, AutoModel)
    encoder = reader(model, pooling="cls")
    of = texts(LENGTHS)
    expected = one_by_one(model, of, "cls")
    found = rows_behind_attention(model)
    torch.testing.assert_close(encoder(of), expected, atol=1e-5, rtol=1e-5)
    assert found == [len(LENGTHS)]


@pytest.mark.parametrize(
    ("kind", "n_computed"),
    [(BertModel, sum(LENGTHS)), (BertForSequenceClassification, len(LENGTHS))],
)
def test_the_mean_reads_all_tokens_and_a_ready_head_the_first_alone(kind, n_computed):
    encoder = reader(bert(kind=kind), pooling="mean" if kind is BertModel else None)
    found = rows_behind_attention(encoder.model)
    (encoder if kind is BertModel else encoder.logits)(texts(LENGTHS))
    assert found == [n_computed]


def with_input_added_outside():
    model = bert()
    layer = layers_of(model)[-1]
    layer.attention = Outside(layer.attention)
    return model


@pytest.mark.parametrize("name", ["input added outside", *sorted(CONFIGS.keys() - set(AS_BERT))])
def test_other_layers_compute_all(name):
    model = built(name) if name in CONFIGS else with_input_added_outside()
    of = texts(LENGTHS)
    expected = one_by_one(model, of, "cls")
    encoder = reader(model, pooling="cls")
    assert encoder.reads_packed and not prepared(model)
    torch.testing.assert_close(encoder(of), expected, atol=1e-5, rtol=1e-5)


def compiled_layers(encoder):
    layers = layers_of(encoder.model)
    for at, layer in enumerate(layers):
        layers[at] = torch.compile(layer, backend="eager")


def compiled(owner, *names):
    for name in names:
        setattr(owner, name, torch.compile(getattr(owner, name), backend="eager"))


COMPILED = {
    "ranker": lambda encoder: compiled(encoder, "forward", "logits"),
    "model": lambda encoder: encoder.model.compile(backend="eager"),
    "base": lambda encoder: encoder.model.base_model.compile(backend="eager"),
    "forward": lambda encoder: compiled(encoder.model, "forward"),
    "layers": compiled_layers,
    "own layers": lambda encoder: [
        layer.compile(backend="eager") for layer in layers_of(encoder.model)
    ],
}


# The first compiles all that a ranker does, for seconds, and the others the parts of it, of which a
# model with a head has all. A model without one is its own base.
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param(kind, how, marks=[pytest.mark.long] * (how == "ranker" or kind is BertModel))
        for kind in (BertModel, BertForSequenceClassification)
        for how in COMPILED
        if (kind, how) != (BertModel, "base")
    ],
)
def test_a_compiled_encoder_reads_the_same(kind, how):
    encoder = reader(bert(kind=kind), pooling="cls", max_tokens=28)
    of = texts(LENGTHS)
    read = (lambda: encoder(of)) if kind is BertModel else (lambda: encoder.logits(of))
    expected = read()
    COMPILED[how](encoder)
    torch.testing.assert_close(read(), expected)


def wrapped(encoder, reentrant):
    kind = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    layers = layers_of(encoder.model)
    for at, layer in enumerate(layers):
        layers[at] = checkpoint_wrapper(layer, kind)


def checkpointed(encoder, reentrant):
    encoder.model.gradient_checkpointing_enable({"use_reentrant": reentrant})


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("checkpointing", [wrapped, checkpointed])
def test_a_layer_that_is_computed_again_leaves_out_the_same(checkpointing, reentrant):
    encoder = reader(bert(dropout=0.2), pooling="cls").train()
    of = texts(LENGTHS)
    _, expected = value_and_gradients(encoder, of)
    checkpointing(encoder, reentrant)
    found = rows_behind_attention(encoder.model)
    _, again = value_and_gradients(encoder, of)
    assert found == [len(LENGTHS)] * 2
    torch.testing.assert_close([*again.values()], [*expected.values()])


def test_a_read_that_is_broken_off_leaves_nothing_to_the_next():
    """The next one has as many tokens, and reads all of them by another attention."""
    model = bert()
    of = texts([4, 4])
    encoder = reader(model, pooling="cls")
    fails = layers_of(model)[-1].attention.self.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encoder(of)
    fails.remove()
    model.set_attn_implementation("eager")
    assert model(of.ids[None]).last_hidden_state.shape[1] == 8


def test_padded_texts_are_never_cut():
    """Even where a layer that was computed again has said last which tokens are the first."""
    model = bert()
    of = texts([7, 7])
    reader(model, pooling="cls")
    model.set_attn_implementation("eager")
    announce_first_tokens(torch.tensor([0, 3]), n_tokens=7)
    assert model(of.ids.view(2, 7)).last_hidden_state.shape == (2, 7, 16)


def test_keep_tokens_computes_the_same_again():
    model = bert(dropout=0.2)
    of = texts(LENGTHS)
    chunked = partial(reader, model, pooling="cls", max_tokens=12)
    _, expected = value_and_gradients(chunked().train(), of)
    _, found = value_and_gradients(chunked(keep_tokens=0).train(), of)
    torch.testing.assert_close(found, expected)


def test_a_second_encoder_of_a_model_and_a_copy():
    model = bert(kind=BertForSequenceClassification).eval()
    of = texts(LENGTHS)
    expected = reader(model).logits(of)
    again = reader(model)
    assert prepared(model)
    for encoder in (again, copy.deepcopy(again)):
        assert torch.equal(encoder.logits(of), expected)


def test_two_threads_read_with_one_ready_cross_encoder():
    """One waits behind the embeddings until the other has read."""
    encoder = reader(bert(kind=BertForSequenceClassification)).eval()
    of = texts(LENGTHS)
    other = texts([5, 9])
    expected = encoder.logits(of)
    found = []
    waits = threading.Event()
    goes_on = threading.Event()

    def wait(*_):
        if threading.current_thread() is thread:
            waits.set()
            assert goes_on.wait(60)

    thread = threading.Thread(target=lambda: found.append(encoder.logits(of)))
    encoder.model.get_input_embeddings().register_forward_hook(wait)
    thread.start()
    assert waits.wait(60)
    between = encoder.logits(other)
    goes_on.set()
    thread.join()
    assert torch.equal(found[0], expected) and torch.equal(between, encoder.logits(other))
