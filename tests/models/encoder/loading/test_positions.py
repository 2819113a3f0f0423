"""The first position of a text, by architecture."""

import pytest

from ltr.models.encoder.loading.positions import first_position
from tests.models.encoder.test_packed import CONFIGS, built

FIRST_POSITION = {"roberta": 2, "xlm-roberta": 2}


@pytest.mark.parametrize("name", CONFIGS)
def test_first_position(name):
    assert first_position(built(name)) == FIRST_POSITION.get(name, 0)
