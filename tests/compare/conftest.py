"""Fixtures of this room."""

from pathlib import Path

import pytest

from tests.world.rankings import QRELS, RUN
from tests.world.tested_runs import runs

__all__ = ["runs"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("qrels.txt").write_text(QRELS)
    Path("a.trec").write_text(RUN)
    return tmp_path
