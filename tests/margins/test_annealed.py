from ltr.margins import Annealed, Constant, FromQuery, Learnable
from tests.margins.lists import lists_of


def test_annealed_by_hand():
    """4 batches from 0 to 2: 0, 0.5, 1, 1.5, and 2 from there on."""
    policy = Annealed(Constant(2.0), steps=4)
    assert [policy(lists_of([[1.0]])).item() for _ in range(6)] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]


def test_annealed_wants_what_its_policy_wants():
    assert Annealed(Learnable(), steps=2).wants_embeddings
    assert not Annealed(Constant(), steps=2).wants_embeddings
    of_query = Annealed(FromQuery(encoder="other"), steps=2)
    assert of_query.wants_queries and of_query.encoder == "other" and not of_query.wants_distances
