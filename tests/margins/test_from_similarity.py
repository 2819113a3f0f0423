import pytest
import torch

from ltr.errors import InputError
from ltr.margins import FromDistance, FromDocuments, FromQuery, Learnable
from tests.margins.lists import lists_of, one_list


def test_from_documents_by_hand():
    """Cosines 0, -1 and 0: half the scale, nothing, and the scale for equal documents."""
    h = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]], requires_grad=True)
    margin = FromDocuments(scale=4.0)(one_list(h))
    assert margin.tolist() == [[[4.0, 2.0, 0.0], [2.0, 4.0, 2.0], [0.0, 2.0, 4.0]]]
    assert not margin.requires_grad
    assert FromDocuments(gradient=True)(one_list(h)).requires_grad


def test_from_query_by_hand():
    """The query (2, 0) against (1, 0), (0, 2) and (-3, 0): nothing, half the scale and the scale."""
    q = torch.tensor([[2.0, 0.0]], requires_grad=True)
    h = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]])
    given = one_list(h)._replace(queries=q)
    margin = FromQuery(scale=4.0)(given)
    assert margin.tolist() == [[0.0, 2.0, 4.0]] and not margin.requires_grad
    assert FromQuery(gradient=True)(given).requires_grad


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_share_their_documents_have_the_margins_of_rows_that_repeat_them(rows):
    torch.manual_seed(0)
    shared = torch.randn(1, 5, 8)
    q = torch.randn(rows, 8)
    labels = torch.zeros(rows, 5)
    for policy in (FromDocuments(scale=2.0), FromQuery(scale=2.0), Learnable()):
        margin = policy(lists_of(labels, embeddings=shared, queries=q))
        repeated = lists_of(labels, embeddings=shared.expand(rows, -1, -1), queries=q)
        assert margin.shape[:2] == (rows, 5)
        torch.testing.assert_close(margin, policy(repeated))


def test_from_query_is_a_quarter_of_the_squared_distance_of_unit_vectors():
    torch.manual_seed(0)
    q, h = (torch.nn.functional.normalize(torch.randn(*n, 8), dim=-1) for n in ([2], [2, 5]))
    given = one_list(h)._replace(queries=q, distances=(q.unsqueeze(1) - h).norm(dim=2))
    torch.testing.assert_close(FromQuery(scale=3.0)(given), FromDistance(k=0.75, power=2.0)(given))


@pytest.mark.parametrize("kind", [FromDocuments, FromQuery])
def test_a_frozen_encoder_replaces_the_ranker(kind):
    torch.manual_seed(0)
    own, other = ((torch.randn(2, 8), torch.randn(2, 5, 8)) for _ in range(2))
    given = one_list(own[1])._replace(queries=own[0], frozen=other)
    alone = one_list(other[1])._replace(queries=other[0])
    policy = kind(encoder="other")
    assert torch.equal(policy(given), kind()(alone))
    with pytest.raises(InputError, match="needs the embeddings of queries and documents, got none"):
        policy(alone)
