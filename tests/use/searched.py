"""Corpora that are searched."""

import pytest

from ltr.models import DualEncoder
from ltr.use.retriever import Retriever


@pytest.fixture
def retriever(backbone):
    return Retriever(DualEncoder(backbone, max_length=20))
