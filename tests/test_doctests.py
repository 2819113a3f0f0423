"""The examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "ltr").rglob("*.py"))
    if ">>> " in path.read_text()
]


def test_there_are_examples():
    assert len(MODULES) >= 5


@pytest.fixture(scope="module")
def nothing_is_said_at_an_import():
    """Which tells of wandb on stdout, in whichever example is the first to need it."""
    importlib.import_module("sentence_transformers")


@pytest.mark.usefixtures("nothing_is_said_at_an_import")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
