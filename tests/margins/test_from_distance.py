import math

import pytest
import torch

from ltr.errors import InputError
from ltr.margins import FromDistance
from tests.margins.lists import lists_of


def test_from_distance_by_hand():
    distances = torch.tensor([[4.0, 9.0, 0.0]], requires_grad=True)
    given = lists_of([[0.0, 0.0, 0.0]], distances=distances)
    margin = FromDistance(k=0.5, power=0.5, cap=1.2)(given)
    assert margin.tolist() == [[1.0, pytest.approx(1.2), 0.0]] and not margin.requires_grad


def test_a_ranker_without_queries_needs_the_distance_of_every_negative():
    distances = torch.tensor([[math.nan, 2.0, math.nan]])
    given = lists_of([[1.0, 0.0, 0.0]], [[True, True, False]], distances=distances)
    # Neither the relevant document's nor the padding's is used.
    assert FromDistance()(given)[0, 1] == 2.0
    with pytest.raises(InputError, match="needs a batch with distances, got negatives without one"):
        FromDistance()(given._replace(distances=torch.tensor([[0.0, math.nan, 2.0]])))


def test_every_document_below_the_best_grade_needs_a_distance():
    """Of grades 2, 1, 0 the document of grade 1 is the less relevant one of a pair, too."""
    given = lists_of([[2.0, 1.0, 0.0]], distances=torch.tensor([[math.nan, math.nan, 0.5]]))
    with pytest.raises(InputError, match="got negatives without one"):
        FromDistance()(given)
    given = given._replace(distances=torch.tensor([[math.nan, 1.5, 0.5]]))
    assert FromDistance()(given)[0, 1:].tolist() == [1.5, 0.5]
