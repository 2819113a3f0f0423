"""Fixtures of this room."""

from pathlib import Path

import pytest

from tests.world.rankings import QRELS, RUN
from tests.world.tested_runs import runs

__all__ = ["runs"]


@pytest.fixture
def here(here) -> Path:
    """With judgements and a ranking of them."""
    Path("qrels.txt").write_text(QRELS)
    Path("a.trec").write_text(RUN)
    return here
