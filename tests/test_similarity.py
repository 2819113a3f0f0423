import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from ltr.similarity import cosine, dot, euclidean, squared_euclidean

EVERY = pytest.mark.parametrize("similarity", [dot, cosine, squared_euclidean, euclidean])
QUERIES = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
DOCS = torch.tensor([[4.0, 6.0], [1.0, 2.0], [0.0, 0.0]])


def embeddings(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def queries_and_docs(*shape, width, dtype=torch.float64):
    """Of 4 queries and 5 documents, to be learnt."""
    queries = embeddings(*shape, 4, width).to(dtype).requires_grad_()
    return queries, embeddings(*shape, 5, width, seed=1).to(dtype).requires_grad_()


def test_values_by_hand():
    """Differences of (1, 2) to the documents: (3, 4), (0, 0) and (1, 2); of (0, -1): (4, 7), (1, 3)
    and (0, 1).
    """
    assert dot(QUERIES, DOCS).tolist() == [[16.0, 5.0, 0.0], [-6.0, -2.0, 0.0]]
    expected = torch.tensor([[-25.0, 0.0, -5.0], [-65.0, -10.0, -1.0]])
    torch.testing.assert_close(squared_euclidean(QUERIES, DOCS), expected)
    expected = torch.tensor([[-5.0, 0.0, -math.sqrt(5)], [-math.sqrt(65), -math.sqrt(10), -1.0]])
    torch.testing.assert_close(euclidean(QUERIES, DOCS), expected)
    lengths = math.sqrt(5) * math.sqrt(52), 5.0, math.sqrt(52), math.sqrt(5)
    expected = torch.tensor(
        [[16 / lengths[0], 5 / lengths[1], 0.0], [-6 / lengths[2], -2 / lengths[3], 0.0]]
    )
    torch.testing.assert_close(cosine(QUERIES, DOCS), expected)


@EVERY
def test_gradcheck(similarity):
    assert torch.autograd.gradcheck(similarity, queries_and_docs(width=4))


@EVERY
def test_a_text_is_most_like_itself_and_gets_less_so_the_further_it_moves(similarity):
    """On a circle around the origin, where all four give one order."""
    angle = torch.tensor([0.0, 0.3, 1.0, 3.0], dtype=torch.float64)
    docs = torch.stack([angle.cos(), angle.sin()], dim=1)
    assert (similarity(docs[:1], docs).diff(dim=1) < 0).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_euclidean_is_minus_cdist_of_torch(shape):
    """torch.cdist with its differences in full: value and gradient, for any leading dimensions."""
    inputs = queries_and_docs(*shape, width=6)
    ours = euclidean(*inputs)
    expected = -torch.cdist(*inputs, compute_mode="donot_use_mm_for_euclid_dist")
    weights = embeddings(*shape, 4, 5, seed=2)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(squared_euclidean(*inputs), -expected.square())
    of_ours, of_torch = (
        torch.autograd.grad((scores * weights).sum(), inputs) for scores in (ours, expected)
    )
    torch.testing.assert_close(of_ours, of_torch)


@EVERY
def test_leading_dimensions_are_batches(similarity):
    queries = embeddings(2, 3, 4, 6)
    docs = embeddings(2, 3, 5, 6, seed=1)
    together = similarity(queries, docs)
    for a, b in itertools.product(range(2), range(3)):
        torch.testing.assert_close(together[a, b], similarity(queries[a, b], docs[a, b]))


def test_a_distance_of_zero_has_a_zero_gradient():
    """Every text against itself: without the diagonal the gradient is that of torch's norm, and the
    diagonal adds nothing.
    """
    x = embeddings(6, 4).requires_grad_()
    scores = euclidean(x, x)
    same = torch.eye(6, dtype=torch.bool)
    # A distance of zero in full: sums of squares of few digits.
    exact = x.detach().round(decimals=1).requires_grad_()
    twins = euclidean(exact[:1].expand(3, 4), exact[:1].expand(2, 4))
    assert (twins == 0).all() and (torch.autograd.grad(twins.sum(), exact)[0] == 0).all()
    (gradient,) = torch.autograd.grad(scores.masked_fill(same, 0.0).sum(), x, retain_graph=True)
    others = ~same
    expected = -sum((x[a] - x[d]).norm() for a in range(6) for d in range(6) if others[a, d])
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0])
    assert torch.autograd.grad(scores.sum(), x)[0].isfinite().all()


def test_rounding_makes_no_negative_distance():
    """Two far clusters of long embeddings that nearly agree, in float32: the three terms of a
    square cancel, some to below 0.
    """
    x = embeddings(50, 384, dtype=torch.float32) / 100
    x = torch.cat([x[:25] + 100, x[25:] - 100])
    squares = x.square().sum(dim=1)
    assert (2 * (x @ x.T) - squares.unsqueeze(1) - squares > 0).any()
    assert (squared_euclidean(x, x) <= 0).all() and euclidean(x, x).isfinite().all()


def test_distances_of_close_embeddings_far_from_the_origin_keep_their_digits():
    """The same texts moved by 100 in every dimension, by steps of 1/1024 that float32 holds there:
    to 6 digits one distance.
    """
    x = (embeddings(20, 16) * 1024).round() / 1024
    queries = x[:10]
    docs = x[10:]
    expected = -(queries.unsqueeze(1) - docs).norm(dim=2)
    moved = euclidean((queries + 100).float(), (docs + 100).float())
    torch.testing.assert_close(moved.double(), expected, rtol=1e-6, atol=0)


def test_an_embedding_of_length_zero_has_cosine_zero():
    x = torch.zeros(1, 3, requires_grad=True)
    scores = cosine(x, embeddings(2, 3, dtype=torch.float32))
    scores.sum().backward()
    assert (scores == 0).all() and x.grad.isfinite().all()


PRECISION = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@EVERY
@pytest.mark.parametrize("dtype", PRECISION)
def test_scores_are_float32_or_better_and_gradients_of_the_embeddings_type(similarity, dtype):
    """Half precision only rounds the embeddings that come in: the same numbers in float64 give the
    same scores and gradient.
    """
    low = queries_and_docs(width=4, dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in low]
    scores = similarity(*low)
    expected = similarity(*exact)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)
    close = {"rtol": PRECISION[dtype], "atol": PRECISION[dtype]}
    gradients = torch.autograd.grad(scores.sum(), low)
    expected_gradients = torch.autograd.grad(expected.sum(), exact)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), expected_gradient, **close)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_neither_scores_nor_gradients(similarity, dtype):
    """Float32 to the last bit, in a model's forward pass. The backward pass is outside, as torch
    asks for.
    """
    inputs = queries_and_docs(width=64, dtype=dtype)
    expected = similarity(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = similarity(*inputs)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)
    gradients = [torch.autograd.grad(s.sum(), inputs) for s in (scores, expected)]
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert torch.equal(gradient, expected_gradient)


def test_autocast_around_the_backward_pass_leaves_the_gradient_of_the_distance_as_it_is():
    inputs = queries_and_docs(width=64, dtype=torch.float32)
    scores = euclidean(*inputs)
    expected = torch.autograd.grad(scores.sum(), inputs, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = torch.autograd.grad(scores.sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_scores_of_many_near_documents_do_not_tie():
    """Rounded to bfloat16, with its 8 bits, hundred scores around 1 would be few."""
    docs = F.normalize(torch.ones(1, 8) + embeddings(100, 8, dtype=torch.float32) / 100, dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(dot(torch.ones(1, 8), docs).unique()) > 80
