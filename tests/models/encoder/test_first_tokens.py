import copy
import threading

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertForSequenceClassification

from ltr.models.encoder.first_tokens import leaves_others_out
from ltr.models.encoder.layers import layers_of
from tests.models.encoder.test_packed import CONFIGS, built
from tests.models.encoder.test_text_encoder import bert, gradients, one_by_one, reader, texts

LENGTHS = [7, 1, 20, 3]
AS_BERT = ["bert", "roberta", "xlm-roberta"]


class Outside(nn.Module):
    """Attention with ``output``, too, but the layer's input is added outside of it."""

    def __init__(self, attention):
        super().__init__()
        self.mix, self.output, self.norm = attention.self, attention.output.dense, attention.output.LayerNorm

    def forward(self, hidden, attention_mask=None, **others):
        return self.norm(self.output(self.mix(hidden, attention_mask, **others)[0]) + hidden), None


def rows_behind_attention(model):
    """How many rows go into the last layer's wide matrix in each call, from now on."""
    found = []
    layers_of(model)[-1].intermediate.register_forward_hook(lambda _, args, output: found.append(args[0].shape[:-1].numel()))
    return found


@pytest.mark.parametrize("name", AS_BERT)
def test_the_last_layer_computes_the_first_tokens_alone(name):
    model = built(name, AutoModel)
    encoder, of = reader(model, pooling="cls"), texts(LENGTHS)
    found, expected = rows_behind_attention(model), one_by_one(model, of, "cls")
    found.clear()
    torch.testing.assert_close(encoder(of), expected, atol=1e-5, rtol=1e-5)
    assert found == [len(LENGTHS)]


def test_where_other_tokens_are_read_all_are_computed():
    encoder = reader(bert(), pooling="mean")
    found = rows_behind_attention(encoder.model)
    encoder(texts(LENGTHS))
    assert found == [sum(LENGTHS)]


def test_a_ready_cross_encoder_computes_the_first_tokens_alone():
    encoder = reader(bert(kind=BertForSequenceClassification))
    found = rows_behind_attention(encoder.model)
    encoder.logits(texts(LENGTHS))
    assert found == [len(LENGTHS)]


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - set(AS_BERT)))
def test_other_layers_compute_all(name):
    encoder = reader(built(name), pooling="cls")
    assert encoder.reads_packed and not leaves_others_out(encoder.model)


def test_a_layer_that_adds_its_input_elsewhere_computes_all():
    model = bert()
    layer = layers_of(model)[-1]
    layer.attention = Outside(layer.attention)
    encoder, of = reader(model, pooling="cls"), texts(LENGTHS)
    assert encoder.reads_packed and not leaves_others_out(model)
    torch.testing.assert_close(encoder(of), one_by_one(model, of, "cls"), atol=1e-5, rtol=1e-5)


def test_a_compiled_encoder_computes_all():
    assert leaves_others_out(reader(bert(), pooling="cls").model)
    assert not leaves_others_out(reader(bert(), pooling="cls", compile=True).model)


def test_checkpointing_of_transformers_computes_all():
    """It calls the layer again in the backward pass, where nobody says which tokens are the first."""
    encoder, of = reader(bert(), pooling="cls").train(), texts(LENGTHS)
    _, expected = gradients(encoder, of)
    encoder.model.gradient_checkpointing_enable()
    _, found = gradients(encoder, of)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_keep_tokens_computes_the_same_again():
    model, of = bert(dropout=0.2), texts(LENGTHS)
    _, expected = gradients(reader(model, pooling="cls", max_tokens=12).train(), of)
    _, found = gradients(reader(model, pooling="cls", max_tokens=12, keep_tokens=0).train(), of)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_a_second_encoder_of_a_model_and_a_copy():
    model, of = bert(kind=BertForSequenceClassification).eval(), texts(LENGTHS)
    expected = reader(model).logits(of)
    again = reader(model)
    assert leaves_others_out(model)
    assert torch.equal(again.logits(of), expected) and torch.equal(copy.deepcopy(again).logits(of), expected)


def test_two_threads_read_with_one_ready_cross_encoder():
    """One waits behind the embeddings until the other has read."""
    encoder, of, other = reader(bert(kind=BertForSequenceClassification)).eval(), texts(LENGTHS), texts([5, 9])
    expected, found = encoder.logits(of), []
    waits, goes_on = threading.Event(), threading.Event()

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
