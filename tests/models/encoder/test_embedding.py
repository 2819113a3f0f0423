import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.batch import Texts
from ltr.models.encoder.embedding import OneGradientEmbedding, with_one_gradient
from ltr.models.encoder.linear import use_plain_linear
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


class Wrapped(nn.Module):
    """Small changes of an embedding, as adapters make them: no ``nn.Embedding``, but it has weights."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.weight, self.change = inner, inner.weight, nn.Embedding(*inner.weight.shape)

    def forward(self, ids):
        return self.inner(ids) + self.change(ids)


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
    of.ids[::5] = torch.arange(len(of.ids[::5])) % 3  # the padding's id as a token, and ids before it
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


def test_a_backward_pass_that_fails_leaves_nothing_to_the_next():
    encoder, of = reader(bert()), texts()
    weight, calls = table(encoder).weight, []

    def fail_once(_):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no memory")

    read = with_one_gradient(encoder.model, table(encoder))
    rows = [read(of.ids[:10]), read(of.ids[10:])]
    for one in rows:
        one.register_hook(fail_once)
    total = sum(one.sum() for one in rows)
    with pytest.raises(RuntimeError, match="no memory"):
        total.backward(retain_graph=True)
    weight.grad = None
    total.backward()
    counted = torch.bincount(of.ids, minlength=len(weight)).float().unsqueeze(1).expand_as(weight)
    assert torch.equal(weight.grad, counted)


def test_a_gradient_of_the_gradient():
    """Two chunks of a token each, y = w². The gradient of (2 w)² is 8 w."""
    model = bert()
    reader(model)
    embedding = model.get_input_embeddings()
    read = with_one_gradient(model, embedding)
    value = sum(read(torch.tensor([[token]])).square().sum() for token in (3, 4))
    (gradient,) = torch.autograd.grad(value, embedding.weight, create_graph=True)
    gradient.square().sum().backward()
    expected = torch.zeros_like(embedding.weight)
    expected[3:5] = 8 * embedding.weight[3:5].detach()
    torch.testing.assert_close(embedding.weight.grad, expected)


def test_a_table_that_is_made_anew_is_read_as_by_torch():
    encoder, of = reader(bert(), max_tokens=20), texts()
    value = encoder(of)
    parametrize.register_parametrization(table(encoder), "weight", nn.Tanh(), unsafe=True)
    encoder(of).sum().backward()
    assert table(encoder).parametrizations.weight.original.grad.any() and not torch.equal(encoder(of), value)


def test_the_embedding_of_another_model_reads_its_own_rows():
    one, other = reader(bert()), table(reader(mpnet()))
    read = with_one_gradient(one.model, other)
    assert torch.equal(read(torch.tensor([5])), other.weight[5:6]) and not torch.equal(other.weight, table(one).weight)


def test_an_adapter_around_the_embedding_is_left_alone():
    model = bert()
    model.set_input_embeddings(Wrapped(model.get_input_embeddings()))
    encoder = reader(model, max_tokens=20)
    encoder(texts()).sum().backward()
    assert table(encoder).change.weight.grad.any() and table(encoder).inner.weight.grad.any()


def test_what_is_compiled_has_no_breaks():
    encoder = reader(bert(), pooling="cls")
    use_plain_linear(encoder)
    ids = texts().ids[None]
    with torch.no_grad():
        compiled = torch.compile(encoder.model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(ids).last_hidden_state, encoder.model(ids).last_hidden_state)


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
