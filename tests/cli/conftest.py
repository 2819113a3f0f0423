"""Fixtures of this room."""

import pytest

from tests.world.configurations import write_config
from tests.world.tested_runs import runs

__all__ = ["runs"]


@pytest.fixture
def config(tmp_path, backbone, collection_folder):
    return write_config(tmp_path, backbone, collection_folder)
