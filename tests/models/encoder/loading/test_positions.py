"""How texts are numbered, by architecture."""

import pytest

from ltr.models.encoder.loading.positions import padding_index
from tests.models.encoder.test_packed import CONFIGS, built

PADDING_INDEX = {"roberta": 1, "xlm-roberta": 1}


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_index(name):
    assert padding_index(built(name)) == PADDING_INDEX.get(name)
