"""Fixtures of this room."""

import pytest

from ltr.models import DualEncoder
from ltr.use.retriever import Retriever
from tests.use.exported import exported, scores_of_others
from tests.use.hub import hub
from tests.use.loaded import runs

__all__ = ["exported", "hub", "runs", "scores_of_others"]


@pytest.fixture
def retriever(backbone):
    return Retriever(DualEncoder(backbone, max_length=20))
