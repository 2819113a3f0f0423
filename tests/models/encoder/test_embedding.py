import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.batch import Texts
from ltr.models.encoder.embedding import OneGradientEmbedding, with_one_gradient
from tests.models.encoder.test_text_encoder import bert, gradients, mpnet, reader, texts


class Made(TorchDispatchMode):
    """Counts the tensors of one shape that operators fill with zeros."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        kinds = ("zeros_like", "new_zeros", "zeros", "embedding_dense_backward")
        self.count += func.overloadpacket.__name__ in kinds and output.shape == self.shape
        return output


def table(encoder):
    return encoder.model.get_input_embeddings()


def test_rows_and_padding_by_hand():
    """Token 1 twice in the first chunk and once in the second, token 2 once, token 0 is padding."""
    model = bert()
    reader(model)
    embedding = model.get_input_embeddings()
    assert type(embedding) is OneGradientEmbedding and embedding.padding_idx == 0
    read = with_one_gradient(model, embedding)
    first, second = read(torch.tensor([[1, 2, 0, 1]])), read(torch.tensor([[1]]))
    assert torch.equal(first[0, 3], embedding.weight[1])
    (2 * first.sum() + 3 * second.sum()).backward()
    expected = torch.zeros_like(embedding.weight)
    expected[1], expected[2] = 2 + 2 + 3, 2
    assert torch.equal(embedding.weight.grad, expected)


@pytest.mark.parametrize(
    "options", [{}, {"max_tokens": 20}, {"max_tokens": 20, "keep_tokens": 0}, {"max_tokens": 20, "keep_tokens": 40}]
)
@pytest.mark.parametrize("build", [bert, mpnet])
def test_gradients_are_those_of_torch(build, options):
    encoder, of = reader(build(), pad_id=1, **options), texts()
    value, found = gradients(encoder, of)
    table(encoder).__class__ = nn.Embedding
    expected_value, expected = gradients(encoder, of)
    assert value == expected_value
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_chunks_make_one_gradient():
    encoder, of = reader(bert(), max_tokens=20), texts()
    assert len(encoder._chunks(of)) > 3
    value = encoder(of).square().sum()
    with Made(table(encoder).weight.shape) as made:
        value.backward()
    assert made.count == 1


def test_two_reads_of_a_step_and_two_backward_passes_of_a_read_add_up():
    encoder, of = reader(bert(), max_tokens=20), texts()
    weight = table(encoder).weight
    (once,) = torch.autograd.grad(encoder(of).square().sum(), weight)
    (encoder(of).square().sum() + encoder(of).square().sum()).backward()
    torch.testing.assert_close(weight.grad, 2 * once)
    value = encoder(of).square().sum()
    (first,) = torch.autograd.grad(value, weight, retain_graph=True)
    (second,) = torch.autograd.grad(value, weight)
    assert torch.equal(first, second) and torch.equal(first, once)


def test_nothing_is_left_in_the_module():
    """A copy, as an average of the weights makes it, can be made after a read, whose graph is still alive."""
    encoder, of = reader(bert(), max_tokens=20), texts()
    value = encoder(of)
    assert table(encoder)(of.ids).grad_fn.name() == "EmbeddingBackward0"
    twin = copy.deepcopy(encoder)
    assert torch.equal(twin(of), value)
    twin(of).sum().backward()
    assert table(encoder).weight.grad is None and table(twin).weight.grad.any()


def test_frozen_weights_get_no_gradient():
    encoder = reader(bert(), max_tokens=20)
    table(encoder).requires_grad_(False)
    encoder(texts()).sum().backward()
    assert table(encoder).weight.grad is None


@pytest.mark.parametrize("kind", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_an_embedding_that_does_more_stays_as_it_is(kind):
    model = bert()
    model.set_input_embeddings(nn.Embedding(60, 16, **kind))
    assert type(table(reader(model))) is nn.Embedding


def test_half_precision_weights():
    encoder = reader(bert().bfloat16(), max_tokens=20)
    encoder(Texts(torch.tensor([3, 4, 3]), torch.tensor([2, 1]))).sum().backward()
    assert table(encoder).weight.grad.dtype == torch.bfloat16
